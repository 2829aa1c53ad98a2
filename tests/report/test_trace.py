"""Traces for Perfetto."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.report.trace import write_trace
from tests.report.examples import chain, measured, result_of


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def test_spans_are_those_of_the_trace(tmp_path: Path) -> None:
    """Every span is there with its name, track, start and length in microseconds."""
    trace = result_of(chain()).judgement.trace()
    spans = [
        e for e in read(write_trace(tmp_path / "t.json.gz", predicted=trace)) if e["ph"] == "X"
    ]
    assert [e["name"] for e in spans] == [trace.labels[k] for k in trace.label]
    assert [e["tid"] - 1 for e in spans] == trace.track.tolist()
    np.testing.assert_allclose([e["ts"] for e in spans], trace.start_s * 1e6, atol=1e-3)
    np.testing.assert_allclose([e["dur"] for e in spans], (trace.end_s - trace.start_s) * 1e6)


def test_predicted_and_measured_are_two_processes(tmp_path: Path) -> None:
    """Each with a name and a named thread per track."""
    result = result_of(chain())
    path = result.trace(tmp_path / "t.json.gz", measured(result))
    meta = [e for e in read(path) if e["ph"] == "M"]
    named = {e["pid"]: e["args"]["name"] for e in meta if e["name"] == "process_name"}
    assert named == {1: "predicted", 2: "measured"}
    threads = [e["args"]["name"] for e in meta if e["name"] == "thread_name" and e["pid"] == 1]
    assert threads == ["device dev0", "device dev1", "link dev0->dev1", "link dev1->dev0"]


def test_memory_is_a_counter_that_ends_where_the_curve_ends(tmp_path: Path) -> None:
    """One counter per device."""
    trace = result_of(chain()).judgement.trace()
    events = read(write_trace(tmp_path / "t.json.gz", predicted=trace))
    for curve in trace.memory:
        name = f"memory {trace.tracks[curve.track]}"
        values = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == name]
        assert values == curve.held_bytes.tolist()


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_same_trace_same_bytes(tmp_path: Path, name: str) -> None:
    """No time stamp, compressed or not."""
    trace = result_of(chain()).judgement.trace()
    first = write_trace(tmp_path / name, predicted=trace).read_bytes()
    assert first == write_trace(tmp_path / name, predicted=trace).read_bytes()
    assert first[:1] == (b"{" if name == "t.json" else b"\x1f")
