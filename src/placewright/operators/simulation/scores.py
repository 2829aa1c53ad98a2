"""Value and excess bytes of placements, compiled: used by searches and batches.

The fast simulator runs first; where it is unsure, and for serial problems, the full one.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_nogil
from placewright.operators.simulation.fast.memory import bytes_over
from placewright.operators.simulation.fast.simulate import (
    UNSURE,
    offsets_of,
    prepare,
    simulate_prepared,
)
from placewright.operators.simulation.fast.state import FastState
from placewright.operators.simulation.full.simulate import (
    largest_load,
    makespan,
    over_bytes,
    simulate,
)
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.inputs import DONE, Mode


@njit_inline
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
    """Value and bytes over; ``inf`` and 0 where a placement cannot be simulated.

    Bytes are counted with `mode.memory` only. `load_s` is scratch of shape (m,).
    """
    needed, value, over = _needs_simulation(s, mode, throughput), UNSURE, 0
    if needed and not mode.serial:
        prepare(s, mode, place, order, 0)
        simulate_prepared(s, mode, 1)
        value, over = _fast_result(s, mode, 0)
    if needed and value == UNSURE:
        value, over = _full_result(w, x, o, mode, place, order)
    if throughput and value < np.inf:
        value = largest_load(w, x, o, place, load_s)
    return value, over


@njit_inline
def _needs_simulation(s: FastState, mode: Mode, throughput: bool) -> bool:
    """Whether the loads of the devices alone do not suffice."""
    return not throughput or mode.memory or mode.in_order or not s.all_linked


@njit_inline
def _fast_result(s: FastState, mode: Mode, number: int) -> tuple[float, int]:
    """Makespan and bytes over of fast simulation `number`, or `UNSURE` and 0."""
    value, over = s.makespan_s[number], 0
    if mode.memory and UNSURE < value < np.inf:
        over = bytes_over(s, offsets_of(s, number), value)
    return value, over


@njit_inline
def _full_result(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> tuple[float, int]:
    """Makespan and bytes over by the full simulator."""
    if simulate(w, x, o, mode, place, order) != DONE:
        return np.inf, 0
    return makespan(x, o), over_bytes(w, o) if mode.memory else 0


@njit_nogil
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
    """`score` for every row; as many as the fast simulator interleaves are simulated at once."""
    load_s, interleaved, rows = np.zeros(o.m), len(s.unfinished), len(placements)
    needed = _needs_simulation(s, mode, throughput)
    for first in range(0, rows, interleaved):
        count = min(interleaved, rows - first)
        # The fast simulator knows no serial mode: `UNSURE` stays, and the full one runs.
        if needed and not mode.serial:
            for number in range(count):
                prepare(s, mode, placements[first + number], order, number)
            simulate_prepared(s, mode, count)
        for number in range(count):
            value, over, place = UNSURE, 0, placements[first + number]
            if needed and not mode.serial:
                value, over = _fast_result(s, mode, number)
            if needed and value == UNSURE:
                value, over = _full_result(w, x, o, mode, place, order)
            if throughput and value < np.inf:
                value = largest_load(w, x, o, place, load_s)
            value_s[first + number], violation_bytes[first + number] = value, over
