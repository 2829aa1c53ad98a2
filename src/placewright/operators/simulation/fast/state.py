"""What the judge's fast path plays on: a problem laid out for it, and the state of some plays.

Run by `placewright.operators.simulation.fast.simulate`. All that is asked of one operator, device
or channel stands in one row of a structured array, so that one line of the cache serves it.
Indices are unsigned and stand in 32 bits: a signed index costs a test for wrapping around.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.simulation.fast.problem_rows import (
    facts_of,
    pairs_of,
    tensors_and_edges,
    views_of,
)
from placewright.operators.simulation.fast.rows import (
    CELL,
    CHANGE,
    DEVICE,
    KNOWN,
    LANE,
    OPERATOR,
    REQUEST,
)
from placewright.operators.structure.costs import Costs

LINE_BYTES = 64
"""Of a line of the cache."""

WORD = 64
"""Bits of a word of a ready set."""

SEATS = 2
"""Placements that are played side by side: where one waits for its last number, another goes on."""

MOST_SEATED = 20_000
"""Operators above which they are played one by one: their state would not fit a cache."""


class Seat(NamedTuple):
    """Where one of several plays has its state: its first row in each array."""

    op: int
    device: int
    lane: int
    known: int
    edge: int


class FastState(NamedTuple):
    """A problem and the state of some plays, one after the other in each array (`Seat`).

    Rows are described in `placewright.operators.simulation.fast.rows`. Operator n of each
    simulation stands for none: it makes nothing, and idle devices run it.

    Attributes
    ----------
    sure
        Every pair of devices is linked.
    edges
        By producer, then tensor.
    pairs
        Flat (m * m); within a device no time, and a channel of its own that never waits.
    known
        By device, what has all its inputs coming and is not known to be ready.
    early
        Where much is known on a device, a heap of it. In order, each device's sequence.
    bits, tops
        What is ready, by device (`placewright.operators.queues.ready_sets`).
    ranked
        The operator at each place in the order.
    rank, ranked_key, cell, cell_end, crowd_end
        Of one placement, before it is played: what `placewright.operators.simulation.fast.ranking`
        needs.
    ready_s, change_s
        Columns of `ops` and `changes`, keys of heaps.
    left, last_s
        Operators of each play that have not ended, and when the last one did.
    start_s, came_s
        When each operator started and each edge's tensor came, where bytes are counted.
    copy, until_s
        Which copy of its tensor an edge reads, and how long each copy is held: those sent over an
        edge, then, one per tensor, those where they are made.
    """

    sure: bool
    n: int
    m: int
    lanes: int
    facts: Any
    edges: Any
    pairs: Any
    sources: IntArray
    topological: IntArray
    compute_s: FloatArray
    # the play
    ops: Any
    devices: Any
    lane: Any
    known: Any
    early: IntArray
    bits: Any
    tops: Any
    ranked: IntArray
    requests: Any
    request_of: IntArray
    left: IntArray
    last_s: FloatArray
    ready_s: FloatArray
    rank: FloatArray
    ranked_key: FloatArray
    cell: IntArray
    cell_end: IntArray
    crowd_end: IntArray
    # bytes
    tensors: Any
    views: Any
    resident_bytes: IntArray
    memory_bytes: IntArray
    start_s: FloatArray
    came_s: FloatArray
    copy: IntArray
    until_s: FloatArray
    changes: Any
    change_s: FloatArray
    cells: Any
    by_time: IntArray


def make_fast_state(costs: Costs, channels: int) -> FastState:
    """A problem laid out for `placewright.operators.simulation.fast.simulate.play`."""
    n, m = costs.compute_s.shape
    tensors, edges = tensors_and_edges(costs)
    linked = (costs.channel >= 0) | np.eye(m, dtype=np.bool_)
    problem = {
        "facts": facts_of(costs, tensors),
        "edges": edges,
        "pairs": pairs_of(costs, channels),
        "sources": _index(np.flatnonzero(np.diff(costs.in_offsets) == 0)),
        "topological": _index(costs.order),
        "compute_s": costs.compute_s.ravel().copy(),
        "tensors": tensors,
        "views": views_of(costs, tensors, edges),
        "resident_bytes": costs.resident_bytes.copy(),
        "memory_bytes": costs.memory_bytes.copy(),
    }
    sizes = {"sure": bool(linked.all()), "n": n, "m": m, "lanes": channels + m}
    facts = problem["facts"]
    most = int((facts["last"] - facts["first"]).max())
    state = _state(n, m, channels + m, most) | _byte_state(n, m, len(tensors), len(edges))
    return _with_columns(sizes | problem | state)


def copy_fast_state(swift: FastState) -> FastState:
    """A state of its own for another thread."""
    parts = swift._asdict().items()
    return _with_columns({k: _copy(v) if isinstance(v, np.ndarray) else v for k, v in parts})


def _with_columns(parts: dict[str, Any]) -> FastState:
    ops, changes = parts["ops"], parts["changes"]
    return FastState(**parts | {"ready_s": ops["ready_s"], "change_s": changes["at_s"]})


def _seats(n: int) -> int:
    return SEATS if n <= MOST_SEATED else 1


def _state(n: int, m: int, lanes: int, most: int) -> dict[str, Any]:
    """What plays write; `most` is how many edges one operator has at most."""
    handles = _seats(n)
    room, words = handles * (n + 2 * m), -(-n // WORD)
    return {
        "ops": _rows(handles * (n + 1), OPERATOR),
        "devices": _rows(handles * m, DEVICE),
        "lane": _rows(handles * lanes, LANE),
        "known": _rows(room, KNOWN),
        "early": _indices(room),
        "bits": np.zeros((handles * m, words), dtype=np.uint64),
        "tops": np.zeros((handles * m, -(-words // WORD)), dtype=np.uint64),
        "ranked": _indices(handles * (n + 1)),
        "rank": np.zeros(n),
        "ranked_key": np.zeros(n),
        "cell": _indices(n),
        "cell_end": _indices(n + 1),
        "crowd_end": _indices(n + 1),
        "requests": _rows(most, REQUEST),
        "request_of": _indices(most),
        "left": np.zeros(handles, dtype=np.int64),
        "last_s": np.zeros(handles),
    }


def _byte_state(n: int, m: int, tensors: int, edges: int) -> dict[str, Any]:
    """What plays write, and what is written after them, where bytes are counted."""
    copies = tensors + edges
    return {
        "start_s": np.zeros(_seats(n) * (n + 1)),
        "came_s": np.zeros(_seats(n) * edges),
        "copy": _indices(edges),
        "until_s": np.zeros(copies),
        "changes": _rows(2 * copies + 1, CHANGE),
        "cells": _rows(m * (1 + 2 * copies // m), CELL),
        "by_time": _indices(2 * copies + 1),
    }


def _rows(count: int, dtype: Any) -> Any:
    """Zeros that begin with a line of the cache, so that no row stands in more than it must."""
    room = np.zeros(count * dtype.itemsize + LINE_BYTES, dtype=np.uint8)
    begin = -room.ctypes.data % LINE_BYTES
    return room[begin : begin + count * dtype.itemsize].view(dtype)


def _copy(array: Any) -> Any:
    copy = _rows(array.size, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _indices(count: int) -> Any:
    return np.zeros(count, dtype=np.uint32)


def _index(values: Any) -> Any:
    """As unsigned 32 bits; typed as any whole array, since only kernels see it."""
    return np.ascontiguousarray(values).astype(np.uint32)
