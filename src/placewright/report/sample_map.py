"""Nodes on a circle and the samples that go between them as arrows."""

from __future__ import annotations

import math

import numpy as np

from placewright.report.svg import device_class, drawing, label, tag
from placewright.samples.judge import SampleJudgement

WIDTH, HEIGHT, RADIUS = 1120.0, 560.0, 220.0
MOST_ARROWS, MOST_NAMES = 150, 48
WIDEST = 12.0
LARGEST_NODE = 17.0


def sample_map(judgement: SampleJudgement) -> str:
    """The map as SVG; of many flows the largest, and it says how many are left out."""
    plan, n = judgement.plan, judgement.problem.n
    place = [_place(i, n) for i in range(n)]
    order = np.argsort(-plan.count, kind="stable")[:MOST_ARROWS].tolist()
    top = float(plan.count.max(initial=1))
    arrows = [_arrow(judgement, m, place, top) for m in reversed(order)]
    nodes = [_node(judgement, i, place[i]) for i in range(n)]
    left_out = len(plan.count) - len(order)
    note = label(12.0, HEIGHT - 10, f"and {left_out} smaller moves", "tick") if left_out else ""
    return drawing(WIDTH, HEIGHT, *arrows, *nodes, note, title="map of flows")


def _place(i: int, n: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / n - math.pi / 2
    return WIDTH / 2 + 1.9 * RADIUS * math.cos(angle), HEIGHT / 2 + RADIUS * math.sin(angle)


def _arrow(judgement: SampleJudgement, m: int, place: list[tuple[float, float]], top: float) -> str:
    """A bow towards the middle that gets wider with the samples, and a dot where it ends."""
    plan, names = judgement.plan, judgement.problem.node_names
    i, j, count = int(plan.source[m]), int(plan.target[m]), int(plan.count[m])
    (x0, y0), (x1, y1) = place[i], place[j]
    mx, my = (x0 + x1) / 4 + WIDTH / 4, (y0 + y1) / 4 + HEIGHT / 4
    width = 0.6 + (WIDEST - 0.6) * math.sqrt(count / top)
    path = f"M{x0:.1f} {y0:.1f}Q{mx:.1f} {my:.1f} {x1:.1f} {y1:.1f}"
    style = f"fill:none;stroke:var(--c);stroke-width:{width:.1f};stroke-opacity:.45"
    tip = f"{names[i]} to {names[j]}\n{count} samples"
    return tag("path", d=path, style=style, class_=device_class(i), data_device=i, data_tip=tip)


def _node(judgement: SampleJudgement, i: int, at: tuple[float, float]) -> str:
    problem, (x, y) = judgement.problem, at
    held, before = int(judgement.held[i].sum()), int(problem.held[i])
    share = held / max(int(judgement.held.sum(axis=1).max()), 1)
    name = problem.node_names[i]
    radius = 2.5 + (LARGEST_NODE - 2.5) * math.sqrt(share)
    left = x < WIDTH / 2
    beside = x + (-radius - 5 if left else radius + 5)
    shown = [
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
        shown.append(label(beside, y + 4, f"{name} {sign:+d}", "tick", "end" if left else "start"))
    return tag("g", *shown, class_=device_class(i), data_device=i)
