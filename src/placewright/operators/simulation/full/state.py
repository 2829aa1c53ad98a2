"""The judge's board: a problem and the state of one play, laid out in two flat arrays.

Everything whole stands in one int64 array, everything real in one float64 array, and a tuple of
plain integers says where: ``w[o.waiting + j]`` is how many inputs operator j waits for. Compiled
functions that hand such a board to each other pay for two references instead of forty, which
makes the event loop a hundred times faster than tuples of arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.structure.costs import Costs


class Layout(NamedTuple):
    """Sizes, then where each part begins.

    `shared` is how many tensors are views of tensors. A *move* is one transfer of one tensor to
    one device; moves of tensor k are ``first_move + k`` to ``first_move + k + 1``. A *slot* of
    the event queue is a device, or m + a move. `later` is 1 for operators of the second of two
    `passes` that do not mix.
    """

    n: int
    m: int
    t: int
    channels: int
    shared: int
    passes: int
    # whole: the problem
    producer: int
    offsets: int
    consumers: int
    channel: int
    order: int
    in_offsets: int
    in_tensors: int
    out_offsets: int
    out_tensors: int
    alias: int
    views: int
    home_bytes: int
    kept_bytes: int
    resident_bytes: int
    memory_bytes: int
    later: int
    # whole: the play
    waiting: int
    queue: int
    queue_base: int
    queue_size: int
    running: int
    first_move: int
    move_tensor: int
    move_target: int
    move_best: int
    move_refs: int
    lane_queue: int
    lane_base: int
    lane_size: int
    lane_busy: int
    dirty: int
    flagged: int
    events: int
    refs: int
    held: int
    peak: int
    best: int
    moves: int
    pending: int
    touched: int
    finished: int
    culprit: int
    # real: the problem
    compute_s: int
    tensor_bytes: int
    latency_s: int
    seconds_per_byte: int
    # real: the play
    priority: int
    start_s: int
    end_s: int
    asked_s: int
    sent_s: int
    event_s: int
    changed_s: int


class SimulatorState(NamedTuple):
    """Whole numbers, reals, and where is what."""

    w: IntArray
    x: FloatArray
    o: Layout


def make_state(costs: Costs, channels: int, later: BoolArray | None = None) -> SimulatorState:
    """A problem on a fresh board, with room for any placement.

    Parameters
    ----------
    later
        Shape (n,), the operators of the second pass, where passes do not mix.
    """
    (n, m), t = costs.compute_s.shape, len(costs.producer)
    moves = int(np.minimum(np.diff(costs.offsets), m - 1).sum())
    whole, real = _state(n, m, t, channels, moves)
    whole_parts = _parts(costs, _WHOLE, {"later": n} | whole)
    real_parts = _parts(costs, _REAL, real)
    w = np.zeros(sum(whole_parts.values()), dtype=np.int64)
    x = np.zeros(sum(real_parts.values()))
    begin = _begins(whole_parts) | _begins(real_parts)
    for key in _WHOLE:
        w[begin[key] : begin[key] + whole_parts[key]] = getattr(costs, key).ravel()
    for key in _REAL:
        x[begin[key] : begin[key] + real_parts[key]] = getattr(costs, key).ravel()
    if later is not None:
        w[begin["later"] : begin["later"] + n] = later
    passes = 1 if later is None else 2
    return SimulatorState(w, x, Layout(n, m, t, channels, len(costs.views), passes, **begin))


def copy_state(board: SimulatorState) -> SimulatorState:
    """A board of its own for another thread."""
    return SimulatorState(board.w.copy(), board.x.copy(), board.o)


_WHOLE = (
    "producer",
    "offsets",
    "consumers",
    "channel",
    "order",
    "in_offsets",
    "in_tensors",
    "out_offsets",
    "out_tensors",
    "alias",
    "views",
    "home_bytes",
    "kept_bytes",
    "resident_bytes",
    "memory_bytes",
)
_REAL = ("compute_s", "tensor_bytes", "latency_s", "seconds_per_byte")


def _state(
    n: int, m: int, t: int, channels: int, moves: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes of what a play writes."""
    whole = {"waiting": n, "queue": n, "queue_base": m + 1, "queue_size": m, "running": m}
    whole |= {"first_move": t + 1, "move_tensor": moves, "move_target": moves}
    whole |= {"move_best": moves, "move_refs": moves, "lane_queue": moves}
    whole |= {"lane_base": channels + 1, "lane_size": channels, "lane_busy": channels}
    whole |= {"dirty": channels, "flagged": channels, "events": m + moves, "refs": t}
    whole |= {"held": m, "peak": m, "best": m}
    whole |= {"moves": 1, "pending": 1, "touched": 1, "finished": 1, "culprit": 1}
    real = {"priority": n, "start_s": n, "end_s": n, "asked_s": moves, "sent_s": moves}
    return whole, real | {"event_s": m + moves, "changed_s": m}


def _parts(costs: Costs, keys: tuple[str, ...], state: dict[str, int]) -> dict[str, int]:
    return {key: int(getattr(costs, key).size) for key in keys} | state


def _begins(parts: dict[str, int]) -> dict[str, int]:
    ends = np.cumsum(list(parts.values())).tolist()
    return {key: end - size for (key, size), end in zip(parts.items(), ends, strict=True)}
