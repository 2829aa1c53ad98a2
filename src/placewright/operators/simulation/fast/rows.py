"""Rows of the fast simulator's state, and those that a problem alone determines.

All that an event needs of one operator, device or channel stands in one row of a structured
array, so that one cache line serves it. Indices are unsigned and have 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.structure.costs import Costs

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
    off = ~np.eye(m, dtype=np.bool_)
    pairs = np.zeros(m * m, dtype=PAIR)
    channel = np.where(off, costs.channel, channels + np.arange(m)[:, None])
    pairs["latency_s"] = np.where(off, costs.latency_s, 0.0).ravel()
    pairs["seconds_per_byte"] = np.where(off, costs.seconds_per_byte, 0.0).ravel()
    # Without a link any index will do: nothing is simulated then (`FastState.all_linked`).
    pairs["channel"] = np.where(channel < 0, 0, channel).ravel()
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
