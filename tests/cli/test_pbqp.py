"""``placewright pbqp solve``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from placewright.solvers import memory_search
from tests.cli.run_cli import run_cli

KEYS = {"problem", "value", "lower_bound", "gap", "status", "choices", "runtime_s", "seed"}


def file_of(folder: Path, limit: int) -> Path:
    """Cheap options are large: under a limit of 10 the second node gives way."""
    problem = {
        "name": "pair",
        "nodes": {
            "intervals": [[0, 4], [2, 6]],
            "costs": [[0, 9], [0, 5]],
            "usages": [[8, 1], [8, 1]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 1, 0]]},
        "usage_limit": limit,
    }
    path = folder / "pair.json"
    path.write_text(json.dumps({"problem": problem}))
    return path


def test_json_has_the_promised_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the file kept with -o is the same document."""
    out = tmp_path / "answer.json"
    source = f"iopddl:{file_of(tmp_path, 10)}"
    output = run_cli(capsys, "pbqp", "solve", source, "-f", "json", "-o", out, "--seed", 4)
    assert output.code == 0
    assert output.data.keys() >= KEYS
    assert (output.data["value"], output.data["choices"]) == (6, [0, 1])
    assert (output.data["status"], output.data["gap"], output.data["seed"]) == ("OPTIMAL", 0.0, 4)
    assert json.loads(out.read_text()) == output.data


def test_yaml_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers in other clothes."""
    source = f"iopddl:{file_of(tmp_path, 10)}"
    shown = run_cli(capsys, "pbqp", "solve", source, "-f", "yaml")
    assert yaml.safe_load(shown.out)["value"] == 6
    assert "lower_bound" in run_cli(capsys, "pbqp", "solve", source).out


def test_infeasible_says_when_and_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3."""
    output = run_cli(capsys, "pbqp", "solve", f"iopddl:{file_of(tmp_path, 1)}")
    assert (output.code, output.out) == (3, "")
    assert "moment 2" in output.err
    assert "1 above the limit 1" in output.err


def test_unnamed_format_and_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 with a way out; 2 where the usage is wrong."""
    output = run_cli(capsys, "pbqp", "solve", "pair.json")
    assert output.code == 1
    assert "iopddl:pair.json" in output.err
    assert run_cli(capsys, "pbqp", "solve", f"iopddl:{tmp_path}/none.json.gz").code == 1
    assert run_cli(capsys, "pbqp", "solve").code == 2


def test_interrupted_search_gives_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status INTERRUPTED, a note, exit code 0."""

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    rng = np.random.default_rng(0)
    size, sides = 5, range(25)
    pairs = [[i, i + 1] for i in sides if i % size < size - 1] + [[i, i + size] for i in range(20)]
    problem = {
        "nodes": {
            "intervals": [[0, 3]] * 25,
            "costs": rng.integers(0, 50, (25, 3)).tolist(),
            "usages": rng.integers(0, 9, (25, 3)).tolist(),
        },
        "edges": {"nodes": pairs, "costs": rng.integers(0, 50, (len(pairs), 9)).tolist()},
        "usage_limit": 75,
    }
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"problem": problem}))
    monkeypatch.setattr(memory_search, "prove", stop)
    monkeypatch.setattr(memory_search, "anneal", stop)
    output = run_cli(capsys, "pbqp", "solve", f"iopddl:{path}", "-f", "json")
    assert output.code == 0
    assert output.data["status"] == "INTERRUPTED"
    assert "best choice so far" in output.err
