"""State of the fast simulator: a problem in rows, and some simulations of it side by side.

Every array of the simulations has the rows of the first, then those of the second, and so on;
`Offsets` says where those of one begin::

    ops      | op 0 | op 1 | ... | op n-1 | none | op 0 | ... | none |
               ^ offsets 0: op = 0                 ^ offsets 1: op = n + 1
    devices  | dev 0 | ... | dev m-1 | dev 0 | ... | dev m-1 |
    pending  |. dev 0's operators .|. dev 1's .| ... |. dev 0's .| ...      (. is a spare row)

Row n of ``ops`` stands for no operator: it makes nothing, and idle devices run it, so that no
branch is needed for them. A device's stretch of ``pending`` has room for all of its operators and a
spare row at each end, since a row is written before it is known whether it counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.simulation.fast.rows import (
    CELL,
    CHANGE,
    CHANNEL,
    DEVICE,
    OPERATOR,
    PENDING,
    REQUEST,
    pairs_of,
    static_rows,
    tensors_and_edges,
    views_of,
)
from placewright.operators.structure.costs import Costs

LINE_BYTES = 64
"""Of a cache line."""

WORD = 64
"""Bits of a word of a ready set."""

INTERLEAVED = 2
"""Placements that are simulated side by side, one event of each at a time: while one waits for the
result of its last instruction, the processor continues with the other."""

MOST_INTERLEAVED = 20_000
"""Operators above which placements are simulated one by one: two states would not fit the cache."""


class Offsets(NamedTuple):
    """First row of one simulation in each array, as drawn at the top of this file."""

    op: int
    device: int
    channel: int
    pending: int
    edge: int


class FastState(NamedTuple):
    """A problem, and the state of `INTERLEAVED` simulations of it.

    Rows are described in `placewright.operators.simulation.fast.rows`.

    Attributes
    ----------
    all_linked
        Every pair of devices is linked; else nothing is simulated here.
    edges
        By producer, then tensor.
    pairs
        Flat (m * m); within a device no time, and a channel of its own that never waits.
    pending
        By device, operators all of whose inputs have been sent, until they are ready.
    pending_heap
        Where many are pending on a device, a heap of them. In order, each device's sequence.
    bits, tops
        Operators that are ready, by device (`placewright.operators.queues.ready_sets`).
    ranked
        The operator at each place in the order.
    rank, ranked_key, cell, cell_end, subcell_end
        Of one placement, before it is simulated: scratch of
        `placewright.operators.simulation.fast.ranking`.
    ready_s, change_s
        Columns of `ops` and `changes`, keys of heaps.
    unfinished, makespan_s
        Operators of each simulation that have not ended, and when the last one did.
    start_s, arrival_s
        When each operator started and each edge's tensor came, where bytes are counted.
    copy, until_s
        Which copy of its tensor an edge reads, and how long each copy is held: those sent over an
        edge, then, one per tensor, those where they are made.
    """

    all_linked: bool
    n: int
    m: int
    channels: int
    static: Any
    edges: Any
    pairs: Any
    sources: IntArray
    topological: IntArray
    compute_s: FloatArray
    # the simulations
    ops: Any
    devices: Any
    channel: Any
    pending: Any
    pending_heap: IntArray
    bits: Any
    tops: Any
    ranked: IntArray
    requests: Any
    request_of: IntArray
    unfinished: IntArray
    makespan_s: FloatArray
    ready_s: FloatArray
    rank: FloatArray
    ranked_key: FloatArray
    cell: IntArray
    cell_end: IntArray
    subcell_end: IntArray
    # bytes, counted after a simulation
    tensors: Any
    views: Any
    resident_bytes: IntArray
    memory_bytes: IntArray
    start_s: FloatArray
    arrival_s: FloatArray
    copy: IntArray
    until_s: FloatArray
    changes: Any
    change_s: FloatArray
    cells: Any
    by_time: IntArray


def make_fast_state(costs: Costs, channels: int) -> FastState:
    """A problem in rows, with room for simulations of it."""
    n, m = costs.compute_s.shape
    tensors, edges = tensors_and_edges(costs)
    linked = (costs.channel >= 0) | np.eye(m, dtype=np.bool_)
    problem = {
        "static": static_rows(costs, tensors),
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
    sizes = {"all_linked": bool(linked.all()), "n": n, "m": m, "channels": channels + m}
    static = problem["static"]
    most = int((static["last"] - static["first"]).max())
    state = _state(n, m, channels + m, most) | _byte_state(n, m, len(tensors), len(edges))
    return _with_columns(sizes | problem | state)


def copy_fast_state(state: FastState) -> FastState:
    """A state of its own for another thread."""
    parts = state._asdict().items()
    return _with_columns({k: _copy(v) if isinstance(v, np.ndarray) else v for k, v in parts})


def _with_columns(parts: dict[str, Any]) -> FastState:
    ops, changes = parts["ops"], parts["changes"]
    return FastState(**parts | {"ready_s": ops["ready_s"], "change_s": changes["at_s"]})


def _interleaved(n: int) -> int:
    return INTERLEAVED if n <= MOST_INTERLEAVED else 1


def _state(n: int, m: int, channels: int, most: int) -> dict[str, Any]:
    """What simulations write; `most` is how many edges one operator has at most."""
    count = _interleaved(n)
    room, words = count * (n + 2 * m), -(-n // WORD)
    return {
        "ops": _rows(count * (n + 1), OPERATOR),
        "devices": _rows(count * m, DEVICE),
        "channel": _rows(count * channels, CHANNEL),
        "pending": _rows(room, PENDING),
        "pending_heap": _indices(room),
        "bits": np.zeros((count * m, words), dtype=np.uint64),
        "tops": np.zeros((count * m, -(-words // WORD)), dtype=np.uint64),
        "ranked": _indices(count * (n + 1)),
        "rank": np.zeros(n),
        "ranked_key": np.zeros(n),
        "cell": _indices(n),
        "cell_end": _indices(n + 1),
        "subcell_end": _indices(n + 1),
        "requests": _rows(most, REQUEST),
        "request_of": _indices(most),
        "unfinished": np.zeros(count, dtype=np.int64),
        "makespan_s": np.zeros(count),
    }


def _byte_state(n: int, m: int, tensors: int, edges: int) -> dict[str, Any]:
    """What simulations write, and what is written after them, where bytes are counted."""
    copies = tensors + edges
    return {
        "start_s": np.zeros(_interleaved(n) * (n + 1)),
        "arrival_s": np.zeros(_interleaved(n) * edges),
        "copy": _indices(edges),
        "until_s": np.zeros(copies),
        "changes": _rows(2 * copies + 1, CHANGE),
        # As many cells as there can be changes, so that a cell has one or two on average.
        "cells": _rows(m * (1 + 2 * copies // m), CELL),
        "by_time": _indices(2 * copies + 1),
    }


def _rows(count: int, dtype: Any) -> Any:
    """Zeros that begin with a cache line, so that no row lies in more lines than it must."""
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
    """As unsigned 32 bits; typed as a whole array of any kind, since only kernels see it."""
    return np.ascontiguousarray(values).astype(np.uint32)
