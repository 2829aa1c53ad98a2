"""What the judge's fast path plays on: a problem laid out for it, and the state of a play.

Played by `placewright.operators._swift_play`. Indices are unsigned and stand in 32 bits: a signed
index costs a test for wrapping around.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.operators._costs import Costs

WORD = 64
"""Bits of a word of a ready set."""

SEATS = 2
"""Placements that are played side by side: where one waits for its last number, another goes on."""

MOST_SEATED = 20_000
"""Operators above which they are played one by one: their state would not fit a cache."""


class Seat(NamedTuple):
    """Where one of several plays has its state: the first of its operators, devices, channels."""

    op: int
    device: int
    lane: int


class Swift(NamedTuple):
    """A problem and the state of some plays, one after the other in each array (`Seat`).

    Attributes
    ----------
    sure
        Every pair of devices is linked.
    first_edge, consumer, tensor, edge_bytes
        Edges by producer, then tensor: the consumer, the tensor (from 1), its bytes.
    alone
        Whether no two requests of an operator can be for one channel: it makes one tensor at
        most, and no device sends to two others over one channel.
    latency_s, seconds_per_byte, lane
        Flat (m * m); within a device zero, and a channel of its own that never waits.
    place, took_s
        Device and seconds of each operator in this play.
    position, ranked
        Place of each operator in the order, and the operator at each place.
    bits, tops
        Ready sets (`placewright.operators._ready_sets`), one row per device.
    base, end
        Where each device has its part of `future` and, one per device later, of `known`.
    known, known_end
        Operators of each device that have all their inputs coming; `ready_s` says since when or
        from when on they may start.
    future
        Where many are known, those whose time is to come, as a heap.
    next_s
        When each device ends its operator (`running`) or, idle, when it may start one.
    free_s, asked_s
        When each channel is free, and when it was last asked for.
    left, last_s
        Operators of each play that have not ended, and when the last one did.
    """

    sure: bool
    devices: int
    channels: int
    first_edge: IntArray
    consumer: IntArray
    tensor: IntArray
    edge_bytes: FloatArray
    alone: IntArray
    topological: IntArray
    inputs: IntArray
    compute_s: FloatArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    lane: IntArray
    # the play
    place: IntArray
    took_s: FloatArray
    priority: FloatArray
    position: IntArray
    ranked: IntArray
    ranked_key: FloatArray
    cell: IntArray
    cell_end: IntArray
    crowd_end: IntArray
    waiting: IntArray
    ready_s: FloatArray
    bits: Any
    tops: Any
    known: IntArray
    future: IntArray
    base: IntArray
    end: IntArray
    known_end: IntArray
    ahead: IntArray
    running: IntArray
    next_s: FloatArray
    free_s: FloatArray
    asked_s: FloatArray
    seen: IntArray
    arrival_s: FloatArray
    last_request: IntArray
    request: IntArray
    request_edge: IntArray
    request_place: IntArray
    request_s: FloatArray
    turn: IntArray
    left: IntArray
    last_s: FloatArray


def make_swift(costs: Costs, channels: int) -> Swift:
    """A problem laid out for `placewright.operators._swift_play.play`."""
    n, m = costs.compute_s.shape
    uses = np.diff(costs.offsets)
    tensors = costs.out_tensors
    length = uses[tensors]
    ends = np.cumsum(length)
    edge = np.repeat(costs.offsets[tensors] - (ends - length), length)
    edge += np.arange(len(costs.consumers))
    first_edge = np.concatenate([[0], ends])[costs.out_offsets]
    off = ~np.eye(m, dtype=np.bool_)
    lane = np.where(off, costs.channel, channels + np.arange(m)[:, None])
    finite = np.isfinite(costs.latency_s + costs.seconds_per_byte) & (costs.channel >= 0)
    return Swift(
        sure=bool(finite[off].all()),
        devices=m,
        channels=channels,
        first_edge=_index(first_edge),
        consumer=_index(costs.consumers[edge]),
        tensor=_index(np.repeat(tensors, length) + 1),
        edge_bytes=np.repeat(costs.tensor_bytes[tensors], length),
        alone=_index((np.diff(costs.out_offsets) <= 1) & _apart(costs.channel)),
        topological=_index(costs.order),
        inputs=_index(np.diff(costs.in_offsets)),
        compute_s=costs.compute_s.ravel().copy(),
        latency_s=np.where(off, costs.latency_s, 0.0).ravel(),
        seconds_per_byte=np.where(off, costs.seconds_per_byte, 0.0).ravel(),
        lane=_index(np.where(lane < 0, 0, lane).ravel()),
        **_state(n, m, channels + m, int(np.diff(first_edge).max(initial=0))),
    )


def _state(n: int, m: int, lanes: int, most: int) -> dict[str, Any]:
    """What plays write; `most` is how many edges one operator has at most."""
    seats = SEATS if n <= MOST_SEATED else 1
    words = -(-n // WORD)
    per_operator = ("took_s", "priority", "ready_s")
    state: dict[str, Any] = {key: np.zeros(seats * n) for key in per_operator}
    for key in ("place", "position", "ranked", "waiting", "future"):
        state[key] = _indices(seats * n)
    for key in ("request", "request_edge", "request_place", "turn"):
        state[key] = _indices(most)
    for key in ("base", "end", "known_end", "ahead", "seen", "last_request"):
        state[key] = _indices(seats * m)
    return state | {
        "ranked_key": np.zeros(n),
        "cell": _indices(n),
        "cell_end": _indices(n + 1),
        "crowd_end": _indices(n + 1),
        "bits": np.zeros((seats * m, words), dtype=np.uint64),
        "tops": np.zeros((seats * m, -(-words // WORD)), dtype=np.uint64),
        "known": _indices(seats * (n + m)),
        "running": np.zeros(seats * m, dtype=np.int64),
        "next_s": np.zeros(seats * m),
        "arrival_s": np.zeros(seats * m),
        "free_s": np.zeros(seats * lanes),
        "asked_s": np.zeros(seats * lanes),
        "request_s": np.zeros(most),
        "left": np.zeros(seats, dtype=np.int64),
        "last_s": np.zeros(seats),
    }


def copy_swift(swift: Swift) -> Swift:
    """A state of its own for another thread."""
    parts: Any = (part.copy() if isinstance(part, np.ndarray) else part for part in swift)
    return Swift(*parts)


def _apart(channel: IntArray) -> bool:
    """Whether every device sends to each other device over another channel."""
    linked = (np.sort(row[row >= 0]) for row in channel)
    return all((np.diff(row) > 0).all() for row in linked)


def _indices(count: int) -> Any:
    return np.zeros(count, dtype=np.uint32)


def _index(values: Any) -> Any:
    """As unsigned 32 bits; typed as any whole array, since only kernels see it."""
    return np.ascontiguousarray(values).astype(np.uint32)
