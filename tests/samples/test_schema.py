"""Corrupted files of nodes and links: read, or an error that names file, field and fix."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InputError, PlacewrightError
from placewright.io.boundary import validate
from placewright.samples.files import problem_from, problem_json, read_problem
from placewright.samples.schema import SampleFile, problem_of
from tests.corruption import HOSTILE, value_paths, with_value

FULL: dict[str, Any] = {
    "schema_version": 1,
    "name": "full",
    "nodes": [
        {
            "name": "a",
            "classes": {"cat": 30, "dog": 10},
            "seconds_per_sample": "4ms",
            "seconds_per_batch": 0.01,
            "fixed_s": 0.5,
            "storage": 60,
            "keep": {"cat": 5},
            "uplink": "80Mbps",
        },
        {"name": "b", "classes": {"dog": 40}, "seconds_per_sample": 0.002, "keep": "all"},
        {"name": "c", "classes": {}, "seconds_per_sample": 1e-3, "downlink": "8Mbps"},
    ],
    "links": [
        {"from": "a", "to": "b", "bandwidth": "100Mbps", "latency": "1ms"},
        {"from": "c", "to": "b", "bandwidth": None, "send_bandwidth": 7e6, "price_per_byte": 1e-9},
    ],
    "sample_bytes": 60000,
    "epochs": 2,
    "batch": 8,
    "gradient_bytes": "1MB",
    "batches": "equal",
    "label_mix": 0.9,
    "protected": ["dog"],
    "forbid": [{"from": "b", "to": "a"}],
}

TABLE: dict[str, Any] = {
    "nodes": [{"name": n, "samples": 9, "seconds_per_sample": 1, "keep": 2} for n in ("x", "y")],
    "bandwidth": [[0, 1e3], [None, 0]],
    "receive_bandwidth": [[0, 2e3], [1e3, 0]],
    "sample_bytes": 100,
}

WORSE = (*HOSTILE, "a", "-3s", "10GiB", "1e999s", "nan", {"cat": -1})


def reading_error(data: Any) -> PlacewrightError | None:
    """The error of reading it; ``None`` for a problem that can be written and read back equal."""
    try:
        problem = problem_from(data, where="file.json", name="file")
    except PlacewrightError as error:
        return error
    written = json.dumps(problem_json(problem), allow_nan=False)
    back = problem_from(json.loads(written), where="file.json", name="file")
    assert back.hash() == problem.hash()
    return None


def test_the_files_are_valid_before_corruption() -> None:
    """Else nothing below would mean anything."""
    assert reading_error(FULL) is None
    assert reading_error(TABLE) is None


@settings(derandomize=True, max_examples=500)
@given(data=st.data())
def test_corrupted_values_are_named(data: st.DataObject) -> None:
    """One or two values replaced or missing: the file and the place in front, never a traceback."""
    made = data.draw(st.sampled_from((FULL, TABLE)))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(value_paths(made)))
        made = with_value(made, path, data.draw(st.sampled_from((..., *WORSE))))
    error = reading_error(made)
    if error is not None:
        assert error.what
        assert error.where.startswith("file.json")
        assert "next: " in str(error)


@pytest.mark.parametrize("data", [None, [], "nodes", 3, {"nodes": {}}, {"nodes": []}])
def test_what_is_no_file_at_all_is_refused(data: Any) -> None:
    """The keys it should have are named, or the one that is wrong."""
    error = reading_error(data)
    assert isinstance(error, InputError)
    assert "nodes" in str(error) or "sample_bytes" in str(error)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("nodes", 0, "uplink"), 0, "'a': uplink: must be above 0"),
        (("links", 1, "send_bandwidth"), 0, r"links\[1\].send_bandwidth: must be above 0"),
        (("links", 0, "to"), "a", "links 'a' with itself"),
        (("links", 1, "to"), "bb", "unknown node 'bb'"),
        (("links", 1), {"from": "b", "to": "a", "bandwidth": 1}, "'a' to 'b' is there twice|twice"),
        (("sample_bytes",), 0, "sample_bytes: must be a size above 0"),
        (("epochs",), 10**400, "epochs"),
        (("nodes", 0, "classes", "cat"), 10**30, "whole numbers"),
        (("nodes", 0, "samples"), 41, r"samples and classes differ \(41 and 40\)"),
        (("nodes", 1, "classes"), ..., "'b'.*has no classes while other nodes have"),
        (("nodes", 1, "keep"), 3, "must say how many of which class"),
        (("nodes", 1, "keep"), {"dgo": 3}, "unknown class 'dgo'"),
        (("batch",), ..., "batch: is needed to count the steps"),
        (("bandwidth",), [[0]], "links or bandwidth, not both"),
        (("receive_bandwidth",), [[0]], "receive_bandwidth: needs bandwidth"),
        (("relay",), True, "forbidden, but relays are allowed"),
    ],
)
def test_each_contradiction_has_its_words(path: tuple[Any, ...], value: Any, words: str) -> None:
    """Of everything that fields can say against each other."""
    with pytest.raises(InputError, match=words):
        problem_from(with_value(FULL, path, value), where="file.json", name="file")


def test_ports_are_as_slow_as_the_slowest_on_the_way() -> None:
    """Link, its ends, access links: bytes per second by hand."""
    problem = problem_of(validate(SampleFile, FULL, where="file.json"), "file")
    a, b, c = range(3)
    assert problem.send_s[a, b] == 60000 / 10e6
    assert problem.receive_s[a, b] == 60000 / 12.5e6
    assert problem.send_s[c, b] == 60000 / 7e6
    assert problem.receive_s[c, b] == 0.0
    assert problem.receive_s[b, c] == 60000 / 1e6
    assert problem.price_s[b, c] == 1e-9 * 60000
    assert problem.send_s[b, a] == float("inf")


def test_yaml_names_the_line(tmp_path: Path) -> None:
    """A spoilt field of a node, three lines down."""
    path = tmp_path / "n.yaml"
    path.write_text("nodes:\n  - name: a\n    samples: 3\n    seconds_per_sample: soon\n")
    with pytest.raises(InputError, match=r"n\.yaml, line 4: nodes\[0\]\.seconds_per_sample"):
        read_problem(path)
    path = tmp_path / "n.json"
    path.write_text(json.dumps(FULL))
    assert read_problem(path).name == "full"


def test_times_that_solvers_take_for_infinite_are_refused() -> None:
    """By the node that is slowest, whatever the field."""
    for field, value in (("seconds_per_sample", 1e308), ("fixed_s", 1e20)):
        nodes = copy.deepcopy(TABLE["nodes"])
        nodes[1][field] = value
        error = reading_error(TABLE | {"nodes": nodes})
        assert error is not None
        assert error.where == "file.json: file: node 'y'"
        assert "1e+15 s" in error.by
