"""Drawings of wing 3: the map of moves, bars of the nodes, loss against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.report.page import Line, device_class, drawing, label, line_chart, tag, ticks
from placewright.report.text import percent, seconds
from placewright.samples.judge import SampleJudgement
from placewright.samples.problem import Overlap
from placewright.samples.simulation import waits_for_all

if TYPE_CHECKING:
    from placewright.samples.training.node_training import Epoch

WIDTH, MAP_HEIGHT, RADIUS = 1120.0, 560.0, 220.0
MOST_ARROWS, MOST_NAMES = 150, 48
WIDEST = 12.0
LARGEST_NODE = 17.0


def sample_map(judgement: SampleJudgement) -> str:
    """The map as SVG; of many flows the largest, with a note on how many are left out."""
    plan, n = judgement.plan, judgement.problem.n
    place = [_place(i, n) for i in range(n)]
    order = np.argsort(-plan.count, kind="stable")[:MOST_ARROWS].tolist()
    top = float(plan.count.max(initial=1))
    arrows = [_arrow(judgement, m, place, top) for m in reversed(order)]
    nodes = [_map_node(judgement, i, place[i]) for i in range(n)]
    left_out = len(plan.count) - len(order)
    note = label(12.0, MAP_HEIGHT - 10, f"and {left_out} smaller moves", "tick") if left_out else ""
    return drawing(WIDTH, MAP_HEIGHT, *arrows, *nodes, note, title="map of flows")


def _place(i: int, n: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / n - math.pi / 2
    return WIDTH / 2 + 1.9 * RADIUS * math.cos(angle), MAP_HEIGHT / 2 + RADIUS * math.sin(angle)


def _arrow(judgement: SampleJudgement, m: int, place: list[tuple[float, float]], top: float) -> str:
    """A bow towards the middle that gets wider with the samples, and a dot where it ends."""
    plan, names = judgement.plan, judgement.problem.node_names
    i, j, count = int(plan.source[m]), int(plan.target[m]), int(plan.count[m])
    (x0, y0), (x1, y1) = place[i], place[j]
    mx, my = (x0 + x1) / 4 + WIDTH / 4, (y0 + y1) / 4 + MAP_HEIGHT / 4
    width = 0.6 + (WIDEST - 0.6) * math.sqrt(count / top)
    path = f"M{x0:.1f} {y0:.1f}Q{mx:.1f} {my:.1f} {x1:.1f} {y1:.1f}"
    style = f"fill:none;stroke:var(--c);stroke-width:{width:.1f};stroke-opacity:.45"
    tip = f"{names[i]} to {names[j]}\n{count} samples"
    return tag("path", d=path, style=style, class_=device_class(i), data_device=i, data_tip=tip)


def _map_node(judgement: SampleJudgement, i: int, at: tuple[float, float]) -> str:
    problem, (x, y) = judgement.problem, at
    held, before = int(judgement.held[i].sum()), int(problem.held[i])
    share = held / max(int(judgement.held.sum(axis=1).max()), 1)
    name = problem.node_names[i]
    radius = 2.5 + (LARGEST_NODE - 2.5) * math.sqrt(share)
    left = x < WIDTH / 2
    beside = x + (-radius - 5 if left else radius + 5)
    parts = [
        tag(
            "circle",
            cx=x,
            cy=y,
            r=radius,
            class_="node",
            data_tip=f"{name}\n{before} samples before, {held} after",
        )
    ]
    if problem.n <= MOST_NAMES:
        sign = held - before
        parts.append(label(beside, y + 4, f"{name} {sign:+d}", "tick", "end" if left else "start"))
    return tag("g", *parts, class_=device_class(i), data_device=i)


BARS_LEFT, BARS_RIGHT = 132.0, 150.0
BAR, GAP = 9.0, 7.0
MOST_BARS = 60


def node_bars(judgement: SampleJudgement, still: SampleJudgement) -> str:
    """The bars as SVG; of many nodes those that end last in either case."""
    top = max(float(judgement.end_s.max()), float(still.end_s.max())) or 1.0
    last = np.argsort(-np.maximum(judgement.end_s, still.end_s), kind="stable")
    drawn = sorted(last[:MOST_BARS].tolist())
    parts, y = [], 4.0
    for i in drawn:
        parts.append(_node_bars(judgement, still, i, y, top))
        y += 2 * BAR + GAP
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 14, seconds(t), "tick", "middle")
        for t in ticks(top, 8)
    ]
    end = _x(float(judgement.end_s.max()), top)
    mark = tag("line", x1=end, x2=end, y1=2.0, y2=y, class_="end")
    left_out = judgement.problem.n - len(drawn)
    note = (
        label(BARS_LEFT - 10, y + 14, f"and {left_out} earlier", "tick", "end") if left_out else ""
    )
    return drawing(WIDTH, y + 22, *lines, *parts, mark, note, title="nodes before and after")


def _node_bars(j: SampleJudgement, still: SampleJudgement, i: int, y: float, top: float) -> str:
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
        label(
            BARS_LEFT - 10, y + BAR + 4, name if len(name) <= 18 else name[:17] + "…", "name", "end"
        ),
        tag("g", *bars, data_tip=tip),
        label(WIDTH - BARS_RIGHT + 10, y + BAR + 4, f"{before} to {after} samples", "busy"),
        class_=device_class(i),
        data_device=i,
    )


def _bar(start: float, end: float, y: float, top: float, class_: str, opacity: str | None) -> str:
    x, width = _x(start, top), max(_x(end, top) - _x(start, top), 0.4)
    return tag(
        "rect", x=x, y=y, width=width, height=BAR - 1, class_=class_, opacity=opacity, rx=1.5
    )


def _x(time_s: float, top: float) -> float:
    return BARS_LEFT + time_s / top * (WIDTH - BARS_LEFT - BARS_RIGHT)


@dataclass(frozen=True, slots=True)
class Curve:
    """When each epoch ended, moving included, and how good the parameters were then."""

    name: str
    ends_s: tuple[float, ...]
    epochs: tuple[Epoch, ...]


def loss_curves(curves: Sequence[Curve], aim: float | None = None) -> str:
    """The curves as SVG; with a line at the loss that is aimed at."""
    return line_chart(
        [_line(curve) for curve in curves],
        "time",
        "test loss",
        from_zero=True,
        across_text=seconds,
        aim=None if aim is None else (aim, f"to reach: {aim:.3f}"),
    )


def _line(curve: Curve) -> Line:
    ends = list(zip(curve.ends_s, curve.epochs, strict=True))
    tips = [
        f"{curve.name}, epoch {k + 1}, after {seconds(end_s)}\n"
        f"test loss {epoch.test_loss:.3f}, loss {epoch.loss:.3f}, "
        f"accuracy {percent(epoch.accuracy)}"
        for k, (end_s, epoch) in enumerate(ends)
    ]
    return Line(curve.name, [(end_s, epoch.test_loss) for end_s, epoch in ends], tips)
