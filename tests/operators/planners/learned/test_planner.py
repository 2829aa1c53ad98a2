"""Checkpoints are read back equal, and refused where they do not belong."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from placewright import planners, solve
from placewright.errors import InputError, UnsupportedError
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.learning import train
from placewright.operators.planners.learned import planner
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.placers import RnnPlacer
from placewright.operators.planners.learned.planner import (
    Schema,
    learned,
    load_parameters,
    save_parameters,
)
from placewright.planning.contract import Context, proposal_of
from placewright.planning.parameters import choose
from tests.operators.planners.learned.graphs import drawn_graph
from tests.operators.planners.learned.test_post import layered

SCHEMA = Schema("post", "costs 1", "64 groups")


def test_parameters_come_back_equal(tmp_path: Path) -> None:
    """Arrays, dtypes and facts."""
    parameters = {"a.weight": np.arange(6.0).reshape(2, 3), "b": np.array(2.5, dtype=np.float32)}
    path = save_parameters(tmp_path / "p.safetensors", parameters, SCHEMA, evaluations=7)
    found, facts = load_parameters(path, SCHEMA)
    assert facts == {"evaluations": 7}
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (Schema("hp3c", "costs 1", "64 groups"), "planner"),
        (Schema("post", "costs 2", "64 groups"), "features"),
        (Schema("post", "costs 1", "32 groups"), "network"),
        (Schema("post", "costs 1", "64 groups", "abc"), "problem"),
    ],
)
def test_of_something_else_is_refused(tmp_path: Path, other: Schema, word: str) -> None:
    """By name, with both."""
    path = save_parameters(tmp_path / "p.safetensors", {"a": np.zeros(2)}, SCHEMA)
    with pytest.raises(InputError, match=word) as error:
        load_parameters(path, other)
    assert "p.safetensors" in str(error.value)
    assert "train" in str(error.value)


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "pickle", "cut", "nan", "plain"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    """Four parts, whatever the file holds."""
    path = save_parameters(tmp_path / "p.safetensors", {"a": np.zeros(200)}, SCHEMA)
    data = path.read_bytes()
    if kind == "nan":
        save_parameters(path, {"a": np.array([1.0, np.nan])}, SCHEMA)
    elif kind == "plain":
        from safetensors.numpy import save

        path.write_bytes(save({"a": np.zeros(2)}))
    elif kind == "missing":
        path.unlink()
    else:
        other = {
            "empty": b"",
            "text": b"hello",
            "pickle": b"\x80\x04cos\nsystem\n",
            "cut": data[:-9],
        }
        path.write_bytes(other[kind])
    with pytest.raises(InputError) as error:
        load_parameters(path, SCHEMA)
    assert "p.safetensors" in str(error.value)


@pytest.mark.parametrize("planner", ["post", "hsdag", "doppler", "rnn"])
def test_parameters_that_do_not_fit_are_named(tmp_path: Path, planner: str) -> None:
    """A file whose header is right, with a parameter left out or of another shape."""
    pytest.importorskip("torch")
    small = "" if planner == "post" else "hidden=4"
    problem, path = drawn_graph(3, 12), tmp_path / "p.safetensors"
    train(problem, f"{planner}({small})", path, evaluations=30)
    chosen: Any = choose(planners(problem), f"{planner}({small})")[1]
    found, _ = load_parameters(path, chosen.schema(problem))
    name = sorted(found)[-1]
    lacking = {key: value for key, value in found.items() if key != name}
    options = ", ".join(x for x in (small, "samples=30", f"checkpoint={str(path)!r}") if x)
    for damaged in (lacking, lacking | {name: np.zeros((7, 7, 7))}):
        save_parameters(path, damaged, chosen.schema(problem))
        with pytest.raises(InputError, match=f"its parameter '{name}' does not fit") as error:
            solve(problem, f"{planner}({options})")
        assert planner in str(error.value)
        assert "train" in str(error.value)


def test_an_empty_path_is_said() -> None:
    """A message without a place would not help."""
    with pytest.raises(InputError, match=r"its path is empty: the checkpoint cannot be read"):
        load_parameters("", SCHEMA)


def test_importing_torch_is_not_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds until torch is there are added to the deadline; a second session adds none."""
    clock = iter((10.0, 12.5, 20.0, 20.0))
    monkeypatch.setattr(planner, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    deadline_s = time.perf_counter() + 60.0
    evaluations = Evaluations(tiny([[1.0, 1.0]] * 3), Context(deadline_s=deadline_s))
    begun_s = evaluations.begun_s
    with planner.torch_session(RnnPlacer(), evaluations):
        assert evaluations.context.deadline_s == deadline_s + 2.5
        assert evaluations.begun_s == begun_s + 2.5
    with planner.torch_session(RnnPlacer(), evaluations):
        assert evaluations.context.deadline_s == deadline_s + 2.5


SHORT = {
    "post": "edits=1, batch=6",
    "hp3c": "batch=6, groups=4, hidden=8",
    "rnn": "start='lists', batch=6, hidden=8",
    "placeto": "episodes=2, hidden=8",
    "hsdag": "window=6, hidden=8, imitation=3",
    "hsdag as published": "profile='as_published', window=6, hidden=8",
    "doppler": "batch=4, hidden=8, imitation=3",
    "doppler as published": "profile='as_published', hidden=8",
}


class AsOnAnAccelerator(TorchFunctionMode):
    """Refuses what tensors of an accelerator refuse: to be read by NumPy without a copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, unless it reads a tensor's memory."""
        named = kwargs or {}
        assert func is not torch.Tensor.numpy or named.get("force"), "NumPy reads a tensor"
        assert func is not torch.Tensor.__array__, "NumPy reads a tensor"
        return func(*args, **named)


@pytest.mark.parametrize("case", [case for case in SHORT if case != "post"])
def test_networks_may_be_on_an_accelerator(case: str) -> None:
    """What they return is copied before NumPy sees it."""
    chosen = choose(planners(layered()), f"{case.split()[0]}({SHORT[case]}, samples=40)")[1]
    with AsOnAnAccelerator():
        learned(chosen, Evaluations(layered(), Context(seed=3), limit=40))


@pytest.mark.parametrize("device", ["abacus", "meta", "xpu:7"])
def test_a_device_that_cannot_compute_is_refused(device: str) -> None:
    """Unknown, without values, not on this machine."""
    with pytest.raises(InputError, match=f"cannot compute on the device '{device}'"):
        solve(layered(), f"rnn(samples=10, device={device!r})")


@pytest.mark.parametrize("case", SHORT)
def test_what_the_policy_drew_is_told_apart(case: str) -> None:
    """From list schedules and edits; asked for alone it is the plan, of the same run."""
    problem, name = layered(), case.split()[0]
    run = Evaluations(problem, Context(seed=3), limit=60)
    learned(choose(planners(problem), f"{name}({SHORT[case]}, samples=60)")[1], run)
    assert run.best.score == run.best_of[run.best_origin].score
    assert run.best.score == min(start.score for start in run.best_of.values())
    assert all(np.isfinite((each.mean_s, each.entropy)).all() for each in run.updates)
    counts = [each.evaluations for each in run.updates]
    assert counts
    assert counts == sorted(set(counts))
    text = f"{name}({SHORT[case]}, samples=60, answer='policy')"
    alone = proposal_of(choose(planners(problem), text)[1](problem, Context(seed=3)))
    assert judge(problem, alone.plan).value == pytest.approx(run.policy_s())
    assert "the policy alone" in alone.note


def test_a_policy_that_drew_nothing_that_fits_has_no_plan() -> None:
    """The trivial plans have used up the evaluations."""
    problem = layered()
    planner = choose(planners(problem), "post(samples=1, answer='policy')")[1]
    with pytest.raises(UnsupportedError, match="drew no plan") as caught:
        planner(problem, Context())
    assert caught.value.hint
