"""Plans for workers whose devices slow each other down."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placewright.deployment import planning
from placewright.deployment.placing import place
from placewright.deployment.planning import Chooser, judged, planned, size_limit_s
from placewright.errors import WorkerError
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.streaming import trials
from placewright.operators.streaming.prediction import predicted
from placewright.planning.candidates import Status
from placewright.planning.contract import Listener
from placewright.planning.result import Result
from placewright.planning.solving import solve
from placewright.runtime.step_record import StepRecord
from tests.operators.test_run import DUO

SPLIT = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 0.0, []), (1, 0.0, [])])
"""Alone 6 s on the first device; on both 4 s, without interference."""


def with_interference(times: float) -> InterferenceProfile:
    """Interference makes everything so many times slower."""
    together = SPLIT.replace(compute_s=times * SPLIT.compute_s)
    return InterferenceProfile(SPLIT, together, np.full(SPLIT.m, times))


def results_of(known: InterferenceProfile, planner: str) -> tuple[Result, ...]:
    """Best first."""
    return planned(known, planner, time_limit_s=5.0, seed=0, monitor=Listener())


@pytest.mark.parametrize(("times", "value", "devices"), [(1.2, 4.8, 2), (2.0, 6.0, 1)])
def test_auto_weighs_interference_against_one_device(
    times: float, value: float, devices: int
) -> None:
    """A split is valued with interference, one device without."""
    found = results_of(with_interference(times), "auto")[0]
    assert found.value == pytest.approx(value)
    assert len(set(found.plan.placement.tolist())) == devices


def test_a_proof_without_interference_is_none_with_it() -> None:
    """With interference one device is best: without it, its value is below what was proved."""
    one = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 9.0, [1])], latency_s=9.0)
    twice = one.replace(compute_s=2 * one.compute_s)
    found = results_of(InterferenceProfile(one, twice, np.full(2, 2.0)), "exact")[0]
    assert found.value == pytest.approx(6.0)
    assert found.lower_bound <= 6.0


def test_a_plan_from_a_file_is_judged_by_its_kind(tmp_path: Path) -> None:
    """Whatever it was made for."""
    for planner, value in (("only:dev0", 6.0), ("exact", 8.0)):
        path = solve(SPLIT, planner).save(tmp_path / f"{value}.json")
        found = judged(with_interference(2.0), path)
        assert found.value == pytest.approx(value)
        assert found.status in (Status.OPTIMAL, Status.FEASIBLE)


class FakeSession:
    """Steps take 5 s on one device and 7 s on both, whatever was predicted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.placement: list[int] = []
        self.error = error

    def load(self, placement: list[int], order: list[int], *_: Any, **settings: Any) -> None:
        """Take in the plan."""
        self.placement = placement

    def run(self, steps: int) -> list[StepRecord]:
        """As many records; or the loss of a worker, where one device does everything."""
        alone = len(set(self.placement)) == 1
        if alone and self.error is not None:
            raise self.error
        return [StepRecord(0.0, 5.0 if alone else 7.0, ())] * steps


class FakeWorkers:
    """Hands out one session."""

    def __init__(self, name: str = "testbed", error: Exception | None = None) -> None:
        self.engine = SimpleNamespace(name=name)
        self.only, self.discarded, self.closed = FakeSession(error), 0, 0

    @contextmanager
    def session(self, load: Any) -> Iterator[FakeSession]:
        """Always the same one."""
        yield self.only

    def discard(self) -> None:
        """Count."""
        self.discarded += 1

    def close(self) -> None:
        """Count."""
        self.closed += 1


CLUSTER = SimpleNamespace(name="tiny", devices=())
LOAD: Any = SimpleNamespace(graph=1, cluster=CLUSTER, state={}, values={}, problem=SPLIT)


@pytest.mark.parametrize(
    ("engine", "trials", "devices"),
    [("testbed", True, 1), ("testbed", False, 2), ("local", True, 2)],
)
def test_the_closest_plans_of_auto_are_tried_on_real_workers(
    engine: str,
    trials: bool,
    devices: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The split is predicted to take 5.6 s, one device 6 s: executed it is the other way round."""
    known, workers = with_interference(1.4), FakeWorkers(engine)
    monkeypatch.setattr(Chooser, "calibrated", lambda chooser: known)
    monkeypatch.setattr(InterferenceProfile, "alike", lambda problem: known)
    any_workers: Any = workers
    with caplog.at_level(logging.INFO, logger="placewright"):
        chooser = Chooser(LOAD, any_workers, Listener())
        plan = chooser.choose(time_limit_s=5.0, trials=trials).result.plan
    assert len(set(plan.placement.tolist())) == devices
    assert ("only:dev0 5" in caplog.text) == (devices == 1)
    singles = [c.value for c in results_of(known, "auto")[0].candidates if c.planner == "only:dev0"]
    assert singles == pytest.approx([6.0])  # what it takes alone, on the page too


def test_ctrl_c_ends_the_trials_and_whoever_holds_them() -> None:
    """While the workers are started, or a plan is executed: nothing is run by another plan."""

    class Pressed(FakeWorkers):
        def session(self, load: Any) -> Any:
            raise KeyboardInterrupt

    known = with_interference(1.4)
    results = results_of(known, "auto")
    for stopped in (Pressed(), FakeWorkers(error=KeyboardInterrupt())):
        workers: Any = stopped
        with pytest.raises(KeyboardInterrupt):
            Chooser(LOAD, workers, Listener()).tried(known, results)


def test_a_plan_that_loses_a_worker_is_not_taken_and_others_have_new_workers() -> None:
    """Those that are left cannot be used: the session has lost one."""
    known, workers = with_interference(1.4), FakeWorkers(error=WorkerError("died", where="dev0"))
    results = results_of(known, "auto")
    any_workers: Any = workers
    found = Chooser(LOAD, any_workers, Listener()).tried(known, results)
    assert found.result.plan is results[0].plan
    assert workers.discarded == 1


def test_a_stream_that_is_taken_is_judged_by_what_it_took(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On real workers; the plans tried stand beside each other, predicted and measured."""
    monkeypatch.setattr(trials, "TURN_S", 0.02)
    monkeypatch.setattr(trials, "CLOSE", 9.0)  # one device is tried too
    monkeypatch.setattr(trials.StreamTrials, "budget_s", 0.2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    options: Any = {"method": "analytic", "objective": "throughput", "time_limit_s": 0.5}
    with place(model, torch.randn(16, 64), DUO, **options) as placed:
        known = placed.interference
        results = planned(known, "auto", time_limit_s=0.5, seed=0, monitor=Listener(), copies=True)
        with caplog.at_level(logging.INFO, logger="placewright"):
            chooser = Chooser(placed.workload, placed.workers, Listener())
            found = chooser.tried(known, results)
    taken = [each for each in found.tried if each.taken]
    assert 1 < len(found.tried) <= trials.MOST_TRIED
    assert len(taken) == 1
    assert f"{taken[0].planner} is run" in caplog.text
    result = found.result
    period_s = predicted(result.problem, result.plan).period_s
    assert period_s == pytest.approx(taken[0].measured_s, rel=0.1)
    assert result.lower_bound <= result.value * (1 + 1e-9)
    assert (found.known.of(result.plan).compute_s == result.problem.compute_s).all()


def test_workers_are_closed_where_planning_fails() -> None:
    """Nobody is left to close them."""
    workers = FakeWorkers("local")
    any_workers: Any = workers
    with pytest.raises(Exception, match="nobody"):
        Chooser(LOAD, any_workers, Listener()).choose(planner="nobody")
    assert workers.closed == 1


def test_without_a_time_limit_effort_follows_size_and_what_is_left_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One second first; longer only for what 1,000 steps could save, and up to a limit by size."""
    limits: list[float] = []
    claim: dict[str, Any] = {}
    made = {planner: solve(SPLIT, planner, time_limit_s=0.2) for planner in ("auto", "heft")}

    def noted(problem: Any, planner: Any, *, time_limit_s: float, **options: Any) -> Result:
        limits.append(time_limit_s)
        name: str = getattr(planner, "name", planner)
        return replace(made[name.partition("(")[0]], **claim)

    monkeypatch.setattr(planning, "solve", noted)
    monkeypatch.setattr(planning, "size_limit_s", lambda problem: 20.0)
    known = InterferenceProfile.alike(SPLIT)  # 4 s, so that 0.005 s less are 5 s in 1,000 steps
    for bound, status, planner, wanted in (
        (4.0 - 0.5, Status.FEASIBLE, "auto", [1.0, 20.0]),
        (4.0 - 0.05, Status.FEASIBLE, "auto(tolerance=0)", [1.0, 20.0]),
        (4.0 - 0.001, Status.FEASIBLE, "auto", [1.0]),
        (4.0, Status.OPTIMAL, "auto", [1.0]),
        (4.0 - 0.5, Status.FEASIBLE, "heft", [20.0]),
    ):
        limits.clear()
        claim.update(bound=bound, status=status)
        planned(known, planner, time_limit_s=None, seed=0, monitor=Listener())
        assert limits == wanted
        limits.clear()
        planned(known, planner, time_limit_s=0.7, seed=0, monitor=Listener())
        assert limits == [0.7]


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.OPTIMAL])
def test_ctrl_c_while_planning_ends_what_the_plan_is_for(
    status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the longer search, and where the plan is optimal: it says what was found."""
    first = solve(SPLIT, "auto", time_limit_s=0.2)
    pressed = replace(first, status=status, interrupted=True)
    open_ = replace(first, bound=1.0, status=Status.FEASIBLE)
    monkeypatch.setattr(planning, "size_limit_s", lambda problem: 20.0)
    known = InterferenceProfile.alike(SPLIT)
    for answers in ([pressed], [open_, pressed]):
        monkeypatch.setattr(planning, "solve", lambda *_, left=answers, **__: left.pop(0))
        with pytest.raises(KeyboardInterrupt, match=f"best plan so far is that of {first.planner}"):
            planned(known, "auto", time_limit_s=None, seed=0, monitor=Listener())
        assert not answers


@pytest.mark.parametrize(("n", "seconds"), [(10, 1.0), (2000, 8.0), (100_000, 60.0)])
def test_the_limit_by_size(n: int, seconds: float) -> None:
    """From one second to a minute."""
    assert size_limit_s(tiny([[1.0, 1.0]] * n, [])) == pytest.approx(seconds)
