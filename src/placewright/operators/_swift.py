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


class Swift(NamedTuple):
    """A problem and the state of a play.

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
    known
        Operators of each device that have all their inputs coming, from ``base[d] + d`` on;
        `ready_s` says since when or from when on they may start.
    future
        Where many are known, those whose time is to come, as a heap from ``base[d]`` on.
    next_s
        When each device ends its operator (`running`) or, idle, when it may start one.
    free_s, asked_s, asked_by
        When each channel is free, when it was last asked for, and by which operator.
    """

    sure: bool
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
    cell: IntArray
    cell_end: IntArray
    waiting: IntArray
    ready_s: FloatArray
    bits: Any
    tops: Any
    known: IntArray
    future: IntArray
    base: IntArray
    listed: IntArray
    ahead: IntArray
    running: IntArray
    next_s: FloatArray
    free_s: FloatArray
    asked_s: FloatArray
    asked_by: IntArray
    seen: IntArray
    arrival_s: FloatArray
    last_request: IntArray
    request: IntArray
    request_edge: IntArray
    request_place: IntArray
    request_s: FloatArray
    turn: IntArray


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
    most = int(np.diff(first_edge).max(initial=0))
    words = -(-n // WORD)
    return Swift(
        sure=bool(finite[off].all()),
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
        place=_indices(n),
        took_s=np.zeros(n),
        priority=np.zeros(n),
        position=_indices(n),
        ranked=_indices(n),
        cell=_indices(n),
        cell_end=_indices(n + 1),
        waiting=_indices(n),
        ready_s=np.zeros(n),
        bits=np.zeros((m, words), dtype=np.uint64),
        tops=np.zeros((m, -(-words // WORD)), dtype=np.uint64),
        known=_indices(n + m),
        future=_indices(n),
        base=np.zeros(m + 1, dtype=np.int64),
        listed=np.zeros(m, dtype=np.int64),
        ahead=np.zeros(m, dtype=np.int64),
        running=np.zeros(m, dtype=np.int64),
        next_s=np.zeros(m),
        free_s=np.zeros(channels + m),
        asked_s=np.zeros(channels + m),
        asked_by=np.zeros(channels + m, dtype=np.int64),
        seen=_indices(m),
        arrival_s=np.zeros(m),
        last_request=_indices(m),
        request=_indices(most),
        request_edge=_indices(most),
        request_place=_indices(most),
        request_s=np.zeros(most),
        turn=_indices(most),
    )


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
