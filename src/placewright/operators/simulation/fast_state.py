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

All that an event needs of one operator, device or channel stands in one row of a structured
array, so that one cache line serves it. Indices are unsigned and have 32 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.operators.costs import Costs

# Determined by the problem.

STATIC = np.dtype(
    [
        ("first", "u4"),  # its edges: first to last - 1
        ("last", "u4"),
        ("inputs", "u4"),  # how many tensors it reads
        ("separate", "u4"),  # 1: no two of its transfers are for one channel, see `_separate`
    ]
)
"""What no simulation changes of an operator; `OPERATOR` has the rest."""

EDGE = np.dtype([("bytes", "f8"), ("consumer", "u4"), ("tensor", "u4")])
"""One use of a tensor; tensors are counted from 1, since 0 is a device's `last_tensor` at first."""

PAIR = np.dtype([("latency_s", "f8"), ("seconds_per_byte", "f8"), ("channel", "u4")], align=True)
"""From a device to a device."""

TENSOR = np.dtype(
    [
        ("first", "u4"),  # its edges: first to last - 1
        ("last", "u4"),
        ("producer", "u4"),
        ("home_bytes", "i8"),  # where it is made
        ("kept_bytes", "i8"),  # where it is received
    ],
    align=True,
)

VIEW = np.dtype([("tensor", "u4"), ("base", "u4"), ("edge", "u4")])
"""A view, its base, and the edge over which its producer reads the base."""

# Written by simulations.

OPERATOR = np.dtype(
    [
        ("ready_s", "f8"),  # when all inputs that were sent so far have come
        ("took_s", "f8"),  # seconds on its device
        ("position", "u4"),  # in the order
        ("device", "u4"),  # its device
        ("waiting", "u4"),  # inputs that have not been sent
        ("spare", "u4"),  # 32 bytes: two rows to a cache line
    ]
)

DEVICE = np.dtype(
    [
        ("next_s", "f8"),  # when it ends its operator or, idle, when it may start one
        ("arrival_s", "f8"),  # when the last tensor that was sent there comes
        ("running", "u4"),  # its operator, n if idle
        ("last_tensor", "u4"),  # that was sent there, 0 for none
        ("request", "u4"),  # which request of its producer, or which copy, that was
        ("begin", "u4"),  # its part of `pending` and `pending_heap`
        ("end", "u4"),
        ("pending_end", "u4"),  # of its list in `pending`
        ("heap_size", "i8"),  # in `pending_heap`; in order, how many operators it has started
        ("held_bytes", "i8"),  # resident
        ("all_bytes", "i8"),  # resident and all that ever comes there
    ],
    align=True,
)

CHANNEL = np.dtype([("free_s", "f8"), ("requested_s", "f8")])
"""When it is free, and when it was last requested."""

PENDING = np.dtype([("ready_s", "f8"), ("position", "u4"), ("op", "u4")])
"""An operator all of whose inputs have been sent, in the list of its device."""

REQUEST = np.dtype(
    [
        ("at_s", "f8"),  # when it arrives
        ("position", "u4"),  # of its best reader in the order
        ("edge", "u4"),  # one of its edges
        ("served", "u4"),  # of row x: the row of the request that is served x-th
    ],
    align=True,
)
"""A transfer of what one operator made."""

CHANGE = np.dtype([("at_s", "f8"), ("bytes", "i8"), ("next", "u4")], align=True)
"""Bytes that come or, negative, go; `next` in the same cell, 0 for none."""

CELL = np.dtype([("net", "i8"), ("gain", "i8"), ("first", "u4")], align=True)
"""A stretch of time on a device: the sum of its changes, of what comes, and the first of them."""


def tensors_and_edges(costs: Costs) -> tuple[Any, Any]:
    """Tensors by producer and, by tensor, their edges."""
    tensors = np.zeros(len(costs.producer), dtype=TENSOR)
    k = costs.out_tensors
    length = np.diff(costs.offsets)[k]
    tensors["last"] = np.cumsum(length)
    tensors["first"] = tensors["last"] - length
    tensors["producer"] = costs.producer[k]
    tensors["home_bytes"], tensors["kept_bytes"] = costs.home_bytes[k], costs.kept_bytes[k]
    edges = np.zeros(len(costs.consumers), dtype=EDGE)
    at = np.repeat(costs.offsets[k] - tensors["first"], length) + np.arange(len(edges))
    edges["consumer"] = costs.consumers[at]
    edges["tensor"] = np.repeat(np.arange(len(k)) + 1, length)
    edges["bytes"] = np.repeat(costs.tensor_bytes[k], length)
    return tensors, edges


def static_rows(costs: Costs, tensors: Any) -> Any:
    """One row per operator, and one for none."""
    static = np.zeros(len(costs.order) + 1, dtype=STATIC)
    ends = np.append(0, tensors["last"])[costs.out_offsets]
    static["first"][:-1], static["last"][:-1] = ends[:-1], ends[1:]
    static["inputs"][:-1] = np.diff(costs.in_offsets)
    # Two requests of one operator can only meet on a channel if it makes two tensors or its
    # device reaches two others over one channel.
    static["separate"] = _separate(costs.channel)
    static["separate"][:-1] &= np.diff(costs.out_offsets) <= 1
    return static


def _separate(channel: IntArray) -> bool:
    """Whether every device sends to each other device over another channel."""
    linked = (np.sort(row[row >= 0]) for row in channel)
    return all((np.diff(row) > 0).all() for row in linked)


def pairs_of(costs: Costs, channels: int) -> Any:
    """From each device to each; within one no time, and a channel of its own."""
    m = len(costs.channel)
    within = np.eye(m, dtype=np.bool_)
    pairs = np.zeros(m * m, dtype=PAIR)
    channel = np.where(within, channels + np.arange(m)[:, None], costs.channel)
    pairs["latency_s"] = costs.latency_s.ravel()
    pairs["seconds_per_byte"] = costs.seconds_per_byte.ravel()
    # Without a link any channel will do: nothing is sent.
    pairs["channel"] = np.maximum(channel, 0).ravel()
    return pairs


def views_of(costs: Costs, tensors: Any, edges: Any) -> Any:
    """Each view, its base, and the edge over which its producer reads the base."""
    # Rows of `tensors` are by producer: `at` is the row of each tensor of the problem.
    at, n = np.empty(len(tensors), dtype=np.int64), len(costs.order)
    at[costs.out_tensors] = np.arange(len(at))
    views = np.zeros(len(costs.views), dtype=VIEW)
    views["tensor"], views["base"] = at[costs.views], at[costs.alias[costs.views]]
    uses = edges["tensor"].astype(np.int64) * n + edges["consumer"]
    by_use = np.argsort(uses, kind="stable")
    # Each use of a tensor as one number, tensor * n + reader (tensors from 1); there is one use
    # of the base by the view's producer, as problems are checked for.
    wanted = (views["base"].astype(np.int64) + 1) * n + tensors["producer"][views["tensor"]]
    views["edge"] = by_use[np.searchsorted(uses[by_use], wanted)]
    return views


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


@by_reference
class FastState(NamedTuple):
    """A problem, and the state of `INTERLEAVED` simulations of it.

    Rows are described in `placewright.operators.simulation.fast_state`.

    Attributes
    ----------
    all_linked
        Every pair of devices is linked; else the fast simulator is always unsure.
    edges
        By producer, then tensor.
    pairs
        Flat (m * m); within a device no time, and a channel of its own that never waits.
    pending
        By device, operators all of whose inputs have been sent, until they are ready.
    pending_heap
        Where many are pending on a device, a heap of them. In order, each device's sequence.
    bits, tops
        Operators that are ready, by device (`placewright.operators.queues`).
    ranked
        The operator at each place in the order.
    rank, ranked_key, cell, cell_end, subcell_end
        Of one placement, before it is simulated: scratch of
        `placewright.operators.simulation.fast`.
    ready_s, change_s
        Columns of `ops` and `changes`, keys of heaps.
    unfinished, makespan_s
        Operators of each simulation that have not ended, and when the last one did.
    start_s, arrival_s
        When each operator started and each edge's tensor came, with `Mode.memory` only.
    copy, until_s
        Which copy of its tensor an edge reads, and how long each copy is held: those sent over an
        edge, then, one per tensor, those where they are made.
    peak_bytes
        Of each device, at least the limit down to which peaks were counted.
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
    peak_bytes: IntArray
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
    return _with_columns(copied_arrays(state))


def copied_arrays(state: Any) -> dict[str, Any]:
    """The fields of a state by name; arrays are copies."""
    parts = state._asdict().items()
    return {k: _copy(v) if isinstance(v, np.ndarray) else v for k, v in parts}


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
        "peak_bytes": np.zeros(m, dtype=np.int64),
        # At least two: the column of a single row is contiguous, another type to compile for.
        "changes": _rows(2 * copies + 2, CHANGE),
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
