"""LoadGen's Server scenario against a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import mlperf_client
from benchmarks.mlperf_client import Target, read_verdict, run_server_scenario

from placewright.errors import RunError
from placewright.requests.serving.load import infer_head, random_row, raw
from placewright.requests.serving.server import Running
from tests.requests.serving.models import family

pytest.importorskip("mlperf_loadgen")

QUERIES = 40


def target(running: Running, model: str = "double") -> Target:
    """Two samples."""
    made, rng = family(model), np.random.default_rng(0)
    rows = [random_row(made, rng) for _ in range(2)]
    needs = {"deadline_ms": 600_000}
    requests = tuple(infer_head(made, needs, row) + raw(row) for row in rows)
    return Target("127.0.0.1", int(running.url.rpartition(":")[2]), requests)


def test_every_query_is_answered(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All come back; so few are no proof that 99 % are in time, which LoadGen says."""
    monkeypatch.setattr(mlperf_client, "LEAST_QUERIES", QUERIES)
    verdict = run_server_scenario(target(running), 80.0, 60.0, 0.1, tmp_path)
    assert verdict.statuses == {"200": verdict.queries}
    assert verdict.queries >= QUERIES
    assert not verdict.valid
    assert 0 < verdict.p99_ms < float("inf")


def test_a_refused_query_counts_as_late(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is handed back after the target latency."""
    monkeypatch.setattr(mlperf_client, "LEAST_QUERIES", QUERIES)
    verdict = run_server_scenario(target(running, "nothing"), 80.0, 0.2, 0.1, tmp_path)
    assert verdict.statuses == {"404": verdict.queries}
    assert verdict.p99_ms > 200
    assert not verdict.valid


def test_the_verdict_of_loadgen_is_read(tmp_path: Path) -> None:
    """From LoadGen's summary."""
    path = tmp_path / "summary.txt"
    path.write_text(
        "Result is : VALID\n"
        "Completed samples per second    : 36.40\n"
        "Scheduled samples per second : 36.52\n"
        "99.00 percentile latency (ns)   : 91671622\n"
    )
    verdict = read_verdict(path, {"200": 1000})
    assert verdict.valid
    assert (verdict.scheduled_per_s, verdict.completed_per_s) == (36.52, 36.4)
    assert verdict.p99_ms == 91.671622
    with pytest.raises(RunError, match="no verdict"):
        read_verdict(tmp_path / "none.txt", {})
