"""Every node's time without moving and with the plan, one above the other."""

from __future__ import annotations

import numpy as np

from placewright.report.svg import device_class, drawing, label, tag, ticks
from placewright.report.text import seconds
from placewright.samples.judge import SampleJudgement
from placewright.samples.problem import Overlap
from placewright.samples.simulation.ends import waits_for_all

WIDTH, LEFT, RIGHT = 1120.0, 132.0, 150.0
BAR, GAP = 9.0, 7.0
MOST_NODES = 60


def node_bars(judgement: SampleJudgement, still: SampleJudgement) -> str:
    """The bars as SVG; of many nodes those that end last in either case."""
    top = max(float(judgement.end_s.max()), float(still.end_s.max())) or 1.0
    last = np.argsort(-np.maximum(judgement.end_s, still.end_s), kind="stable")
    shown = sorted(last[:MOST_NODES].tolist())
    parts, y = [], 4.0
    for i in shown:
        parts.append(_node(judgement, still, i, y, top))
        y += 2 * BAR + GAP
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 14, seconds(t), "tick", "middle")
        for t in ticks(top, 8)
    ]
    end = _x(float(judgement.end_s.max()), top)
    mark = tag("line", x1=end, x2=end, y1=2.0, y2=y, class_="end")
    left_out = judgement.problem.n - len(shown)
    note = label(LEFT - 10, y + 14, f"and {left_out} earlier", "tick", "end") if left_out else ""
    return drawing(WIDTH, y + 22, *lines, *parts, mark, note, title="nodes before and after")


def _node(j: SampleJudgement, still: SampleJudgement, i: int, y: float, top: float) -> str:
    name, before, after = j.problem.node_names[i], int(j.problem.held[i]), int(j.held[i].sum())
    hidden = j.problem.overlap is Overlap.HIDDEN
    moved = float(j.moved_s.max() if waits_for_all(j.problem) else j.moved_s[i])
    began = 0.0 if hidden else moved
    tip = f"{name}\nwithout moving {seconds(float(still.end_s[i]))}"
    tip += f"\nmoving {seconds(moved)}, training {seconds(float(j.trained_s[i]))}"
    bars = [
        _bar(0.0, float(still.end_s[i]), y, top, "span", ".35"),
        tag("g", _bar(0.0, moved, y + BAR, top, "span", None), class_="link"),
        _bar(began, began + float(j.trained_s[i]), y + BAR, top, "span", ".6" if hidden else None),
    ]
    return tag(
        "g",
        label(LEFT - 10, y + BAR + 4, name if len(name) <= 18 else name[:17] + "…", "name", "end"),
        tag("g", *bars, data_tip=tip),
        label(WIDTH - RIGHT + 10, y + BAR + 4, f"{before} to {after} samples", "busy"),
        class_=device_class(i),
        data_device=i,
    )


def _bar(start: float, end: float, y: float, top: float, class_: str, opacity: str | None) -> str:
    x, width = _x(start, top), max(_x(end, top) - _x(start, top), 0.4)
    return tag(
        "rect", x=x, y=y, width=width, height=BAR - 1, class_=class_, opacity=opacity, rx=1.5
    )


def _x(time_s: float, top: float) -> float:
    return LEFT + time_s / top * (WIDTH - LEFT - RIGHT)
