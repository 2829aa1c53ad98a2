"""Measured plans: what is read, what is never read, and how near the predictions are."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.layers.judge import judge
from placewright.layers.readers.strategy import read_strategy
from tests.published import published

HIDDEN = ("source", "measured", "suspect", "reference")


def stripped(path: Path, folder: Path) -> Path:
    """A file as it is handed over for scoring."""
    data = {k: v for k, v in json.loads(path.read_text()).items() if k not in HIDDEN}
    copy = folder / path.name
    copy.write_text(json.dumps(data))
    return copy


def scored(name: str, folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Measured and predicted steps, and relative errors of memory."""
    measured, predicted, memory = [], [], []
    for path in sorted(published(f"strategies/{name}").glob("*.json")):
        truth = json.loads(path.read_text())["measured"]
        if truth["step_s"] is None:
            continue
        judged = judge(*read_strategy(stripped(path, folder)))
        measured.append(truth["step_s"])
        predicted.append(judged.value)
        if judged.peak_memory_bytes is not None and truth.get("peak_memory_bytes"):
            memory.append(abs(judged.peak_memory_bytes / truth["peak_memory_bytes"] - 1))
    return measured, predicted, memory


def spearman(one: list[float], other: list[float]) -> float:
    """Rank correlation without ties."""
    ranks = [np.argsort(np.argsort(x)) for x in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize(
    ("name", "error", "correlation"),
    [
        ("sailor/opt-350-gh200", 0.06, 0.96),
        ("amp/homogeneous", 0.20, 0.95),
        ("amp/het_model", 0.10, 0.90),
    ],
)
def test_predictions_are_near_other_peoples_measurements(
    name: str, error: float, correlation: float, tmp_path: Path
) -> None:
    """Median error of the step, rank correlation, and memory where it was measured."""
    measured, predicted, memory = scored(name, tmp_path)
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    assert statistics.median(errors) <= error
    assert spearman(measured, predicted) >= correlation
    assert not memory or statistics.median(memory) <= 0.05


def test_what_was_measured_is_never_read(tmp_path: Path) -> None:
    """The same prediction with and without, and with absurd figures in its place."""
    path = published("strategies/sailor/opt-350-gh200/N2_D1.json")
    data = json.loads(path.read_text())
    data["measured"] = {"step_s": 1e9}
    absurd = tmp_path / "absurd.json"
    absurd.write_text(json.dumps(data))
    found = [judge(*read_strategy(x)).value for x in (path, stripped(path, tmp_path), absurd)]
    assert len(set(found)) == 1


def test_unknown_memory_is_null_and_links_share_the_card() -> None:
    """AMP's files keep no activations; four replicas on one node share its network."""
    p, plan = read_strategy(published("strategies/amp/het_model/mbs1_tp1_dp4_pp4.json"))
    assert judge(p, plan).peak_memory_bytes is None
    link = p.links[int(p.link_index[0, 1])]
    assert link.seconds(1e9, 4) == pytest.approx(4 * link.seconds(1e9, 1))
    assert math.isclose(link.seconds(1.25e9), 1.0)


def test_files_that_are_none_are_refused_by_field(tmp_path: Path) -> None:
    """By the file and the key."""
    path = tmp_path / "x.json"
    path.write_text('{"format": "strategy-exam/2"}')
    with pytest.raises(InputError, match="is no measured plan"):
        read_strategy(path)
    path.write_text('{"format": "strategy-exam/1", "model": {}}')
    with pytest.raises(InputError, match="'layers' is missing"):
        read_strategy(path)
