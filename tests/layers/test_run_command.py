"""Verbs of `placewright layers run`: output and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from placewright.errors import InputError, UnknownNameError
from placewright.layers.commands import disturbances
from tests.cli.run_cli import run_cli


def test_a_run_trains_on_after_its_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Losses, events and learned weights; the loss is that of one process."""
    weights = tmp_path / "learned.safetensors"
    output = run_cli(
        capsys,
        *("layers", "run", "tests.cli.models:tiny_gpt", "--on", "edge-duo", "--planner", "data"),
        *("--steps", "1", "--train", "4", "--kill", "board-b:3", "--check", "-f", "json"),
        *("--weights", weights),
    )
    assert output.code == 0, output.err
    data = json.loads(output.out)
    trained = data["training"]
    assert len(trained["losses"]) == 4
    assert trained["max_rel_error"] < 1e-4
    kinds = [event["kind"] for event in trained["events"]]
    assert kinds.index("fault") < kinds.index("recover")
    assert trained["shares"] == "board-a 4"
    assert "scores.weight" in load_file(weights)
    assert data["speed_up_intervals"]["fastest worker"]["rounds"] == 1


@pytest.mark.parametrize(
    ("slow", "kill", "words"),
    [
        (["a:2"], [], "is not WORKER:STEP:TIMES"),
        (["a:0:2"], [], "steps count from 1"),
        (["a:2:-1"], [], "TIMES is a number above 0"),
        ([], ["a:x"], "is not WORKER:STEP"),
        ([], ["c:2"], "unknown worker 'c'"),
        ([], ["a:9"], "the run has 5"),
        (["a:2:3"], ["b:2"], "two disturbances"),
    ],
)
def test_wrong_disturbances_are_refused(slow: list[str], kill: list[str], words: str) -> None:
    """By name, with the form that is wanted."""
    with pytest.raises((InputError, UnknownNameError)) as found:
        disturbances(("a", "b"), 5, slow, kill)
    assert words in str(found.value)


def test_disturbances_by_step() -> None:
    """``inf`` kills."""
    found = disturbances(("a", "b:1"), 5, ["b:1:2:3.5"], ["a:4"])
    assert found == {2: ("b:1", 3.5), 4: ("a", math.inf)}


def test_a_published_input_without_its_format_is_told_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of another format, given as a problem of ours."""
    path = tmp_path / "resnet.json"
    path.write_text('{"nodes": []}')
    assert "piper:" in run_cli(capsys, "layers", "plan", path).err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zoo:gpt2",), "next: --on CLUSTER"),
        (("tests.cli.models:tiny_gpt",), "next: --on CLUSTER"),
        (("pipper:x.json",), "did you mean 'piper'"),
        (("problem.json", "--on", "edge-duo"), "leave --on out"),
        (("piper:x.json?devices=\N{SUPERSCRIPT TWO}",), "must be a whole number"),
    ],
)
def test_a_source_that_lacks_something_says_what(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is missing, and what to type next."""
    output = run_cli(capsys, "layers", "plan", *arguments)
    assert output.code == 1
    assert words in output.err


def test_layers_that_need_the_whole_batch_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    """With the option that lets them see parts of it."""
    model = ("layers", "plan", "tests.cli.models:dropped", "--on", "edge-duo")
    output = run_cli(capsys, *model)
    assert output.code == 0, output.err
    assert "1 of 2 layers have to see the whole batch" in output.err
    assert "dropout" in output.err
    assert "whole batch" not in run_cli(capsys, *model, "--approximate").err


def test_a_model_is_planned_for_workers_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its plan is simulated again, and trained by where workers are."""
    model, path = ("tests.cli.models:tiny_gpt", "--on", "edge-duo"), tmp_path / "plan.json"
    output = run_cli(capsys, "layers", "plan", *model, "--planner", "data", "-o", path)
    assert output.code == 0, output.err
    name, *on = model
    assert run_cli(capsys, "layers", "simulate", name, path, *on).code == 0
    output = run_cli(capsys, "layers", "run", name, path, *on, "--steps", "1")
    assert output.code == 0, output.err
    assert "plan.json" in output.out
