"""Files of measured runs: read back equal, extended, refused where damaged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InputError
from placewright.operators.residual import MeasuredRun, fit
from placewright.operators.residual_features import FEATURES
from placewright.operators.residual_files import add_run, read_residual, read_runs, write_runs


def runs(models: int = 3) -> list[MeasuredRun]:
    """Two runs of each model, with numbers that no short decimal holds."""
    return [
        MeasuredRun(
            f"m{k}",
            ("a", "b"),
            ((f"kind{i}", "a", (k + i) / 7, k / 3, 1 / 7), ("transfer", "", i / 7, 2.0, 6 / 7)),
            0.1,
            0.1 + k / 3,
        )
        for k in range(models)
        for i in range(2)
    ]


@pytest.mark.parametrize("name", ["runs.json", "runs.yaml", "runs.json.gz"])
def test_runs_are_read_back_equal(tmp_path: Path, name: str) -> None:
    """To the last bit, and so is what is fitted to them."""
    file = write_runs(runs(), tmp_path / name)
    assert read_runs(file) == tuple(runs())
    read, fitted = read_residual(file), fit(runs())
    assert read.weights.tolist() == fitted.weights.tolist()
    assert (read.runs, read.half_log) == (fitted.runs, fitted.half_log)


def test_runs_are_added(tmp_path: Path) -> None:
    """The first one makes the file."""
    file = tmp_path / "runs.json"
    assert [add_run(run, file) for run in runs()] == [1, 2, 3, 4, 5, 6]
    assert read_runs(file) == tuple(runs())


def test_runs_that_processes_add_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """To a file that is there and still empty."""
    file = tmp_path / "runs.json.gz"
    file.touch()  # as mktemp leaves it
    with ThreadPoolExecutor(4) as pool:  # a lock belongs to an open file, not to a process
        counts = list(pool.map(lambda _: add_run(runs()[0], file), range(40)))
    assert sorted(counts) == list(range(1, 41))
    assert len(read_runs(file)) == 40


def _changed(**changes: Any) -> Any:
    return lambda data: data | changes


def _run(**changes: Any) -> Any:
    return lambda data: data | {"measured_runs": [data["measured_runs"][0] | changes]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_changed(features_version=1), ("another version", "version 1, this is 3", "--record")),
        (
            _changed(features=[*FEATURES[1:], "phase of the moon"]),
            ("other features", "phase of the moon", FEATURES[0]),
        ),
        (_changed(features=list(FEATURES[::-1])), ("other features", "another order")),
        (_changed(schema_version=2), ("schema_version",)),
        (_changed(weights=[1]), ("weights",)),
        (_changed(measured_runs=[]), ("at least two models", "0 runs of 0 models")),
        (_run(), ("at least two models", "1 runs of 1 models", "m0")),
        (_run(features=[["a", "b", 1.0]]), ("measured_runs[0].features[0]",)),
        (_run(measured_s=0), ("measured_runs[0].measured_s",)),
        (_run(predicted_s=-1), ("measured_runs[0].predicted_s",)),
        (_run(measured_s="NaN"), ("measured_runs[0].measured_s",)),
        (_run(features=[["a", "b", 1, 2, "inf"]]), ("measured_runs[0].features[0]",)),
        (_run(features=[["a", "b", 1, 2, -0.5]]), ("measured_runs[0].features[0]",)),
        (_run(features=[]), ("measured_runs[0].features",)),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, change: Any, named: tuple[str, ...]) -> None:
    """File, field, what it has, and what to do next."""
    file = write_runs(runs(), tmp_path / "runs.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(InputError) as refused:
        read_residual(file)
    text = str(refused.value)
    assert str(file) in text
    assert "next:" in text
    for word in named:
        assert word in text


def test_runs_of_overheads_alone_are_corrected_to_a_number(tmp_path: Path) -> None:
    """No command writes such a run."""
    only = [MeasuredRun(f"m{k}", ("a",), (("per operator", "", 0, 0, 0.5),), 1, 2) for k in "abc"]
    model = read_residual(write_runs(only, tmp_path / "runs.json"))
    assert 1 < model.corrected_run(only[0].features, 1.0, ("a",)).seconds < 3


def test_a_damaged_file_is_refused_and_kept(tmp_path: Path) -> None:
    """Cut off, a list, none at all; adding to it does not replace it."""
    file = write_runs(runs(), tmp_path / "runs.json")
    cut = file.read_text()[:300]
    file.write_text(cut)
    with pytest.raises(InputError, match="not valid JSON"):
        add_run(runs()[0], file)
    assert file.read_text() == cut
    file.write_text("[]")
    with pytest.raises(InputError, match="must be a mapping"):
        read_runs(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_residual(tmp_path / "none.json")
