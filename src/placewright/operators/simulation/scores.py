"""Value and bytes over of placements, compiled: what searches and batches ask the judge for."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, released
from placewright.operators.simulation.fast.memory import bytes_over
from placewright.operators.simulation.fast.simulate import UNSURE, play_seated, seat_of, sit
from placewright.operators.simulation.fast.state import FastState
from placewright.operators.simulation.full import kernels
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import Mode


@inlined
def score(
    s: FastState,
    w: IntArray,
    x: FloatArray,
    o: Layout,
    mode: Mode,
    throughput: bool,
    place: IntArray,
    order: IntArray,
    load_s: FloatArray,
) -> tuple[float, int]:
    """Value and bytes over; ``inf`` and 0 where a placement cannot be played.

    `mode.memory` asks for bytes. `load_s` is scratch of shape (m,).
    """
    played, value, over = _play_needed(s, mode, throughput), UNSURE, 0
    if played and not mode.serial:
        sit(s, mode, place, order, 0)
        play_seated(s, mode, 1)
        value, over = _told(s, mode, 0)
    if played and value == UNSURE:
        value, over = _general(w, x, o, mode, place, order)
    if throughput and value < np.inf:
        value = kernels.largest_load(w, x, o, place, load_s)
    return value, over


@inlined
def _play_needed(s: FastState, mode: Mode, throughput: bool) -> bool:
    """Whether loads alone do not tell all that is asked for."""
    return not throughput or mode.memory or mode.in_order or not s.sure


@inlined
def _told(s: FastState, mode: Mode, number: int) -> tuple[float, int]:
    """What the fast path has said."""
    value, over = s.last_s[number], 0
    if mode.memory and UNSURE < value < np.inf:
        over = bytes_over(s, seat_of(s, number), value)
    return value, over


@inlined
def _general(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> tuple[float, int]:
    """Makespan and bytes over by the general play."""
    if kernels.run(w, x, o, mode, place, order) != kernels.DONE:
        return np.inf, 0
    return kernels.makespan(x, o), kernels.over_bytes(w, o) if mode.memory else 0


@released
def run_many(
    s: FastState,
    w: IntArray,
    x: FloatArray,
    o: Layout,
    mode: Mode,
    throughput: bool,
    placements: IntArray,
    order: IntArray,
    value_s: FloatArray,
    violation_bytes: IntArray,
) -> None:
    """`score` for every row; as many as there are seats are played side by side."""
    load_s, handles, rows = np.zeros(o.m), len(s.left), len(placements)
    played = _play_needed(s, mode, throughput)
    for first in range(0, rows, handles):
        count = min(handles, rows - first)
        if played and not mode.serial:
            for number in range(count):
                sit(s, mode, placements[first + number], order, number)
            play_seated(s, mode, count)
        for number in range(count):
            value, over, place = UNSURE, 0, placements[first + number]
            if played and not mode.serial:
                value, over = _told(s, mode, number)
            if played and value == UNSURE:
                value, over = _general(w, x, o, mode, place, order)
            if throughput and value < np.inf:
                value = kernels.largest_load(w, x, o, place, load_s)
            value_s[first + number], violation_bytes[first + number] = value, over
