"""The file format of the IOPDDL contest."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.published import published

from placewright.errors import InputError
from placewright.solvers.iopddl import read_iopddl

GOOD: dict[str, Any] = {
    "problem": {
        "name": "two",
        "nodes": {
            "intervals": [[0, 5], [2, 4]],
            "costs": [[1, 2], [3, 10**18, 5]],
            "usages": [[4, 1], [2, 2, 9]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3, 4, 5]]},
        "usage_limit": 8,
    }
}


def written(folder: Path, data: Any, name: str = "two.json.gz") -> Path:
    """`data` as a file."""
    path = folder / name
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def changed(*steps: Any, to: Any) -> Any:
    """GOOD with the entry at this path replaced; removed where `to` is ``None``."""
    data = copy.deepcopy(GOOD)
    here: Any = data
    for step in steps[:-1]:
        here = here[step]
    if to is None:
        del here[steps[-1]]
    else:
        here[steps[-1]] = to
    return data


@pytest.mark.parametrize("name", ["two.json", "two.json.gz"])
def test_costs_usages_and_intervals_are_read(tmp_path: Path, name: str) -> None:
    """Matrices row by row, the contest's infinity forbids, intervals are half-open."""
    problem = read_iopddl(written(tmp_path, GOOD, name))
    assert problem.name == "two"
    assert problem.value([1, 2]) == 2 + 5 + 5
    assert problem.value([0, 1]) == np.inf
    assert problem.peak([0, 2]) == (13, 2)
    assert problem.peak([1, 0]) == (3, 2)


def test_parallel_edges_and_loops_are_added_up(tmp_path: Path) -> None:
    """Whichever way round they are written."""
    data = copy.deepcopy(GOOD)
    data["problem"]["edges"] = {
        "nodes": [[0, 1], [1, 0], [1, 1]],
        "costs": [[0, 1, 2, 3, 4, 5], [10, 20, 30, 40, 50, 60], [7, 0, 0, 0, 0, 0, 0, 0, 9]],
    }
    problem = read_iopddl(written(tmp_path, data))
    assert problem.value([1, 2]) == (2 + 5) + (5 + 60) + 9
    assert problem.value([0, 0]) == (1 + 3) + (0 + 10) + 7


def test_a_node_may_never_live(tmp_path: Path) -> None:
    """An empty interval uses nothing."""
    for empty in ([], [3, 3], [3, 1]):
        data = changed("problem", "nodes", "intervals", 0, to=empty)
        assert read_iopddl(written(tmp_path, data)).peak([0, 0]) == (2, 2)


WRONG = [
    (changed("problem", to=None), "problem: is missing"),
    (changed("problem", "nodes", to=None), "problem.nodes: is missing"),
    (changed("problem", "nodes", "costs", to=None), r"problem.nodes.costs: is missing"),
    (changed("problem", "edges", to=[]), "problem.edges: must be a dict"),
    (changed("problem", "nodes", "costs", 1, to=7), r"nodes.costs\[1\]: must be a list"),
    (changed("problem", "nodes", "costs", 1, to=[]), r"usages\[1\]: has the wrong length"),
    (changed("problem", "nodes", "costs", 1, 0, to=-3), r"costs\[1\]\[0\]: must be a whole.*-3"),
    (changed("problem", "nodes", "costs", 1, 0, to="x"), r"costs\[1\]\[0\]: must be a whole.*'x'"),
    (changed("problem", "nodes", "costs", 1, 0, to=2.5), r"costs\[1\]\[0\]: must be a whole.*2.5"),
    (changed("problem", "nodes", "costs", 1, 0, to=10**30), r"costs\[1\]\[0\]: must be a whole"),
    (changed("problem", "nodes", "costs", 1, 0, to=[1]), r"costs\[1\]\[0\]: must be a whole"),
    (changed("problem", "nodes", "usages", to=[[[1], [2]]]), r"usages\[0\]\[0\]: must be a whole"),
    (changed("problem", "nodes", "costs", 1, 0, to=2**54), "neither exact nor forbidden"),
    (changed("problem", "nodes", "usages", 0, to=[1]), r"usages\[0\]: has the wrong length"),
    (changed("problem", "nodes", "usages", to=[[1, 1]]), r"usages: has the wrong length"),
    (changed("problem", "nodes", "usages", 0, 0, to=2**62), "more than 2.62"),
    (changed("problem", "nodes", "intervals", 0, to=[1]), r"intervals\[0\]: has the wrong length"),
    (changed("problem", "nodes", "intervals", to=[[0, 1]]), "intervals: has the wrong length"),
    (changed("problem", "edges", "nodes", 0, to=[0, 2]), r"edges.nodes\[0\]: no such node"),
    (changed("problem", "edges", "nodes", 0, to=[0]), r"edges.nodes\[0\]: has the wrong length"),
    (changed("problem", "edges", "costs", 0, to=[1]), r"edges.costs\[0\]: has the wrong length"),
    (changed("problem", "edges", "costs", to=[]), "edges.costs: has the wrong length"),
    (changed("problem", "usage_limit", to=-1), "usage_limit: must not be negative"),
    (changed("problem", "usage_limit", to="8"), "usage_limit: must be a whole number"),
    ([1, 2], "file: is not an object"),
    (b"{", "is not valid JSON"),
    (b"\xff\xfe", "gzip"),
]


@pytest.mark.parametrize(("data", "message"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, data: Any, message: str) -> None:
    """File and field, and what was found there."""
    path = written(tmp_path, data)
    with pytest.raises(InputError, match=message) as raised:
        read_iopddl(path)
    assert "two" in str(raised.value)


def test_broken_compression_is_named(tmp_path: Path) -> None:
    """Not gzip at all, or cut off."""
    whole = gzip.compress(json.dumps(GOOD).encode())
    for broken in (b"nothing", whole[:-20]):
        path = tmp_path / "broken.json.gz"
        path.write_bytes(broken)
        with pytest.raises(InputError, match="cannot be read as gzip"):
            read_iopddl(path)


@pytest.mark.parametrize(("file", "nodes"), [("B", 816), ("A", 34_932), ("P", 65_335)])
def test_contest_files_are_read(file: str, nodes: int) -> None:
    """Sizes as published."""
    problem = read_iopddl(published(f"iopddl/asplos-2025-iopddl-{file}.json.gz"))
    assert problem.n == nodes
