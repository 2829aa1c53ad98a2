"""``placewright samples``: plan, compare, simulate, generate, run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import RunError
from placewright.samples.adaptive import AdaptiveEpoch
from placewright.samples.training.node_training import Epoch, Recipe
from tests.cli.run_cli import run_cli


@pytest.fixture
def nodes_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Eight nodes, heavy."""
    path = tmp_path / "nodes.yaml"
    made = run_cli(capsys, "samples", "generate", "heavy", "--nodes", 8, "-o", path, "-q")
    assert made.code == 0
    return path


def test_a_plan_says_what_it_is_worth(
    nodes_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Value, bound, moves; and simulate agrees with it."""
    saved = tmp_path / "plan.json"
    output = run_cli(
        capsys, "samples", "plan", nodes_file, "--planner", "lp", "-f", "json", "-o", saved
    )
    assert output.code == 0
    data = output.data
    assert data["lower_bound"] <= data["value"] <= 1.02 * data["lower_bound"]
    assert data["plan"]["speed_up"] > 1.5
    assert {"from", "to", "samples"} <= data["plan"]["moves"][0].keys()
    assert sum(n["samples_after"] - n["samples_before"] for n in data["plan"]["nodes"]) == 0
    again = run_cli(capsys, "samples", "simulate", nodes_file, saved, "-f", "json")
    assert again.data["value"] == data["value"]
    queued = run_cli(
        capsys, "samples", "simulate", nodes_file, saved, "--ports", "queued", "-f", "json"
    )
    assert queued.data["value"] == pytest.approx(data["plan"]["played_s"])


def test_compare_shows_every_planner(nodes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    output = run_cli(capsys, "samples", "compare", nodes_file, "--time-limit", 2)
    assert output.code == 0
    assert all(
        name in output.out for name in ("none", "proportional", "greedy", "nic", "lp", "ilp")
    )


def test_the_table_shows_the_moves_of_each_node(
    nodes_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Speed-up over not moving, and a page with the flows."""
    page = tmp_path / "plan.html"
    output = run_cli(capsys, "samples", "plan", nodes_file, "--planner", "greedy", "--report", page)
    assert "times as fast as not moving" in output.out
    text = page.read_text(encoding="utf-8")
    assert "Map of flows" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_too_much_data_is_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and by how many samples."""
    path = tmp_path / "full.json"
    path.write_text(
        '{"nodes": [{"name": "a", "samples": 9, "seconds_per_sample": 1, "storage": 7}],'
        ' "sample_bytes": 1}'
    )
    output = run_cli(capsys, "samples", "plan", path)
    assert output.code == 3
    assert "2 samples too many" in output.err


def test_an_unknown_regime_has_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As every unknown name."""
    output = run_cli(capsys, "samples", "generate", "heavi")
    assert output.code == 1
    assert "did you mean 'heavy'" in output.err


def test_the_schema_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    """Of nodes and of plans."""
    assert "nodes" in run_cli(capsys, "schema", "samples").data["properties"]
    assert "plan" in run_cli(capsys, "schema", "samples-plan").data["properties"]


def test_a_run_is_measured_beside_its_baselines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prediction and measurement, a note of what no machine computes, a page; a wrong baseline."""
    pytest.importorskip("torch")
    path, page = tmp_path / "two.json", tmp_path / "run.html"
    path.write_text(
        '{"nodes": [{"name": "a", "samples": 60, "seconds_per_sample": 0.1},'
        ' {"name": "b", "samples": 6, "seconds_per_sample": 0.1}],'
        ' "links": [{"from": "a", "to": "b", "bandwidth": 1e6}], "sample_bytes": 1000}'
    )
    command = ("samples", "run", path, "--speed", 1e5, "--baseline", "none", "--report", page)
    output = run_cli(capsys, *command, "-f", "json")
    assert output.code == 0
    assert "this machine cannot compute as fast" in output.err
    assert "Predicted beside measured" in page.read_text(encoding="utf-8")
    ours, still = output.data["runs"]
    assert ours["moved_samples"] == 27
    assert still["moved_samples"] == 0
    assert still["predicted_s"] == pytest.approx(6.0)
    assert output.data["emulated"]
    wrong = run_cli(capsys, "samples", "run", path, "--baseline", "fedavgs")
    assert "did you mean 'fedavg'" in wrong.err


TWO = (
    '{"nodes": [{"name": "a", "samples": 60, "seconds_per_sample": 0.1},'
    ' {"name": "b", "samples": 60, "seconds_per_sample": 0.1}],'
    ' "links": [{"from": "a", "to": "b", "bandwidth": 1e6}], "sample_bytes": 1000, "epochs": 3}'
)


def test_a_run_plans_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is slower from the first epoch on: samples move before the second."""
    pytest.importorskip("torch")
    monkeypatch.setattr("placewright.samples.adaptive.DRIFT", 1.0)  # others slow the machine down
    path, page = tmp_path / "two.json", tmp_path / "run.html"
    path.write_text(TWO)
    command = ("samples", "run", path, "--adapt", "--slow", "a:1:4", "--planner", "lp")
    output = run_cli(capsys, *command, "--speed", 20, "--report", page, "-f", "json")
    assert output.code == 0
    first, second, third = output.data["epochs"]
    assert (first["moved_samples"], third["moved_samples"]) == (0, 0)
    assert second["planned"]
    assert second["moved_samples"] > 15
    assert output.data["measured_s"] >= sum(e["measured_s"] for e in output.data["epochs"])
    assert "Samples of each node" in page.read_text(encoding="utf-8")


NET = """
import torch

def net():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.randn({rows}, 3), torch.nn.MSELoss(), torch.randn({rows}, 2)
"""


def test_nodes_train_a_model_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of the factory's batch are the samples; too few of them are refused."""
    path, factory = tmp_path / "two.json", tmp_path / "own_net.py"
    path.write_text(TWO)
    factory.write_text(NET.format(rows=120))
    options = ("--epochs", 2, "--speed", 100, "--baseline", "none", "--optimizer", "adam")
    command = ("samples", "run", path, "--model", f"{factory}:net", *options)
    output = run_cli(capsys, *command, "--lr", 0.05, "-f", "json")
    assert output.code == 0
    first, last = output.data["runs"][0]["epochs"]
    assert last["loss"] < first["loss"]
    assert last["test_loss"] == last["loss"]
    assert last["accuracy"] is None
    few = tmp_path / "few_rows.py"
    few.write_text(NET.format(rows=100))
    wrong = run_cli(capsys, "samples", "run", path, "--model", f"{few}:net")
    assert wrong.code == 1
    assert "100, the nodes have 120" in wrong.err


READS = """
import torch

def read(path):
    x, y = path.read_text().split()
    return torch.tensor([float(x)]), int(y)

def net():
    return {"model": torch.nn.Linear(1, 2), "loss_fn": torch.nn.CrossEntropyLoss(), "read": read}

def old():
    return torch.nn.Linear(1, 2), torch.randn(2, 1), torch.nn.MSELoss(), torch.randn(2, 2)

def odd():
    return {**net(), "colate": None}
"""


def test_files_of_nodes_train_a_model_and_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of files replace those of the nodes; what a factory returns must fit."""
    path, factory, kept = tmp_path / "two.json", tmp_path / "reads_files.py", tmp_path / "kept"
    path.write_text(TWO)
    factory.write_text(READS)
    for name, count in (("data/a", 9), ("data/b", 5), ("test", 4)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for k in range(count):
            (folder / f"{k}.txt").write_text(f"{k} {k % 2}")
    files = ("--data", tmp_path / "data", "--test", tmp_path / "test")
    command = ("samples", "run", path, *files, "--speed", 1000, "-f", "json")
    adapt = ("--adapt", "--planner", "none", "--checkpoint", kept, "--model", f"{factory}:net")
    first = run_cli(capsys, *command, *adapt, "--epochs", 1)
    (epoch,) = first.data["epochs"]
    assert epoch["held"] == {"a": 9, "b": 5}
    assert 0 <= epoch["accuracy"] <= 1
    again = run_cli(capsys, *command, *adapt, "--resume").data["epochs"]
    assert [epoch["epoch"] for epoch in again] == [2, 3]
    wrong = run_cli(capsys, *command, "--model", f"{factory}:old")
    assert "must return a dict with model, loss_fn and read" in wrong.err
    wrong = run_cli(capsys, *command, "--model", f"{factory}:odd")
    assert "did you mean 'collate'" in wrong.err
    assert "go with --data and --model" in run_cli(capsys, *command).err
    (tmp_path / "data" / "b" / "3.txt").write_text("")
    wrong = run_cli(capsys, *command, "--model", f"{factory}:net", "--baseline", "none")
    assert "the file is empty" in wrong.err
    assert "b/3.txt" in wrong.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume",), "go with --adapt"),
        (("--kill", "a:1"), "go with --adapt"),
        (("--adapt", "--kill", "aa:1"), "did you mean 'a'"),
        (("--adapt", "--slow", "a:one:2"), "NODE:EPOCH:TIMES"),
        (("--adapt", "plan.json"), "takes no plan"),
        (("--adapt", "--kill", "a:inf"), "is not NODE:EPOCH"),
        (("--adapt", "--kill", "a:1.5"), "is not NODE:EPOCH"),
        (("--adapt", "--slow", "a:2:inf"), "is not NODE:EPOCH:TIMES"),
        (("--adapt", "--slow", "a:2:0"), "is not NODE:EPOCH:TIMES"),
        (("--adapt", "--kill", "a:4"), "after the last epoch (the run has 3)"),
        (("--adapt", "--baseline", "none"), "no baselines"),
        (("plan.json", "--planner", "lp"), "--planner: a plan that is given"),
        (("plan.json", "--time-limit", 3), "--time-limit: a plan that is given"),
    ],
)
def test_impossible_disturbances_are_refused(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything starts."""
    path = tmp_path / "two.json"
    path.write_text(TWO)
    output = run_cli(capsys, "samples", "run", path, *options)
    assert output.code == 1
    assert message in output.err


def test_finished_epochs_are_written_before_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adaptive run that fails in its second epoch; planning had the seed and the time asked."""
    pytest.importorskip("torch")
    settings: dict[str, Any] = {}

    class Failing:
        state = None

        def __init__(
            self, problem: Any, shards: Any, digests: Any, recipe: Recipe, *_: Any, **x: Any
        ):
            settings.update(x, seed=recipe.seed)

        def steps(self) -> Iterator[AdaptiveEpoch]:
            yield AdaptiveEpoch(
                1, Epoch(1.0, 2.0, 2.0, 0.5), True, 7, 0.5, ("b",), 60, {"a": 60}, "no way"
            )
            raise RunError("a sample was lost")

    monkeypatch.setattr("placewright.samples.adaptive.Adaptive", Failing)
    path, kept, page = (tmp_path / name for name in ("two.json", "run.json", "run.html"))
    path.write_text(TWO)
    command = ("samples", "run", path, "--adapt", "--time-limit", 4, "--seed", 9)
    output = run_cli(capsys, *command, "-o", kept, "--report", page)
    assert output.code == 1
    assert "a sample was lost" in output.err
    assert "not planned again: no way" in output.err
    assert "7 samples" in output.out or "no plan" in output.out
    assert json.loads(kept.read_text())["epochs"][0]["unplanned"] == "no way"
    assert "Samples of each node" in page.read_text(encoding="utf-8")
    assert (settings["planning_s"], settings["seed"]) == (4.0, 9)


@pytest.mark.parametrize("end", ["yaml", "json.gz", "yml.gz"])
def test_plans_come_back_from_any_file(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes and plan, named by their ends; packed where they say so."""
    nodes, plan = tmp_path / f"nodes.{end}", tmp_path / f"plan.{end}"
    assert run_cli(capsys, "samples", "generate", "mild", "--nodes", 4, "-o", nodes, "-q").code == 0
    command = ("samples", "plan", nodes, "--planner", "greedy", "-o", plan, "-f", "json")
    made = run_cli(capsys, *command).data
    assert (
        run_cli(capsys, "samples", "simulate", nodes, plan, "-f", "json").data["value"]
        == (made["value"])
    )
    assert (plan.read_bytes()[:2] == b"\x1f\x8b") == end.endswith("gz")
    page = tmp_path / "plan.html"
    assert run_cli(capsys, "show", plan, "-o", page, "--no-open").code == 0
    assert "mild-4-0" in page.read_text(encoding="utf-8")


def test_more_nodes_than_any_memory_holds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With their number."""
    output = run_cli(capsys, "samples", "generate", "mild", "--nodes", 300_000)
    assert output.code == 1
    assert "300000 nodes are too many" in output.err
