"""Memory over time: one small chart per device, with its capacity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.report.svg import device_class, drawing, label, number, tag
from placewright.report.text import percent, seconds, size

if TYPE_CHECKING:
    from placewright.report.trace import MemoryCurve, Trace

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540.0, 150.0, 12.0, 12.0, 26.0, 20.0
COLUMNS = 500
FAR = 0.2
"""A peak below this part of the capacity is drawn to its own scale."""


def memory_charts(trace: Trace) -> str:
    """All devices' curves as SVG, to one time scale."""
    until = trace.duration_s or 1.0
    return "".join(_chart(trace, curve, until) for curve in trace.memory)


def _chart(trace: Trace, curve: MemoryCurve, until: float) -> str:
    name, peak = trace.tracks[curve.track], float(curve.held_bytes.max(initial=0.0))
    limited = math.isfinite(curve.capacity_bytes)
    near = limited and peak > FAR * curve.capacity_bytes
    top = max(curve.capacity_bytes * 1.06 if near else peak * 2, peak * 1.06, 1.0)
    capacity = _capacity(curve.capacity_bytes, top) if near else _far_capacity(curve, limited)
    share = f" of {size(curve.capacity_bytes)}" if limited else ""
    picture = drawing(
        WIDTH,
        HEIGHT,
        label(LEFT, 16, name, "name"),
        label(WIDTH - RIGHT, 16, f"peak {size(peak)}{share}", "busy", "end"),
        tag("path", d=_area(curve, until, top), class_="span"),
        tag(
            "line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="grid"
        ),
        label(LEFT, HEIGHT - 6, "0", "tick"),
        label(WIDTH - RIGHT, HEIGHT - 6, seconds(until), "tick", "end"),
        capacity,
        title=f"memory of {name}: peak {size(peak)}{share}",
    )
    tip = f"{name}: peak {size(peak)}{share}"
    tip += f" ({percent(peak / curve.capacity_bytes)})" if limited else ""
    return tag(
        "figure", picture, class_=device_class(curve.track), data_device=curve.track, data_tip=tip
    )


def _capacity(capacity: float, top: float) -> str:
    y = _y(capacity, top)
    return tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="capacity") + label(
        LEFT + 4, y + 13, f"capacity {size(capacity)}", "tick"
    )


def _far_capacity(curve: MemoryCurve, limited: bool) -> str:
    """A label for a capacity that would flatten the curve if it was drawn."""
    words = f"far below its {size(curve.capacity_bytes)}" if limited else "no limit"
    return label(LEFT + 4, TOP + 13, words, "tick")


def _area(curve: MemoryCurve, until: float, top: float) -> str:
    """A stepped area; each column of pixels shows the most that was held in it."""
    held = column_peaks(curve.times_s, curve.held_bytes, until)
    step = (WIDTH - LEFT - RIGHT) / len(held)
    path, last = [f"M{number(LEFT)} {number(HEIGHT - BOTTOM)}"], ""
    for k, value in enumerate(held.tolist()):
        y = number(_y(value, top))
        if y != last:
            path.append(f"H{number(LEFT + k * step)}V{y}")
            last = y
    return "".join([*path, f"H{number(WIDTH - RIGHT)}V{number(HEIGHT - BOTTOM)}Z"])


def column_peaks(times_s: FloatArray, held: FloatArray, until: float) -> FloatArray:
    """Most bytes held in each of `COLUMNS` equal parts of ``[0, until]``."""
    edges = np.linspace(0.0, until, COLUMNS + 1)[:-1]
    at_edge = np.searchsorted(times_s, edges, side="right") - 1
    peaks = np.where(at_edge >= 0, held[np.maximum(at_edge, 0)], 0.0) if len(held) else 0 * edges
    column = np.clip((times_s / until * COLUMNS).astype(np.int64), 0, COLUMNS - 1)
    np.maximum.at(peaks, column, held)
    return peaks


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)
