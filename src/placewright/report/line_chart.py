"""Lines through points: axes, a legend above, a tip at every point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewright.report.page import device_class, drawing, label, tag, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1100.0, 300.0, 64.0, 40.0, 34.0, 40.0
LETTER, MARK = 7.5, 12.0
"""Widths of the legend: of a letter on average, of the colour before a name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A named line.

    Attributes
    ----------
    points
        In the order in which they are joined.
    tips
        What a point shows under the pointer; its coordinates where there are none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tips: Sequence[str] = ()


def line_chart(
    lines: Sequence[Line],
    across: str,
    up: str,
    *,
    from_zero: bool = False,
    across_text: Callable[[float], str] = "{:g}".format,
    aim: tuple[float, str] | None = None,
) -> str:
    """The chart as SVG.

    `across`, `up`: what the axes show.
    `from_zero`: both axes begin at zero, not at the smallest value.
    `across_text`: how a value of the horizontal axis is written.
    `aim`: a height with its text, drawn as a dashed line.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return tag("p", "Nothing to draw yet.")
    heights = [y for _, y in points] + ([aim[0]] if aim is not None else [])
    frame = _Frame(_range([x for x, _ in points], from_zero), _range(heights, from_zero))
    parts = [*frame.axes(across_text), *_names(across, up), *_legend([line.name for line in lines])]
    if aim is not None:
        y = frame.y(aim[0])
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="capacity"))
        parts.append(label(LEFT + 6, y - 4, aim[1], "tick"))
    parts += [_line(line, k, frame) for k, line in enumerate(lines)]
    return drawing(WIDTH, HEIGHT, *parts, title=f"{up} over {across}")


def _range(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """A little more than the values; never empty."""
    low, high = 0.0 if from_zero else min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if from_zero else low - room), high + room


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values are in the drawing."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def axes(self, across_text: Callable[[float], str]) -> list[str]:
        found = []
        for value in ticks(self.up[1], low=self.up[0]):
            y = self.y(value)
            found.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            found.append(label(LEFT - 6, y + 4, f"{value:g}", "tick", "end"))
        for value in ticks(self.across[1], 8, low=self.across[0]):
            at = across_text(value)
            found.append(label(self.x(value), HEIGHT - BOTTOM + 16, at, "tick", "middle"))
        return found


def _names(across: str, up: str) -> list[str]:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [label(0.0, 14.0, up, "tick"), label(middle, HEIGHT - 6, across, "tick", "middle")]


def _legend(names: Sequence[str]) -> list[str]:
    found, x = [], WIDTH - RIGHT - sum(MARK + 18 + LETTER * len(name) for name in names)
    for k, name in enumerate(names):
        box = tag("rect", x=x, y=5.0, width=MARK, height=MARK, rx=3, class_="span")
        found.append(tag("g", box, class_=device_class(k)))
        found.append(label(x + MARK + 6, 15.0, name, "name"))
        x += MARK + 18 + LETTER * len(name)
    return found


def _line(line: Line, colour: int, frame: _Frame) -> str:
    if not line.points:
        return ""
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    drawn = tag("path", d=path, style="fill:none;stroke:var(--c);stroke-width:2")
    tips = line.tips or [f"{line.name}\n{x:g}: {y:.5g}" for x, y in line.points]
    dots = [
        tag("circle", cx=x, cy=y, r=3.5, class_="span", data_tip=tip)
        for (x, y), tip in zip(places, tips, strict=True)
    ]
    return tag("g", drawn, *dots, class_=device_class(colour), data_device=colour)
