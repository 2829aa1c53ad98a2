"""What load sends: recorded rows in turns, and the needs of other requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from placewright.errors import InputError, UnknownNameError
from placewright.requests.files import problem_from
from placewright.requests.problem import RequestProblem
from placewright.requests.serving import load
from placewright.requests.serving.families import FamilyLayout, Variant, make_family
from placewright.requests.serving.load import Target, Traffic, made_stream, recorded_rows
from placewright.requests.stream import stream_of
from tests.requests.serving.models import family
from tests.requests.serving.test_families import model_of


def saved(path: Path, **arrays: Any) -> Path:
    """A file of rows."""
    np.savez(path, **arrays)
    return path


def test_recorded_rows_are_sent_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own bytes, over and over."""
    sent: list[Any] = []
    monkeypatch.setattr(load, "send", sent.append)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = family()
    found = recorded_rows(saved(tmp_path / "rows.npz", x=rows), [made])
    target = Target("http://127.0.0.1:1", [made], lambda: pytest.fail("not simulated"), rows=found)
    target.play(stream_of(np.arange(7) / 10, np.full(7, 0.1)))
    (schedule,) = sent
    assert schedule.payload.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert bytes(schedule.payloads) == rows.tobytes()


def test_rows_that_a_server_would_refuse(tmp_path: Path) -> None:
    """Another shape, several families, and sizes of which there is no row."""
    wrong = saved(tmp_path / "wrong.npz", x=np.zeros((2, 5), np.float32))
    with pytest.raises(InputError, match=r"row 0: the server refuses it \(input 'x' has shape"):
        recorded_rows(wrong, [family()])
    with pytest.raises(InputError, match="of one family"):
        recorded_rows(wrong, [family("one"), family("two")])


def needs(family_name: str) -> RequestProblem:
    """Requests of a family, of which every other is urgent."""
    arrivals = [
        {"family": family_name, "rate": 20, "deadline": "0.25s", "min_accuracy": 0.5},
        {"family": family_name, "rate": 20, "deadline": "4s"},
    ]
    data = {
        "variants": [{"name": "v", "family": family_name, "accuracy": 0.9}],
        "servers": [{"name": "a", "latency": {"v": ["8ms"]}}],
        "duration": 5,
        "arrivals": arrivals,
    }
    return problem_from(data, where="needs", name="needs")


def test_needs_are_those_of_other_requests() -> None:
    """Deadlines with their accuracies, at the arrivals that were asked for."""
    service = needs("double").service
    traffic = Traffic(duration_s=5.0, deadlines=2.0, needs=needs("double"))
    found = made_stream(service, traffic, 40.0)
    pairs = {*zip(found.deadline_s.tolist(), found.min_accuracy.tolist(), strict=True)}
    assert pairs == {(0.5, 0.5), (8.0, 0.0)}
    usual = made_stream(service, replace(traffic, needs=None), 40.0)
    assert np.array_equal(found.arrival_s, usual.arrival_s)
    with pytest.raises(UnknownNameError, match="'other'"):
        made_stream(service, replace(traffic, needs=needs("other")), 40.0)


def test_rows_go_to_the_bucket_of_their_sizes(tmp_path: Path) -> None:
    """Sizes that are served and not recorded are named."""
    data = model_of([helper.make_node("Relu", ["x"], ["y"])], columns="m", inside=[], y=["n", "m"])
    layout = FamilyLayout({"m": (4, 8)}, padding=True)
    buckets = make_family("m", [Variant("v", 0.9, data)], layout).buckets()
    for columns in (8, 3):
        file = saved(tmp_path / "rows.npz", x=np.ones((2, columns), np.float32))
        with pytest.raises(InputError, match="has no row for m@m="):
            recorded_rows(file, buckets)
    file = saved(tmp_path / "rows.npz", x=np.ones((2, 9), np.float32))
    with pytest.raises(InputError, match="m is 9, served is up to"):
        recorded_rows(file, buckets)
