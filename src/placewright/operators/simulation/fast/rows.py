"""Rows of what the judge's fast path plays on (`placewright.operators.simulation.fast.state`)."""

from __future__ import annotations

import numpy as np

FACTS = np.dtype([("first", "u4"), ("last", "u4"), ("inputs", "u4"), ("alone", "u4")])
"""An operator's edges, its inputs, and whether no two of its requests can be for one channel: it
makes one tensor at most, and no device sends to two others over one channel."""

EDGE = np.dtype([("bytes", "f8"), ("consumer", "u4"), ("tensor", "u4")])
"""One use of a tensor; tensors are counted from 1."""

PAIR = np.dtype([("latency_s", "f8"), ("seconds_per_byte", "f8"), ("lane", "u4")], align=True)
"""From a device to a device."""

TENSOR = np.dtype(
    [("first", "u4"), ("last", "u4"), ("maker", "u4"), ("home_bytes", "i8"), ("kept_bytes", "i8")],
    align=True,
)
"""A tensor's edges, its producer, and the bytes that it takes there and elsewhere."""

VIEW = np.dtype([("tensor", "u4"), ("of", "u4"), ("edge", "u4")])
"""A view, what it is a view of, and the edge over which its producer reads that."""

OPERATOR = np.dtype(
    [
        ("ready_s", "f8"),
        ("took_s", "f8"),
        ("position", "u4"),
        ("place", "u4"),
        ("waiting", "u4"),
        ("spare", "u4"),
    ]
)
"""When all inputs that were sent so far have come, seconds on its device, its place in the order,
its device, and how many inputs have not been sent."""

DEVICE = np.dtype(
    [
        ("next_s", "f8"),
        ("arrival_s", "f8"),
        ("running", "u4"),
        ("seen", "u4"),
        ("request", "u4"),
        ("begin", "u4"),
        ("end", "u4"),
        ("known_end", "u4"),
        ("early", "i8"),
        ("held", "i8"),
        ("all", "i8"),
    ],
    align=True,
)
"""When it ends its operator (`running`) or, idle, when it may start one; which tensor was sent
there last, when that comes and which request it was; its part of `known` and `early`, how
full that is (in order, how many it has started); resident bytes, and all that ever
comes there."""

LANE = np.dtype([("free_s", "f8"), ("asked_s", "f8")])
"""When a channel is free, and when it was last asked for."""

KNOWN = np.dtype([("ready_s", "f8"), ("position", "u4"), ("op", "u4")])
"""An operator in the list of its device."""

REQUEST = np.dtype([("at_s", "f8"), ("position", "u4"), ("edge", "u4"), ("turn", "u4")], align=True)
"""When it comes, its best consumer's place in the order, an edge; `turn` is the request that has
this turn."""

CHANGE = np.dtype([("at_s", "f8"), ("bytes", "i8"), ("next", "u4")], align=True)
"""Bytes that come or, negative, go; `next` in the same cell."""

CELL = np.dtype([("net", "i8"), ("gain", "i8"), ("first", "u4")], align=True)
"""A stretch of time on a device: the sum of its changes, of what comes, and the first of them."""
