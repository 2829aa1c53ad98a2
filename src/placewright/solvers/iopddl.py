"""Reads the problems of the IOPDDL contest: a PBQP with a memory limit over time, as JSON.

Source: ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism for distributed deep
learning (github.com/google/iopddl). ``problem.nodes`` has ``costs[i][k]``, ``usages[i][k]`` and
``intervals[i] = [from, to)``; ``problem.edges`` has ``nodes[e] = [i, j]`` and ``costs[e]``, row by
row over (option of i, option of j). Everything is a whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.io.boundary import parse_json
from placewright.io.stored import stored_text
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers.memory_pbqp import MOST_USAGE, MemoryPbqp
from placewright.solvers.pbqp import Pbqp

FORBIDDEN = 10**18
"""The contest's infinity: a cost this large forbids."""

EXACT = 2**53
"""Whole numbers below it are exact in float64."""


@checked
def read_iopddl(path: str | Path) -> MemoryPbqp:
    """The problem in ``FILE.json`` or ``FILE.json.gz``.

    Several edges between two nodes are added up; an edge of a node with itself becomes a node
    cost; a node whose interval is empty (``[]`` or ``to <= from``) uses nothing.

    Raises
    ------
    InputError
        Names the file and the field that is wrong.
    """
    where = str(path)
    data = parse_json(stored_text(path), where=where)
    problem = _field(data, "problem", dict, where)
    nodes = _field(problem, "nodes", dict, where, "problem.")
    costs, sizes = _rows(nodes, "costs", where)
    usages, used = _rows(nodes, "usages", where)
    _same_lengths(used, sizes, f"{where}: problem.nodes.usages")
    if (sizes == 0).any():
        empty = int(np.argmin(sizes))
        raise InputError("a node needs an option", where=f"{where}: problem.nodes.costs[{empty}]")
    live_from, live_until = _intervals(nodes, len(sizes), where)
    start = np.concatenate([[0], np.cumsum(sizes)])
    return MemoryPbqp(
        _with_edges(problem, start, _forbidding(costs), where),
        usages,
        live_from,
        live_until,
        _limit(problem, where),
        _name(problem, path),
    )


def _field(data: Any, key: str, kind: type, where: str, prefix: str = "") -> Any:
    place = f"{where}: {prefix}{key}"
    if not isinstance(data, dict):
        raise InputError("is not an object", where=f"{where}: {prefix.rstrip('.') or 'file'}")
    if key not in data:
        raise InputError("is missing", where=place, hint="see the contest's example.json")
    if not isinstance(data[key], kind):
        raise InputError(f"must be a {kind.__name__}", where=place, by=type(data[key]).__name__)
    return data[key]


def _name(problem: Any, path: str | Path) -> str:
    name = problem.get("name")
    return name if isinstance(name, str) and name else Path(path).name.split(".")[0]


def _limit(problem: Any, where: str) -> int:
    limit = problem.get("usage_limit", MOST_USAGE)
    place = f"{where}: problem.usage_limit"
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InputError("must be a whole number", where=place, by=repr(limit)[:40])
    if limit < 0:
        raise InputError("must not be negative", where=place, by=str(limit))
    return min(limit, MOST_USAGE)


def _rows(data: Any, key: str, where: str, prefix: str = "nodes") -> tuple[IntArray, IntArray]:
    """A list of lists of whole numbers, flat, and the lengths of its rows."""
    rows = _field(data, key, list, where, f"problem.{prefix}.")
    place = f"{where}: problem.{prefix}.{key}"
    bad = next((i for i, row in enumerate(rows) if not isinstance(row, list)), None)
    if bad is not None:
        raise InputError("must be a list", where=f"{place}[{bad}]", by=repr(rows[bad])[:40])
    sizes = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    flat = _whole(list(chain.from_iterable(rows)))
    if flat is None or (len(flat) and flat.min() < 0):
        _raise_invalid_entry(rows, place)
    assert flat is not None
    return flat, sizes


def _whole(values: Sequence[Any]) -> IntArray | None:
    """As int64; ``None`` if one of them is no whole number or too large."""
    if not values:
        return np.zeros(0, np.int64)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return None
    return array.astype(np.int64) if array.dtype.kind == "i" and array.ndim == 1 else None


def _raise_invalid_entry(rows: Sequence[Sequence[Any]], place: str) -> None:
    """Name the entry that is not a whole number from 0 to below 2^63."""
    for i, row in enumerate(rows):
        for k, value in enumerate(row):
            fine = isinstance(value, int) and not isinstance(value, bool)
            if not fine or not 0 <= value < 2**63:
                what = "must be a whole number, not negative and below 2^63"
                raise InputError(what, where=f"{place}[{i}][{k}]", by=repr(value)[:40])


def _same_lengths(got: IntArray, expected: IntArray, place: str) -> None:
    if len(got) != len(expected):
        raise InputError("has the wrong length", where=place, by=f"{len(got)} != {len(expected)}")
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        i = int(wrong[0])
        by = f"{int(got[i])}, expected {int(expected[i])}"
        raise InputError("has the wrong length", where=f"{place}[{i}]", by=by)


def _forbidding(costs: IntArray) -> FloatArray:
    """As float64, the contest's infinity as ``inf``."""
    return np.where(costs >= FORBIDDEN, np.inf, costs.astype(np.float64))


def _intervals(nodes: Any, n: int, where: str) -> tuple[IntArray, IntArray]:
    flat, sizes = _rows(nodes, "intervals", where)
    place = f"{where}: problem.nodes.intervals"
    _same_lengths(sizes, np.where(sizes == 0, 0, 2), place)
    if len(sizes) != n:
        raise InputError("has the wrong length", where=place, by=f"{len(sizes)}, expected {n}")
    live_from, live_until = np.zeros(n, np.int64), np.zeros(n, np.int64)
    given = sizes == 2
    live_from[given], live_until[given] = flat[0::2], flat[1::2]
    return live_from, np.maximum(live_from, live_until)


def _with_edges(problem: Any, start: IntArray, cost: FloatArray, where: str) -> Pbqp:
    """Nodes and edges together; parallel edges joined."""
    edges = _field(problem, "edges", dict, where, "problem.")
    ends, pairs = _rows(edges, "nodes", where, "edges")
    _same_lengths(pairs, np.full(len(pairs), 2), f"{where}: problem.edges.nodes")
    ends, n = ends.reshape(-1, 2), len(start) - 1
    if len(ends) and ends.max() >= n:
        e = int(np.argmax(ends.max(axis=1) >= n))
        by = f"{ends[e].tolist()}, {n} nodes"
        raise InputError("no such node", where=f"{where}: problem.edges.nodes[{e}]", by=by)
    pool, sizes = _rows(edges, "costs", where, "edges")
    options = np.diff(start)
    area = options[ends[:, 0]] * options[ends[:, 1]]
    _same_lengths(sizes, area, f"{where}: problem.edges.costs")
    _exactly(cost, pool, where)
    return joined(start, cost, ends, _forbidding(pool))


def _exactly(cost: FloatArray, pool: IntArray, where: str) -> None:
    """Refuse what float64 would round."""
    for name, values in (("nodes", cost), ("edges", pool)):
        large = (values >= EXACT) & (values < FORBIDDEN)
        if large.any():
            what = "a cost from 2^53 to 10^18 can be neither exact nor forbidden"
            raise InputError(
                what, where=f"{where}: problem.{name}.costs", by=str(values[large].max())
            )


def joined(start: IntArray, cost: FloatArray, ends: IntArray, pool: FloatArray) -> Pbqp:
    """A `Pbqp` from edges that may be parallel or loops; their matrices follow each other."""
    options = np.diff(start)
    area = options[ends[:, 0]] * options[ends[:, 1]]
    matrix = np.concatenate([[0], np.cumsum(area)])[:-1]
    # Parallel edges have one key; the first of them takes the sum of all and keeps its place.
    key = np.minimum(ends[:, 0], ends[:, 1]) * len(options) + ends.max(axis=1, initial=0)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    kept = np.sort(first)
    cost, pool = cost.copy(), pool.copy()
    for e in np.flatnonzero(first[group] != np.arange(len(ends))).tolist():
        _add(pool, matrix, ends, options, int(first[group[e]]), e)
    loops = ends[kept, 0] == ends[kept, 1]
    for e in kept[loops].tolist():
        i, k = int(ends[e, 0]), int(options[ends[e, 0]])
        cost[start[i] : start[i + 1]] += pool[matrix[e] : matrix[e] + k * k : k + 1]
    kept = kept[~loops]
    return Pbqp(start, cost, ends[kept], matrix[kept], pool)


def _add(
    pool: FloatArray, matrix: IntArray, ends: IntArray, options: IntArray, to: int, e: int
) -> None:
    """Add the matrix of edge `e` to that of the parallel edge `to`."""
    rows, columns = int(options[ends[e, 0]]), int(options[ends[e, 1]])
    size = rows * columns
    own = pool[matrix[e] : matrix[e] + size]
    if ends[e, 0] != ends[to, 0]:
        own = own.reshape(rows, columns).T.ravel()
    pool[matrix[to] : matrix[to] + size] += own
