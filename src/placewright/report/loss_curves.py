"""Loss on the test images against time: one curve for each way to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewright.report.svg import device_class, drawing, label, tag, ticks
from placewright.report.text import percent, seconds
from placewright.samples.training.trainer import Epoch

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1100.0, 320.0, 64.0, 150.0, 16.0, 30.0


@dataclass(frozen=True, slots=True)
class Curve:
    """When each epoch ended, moving included, and how good the parameters were then."""

    name: str
    ends_s: tuple[float, ...]
    epochs: tuple[Epoch, ...]


def loss_curves(curves: Sequence[Curve], aim: float | None = None) -> str:
    """The curves as SVG; with a line at the loss that is aimed at."""
    points = [(end_s, e.test_loss) for c in curves for end_s, e in _points(c)]
    if not points:
        return tag("p", "No epoch has ended.")
    frame = _Frame(max(x for x, _ in points) or 1.0, 1.05 * max(y for _, y in points) or 1.0)
    mark = ""
    if aim is not None:
        y = frame.y(aim)
        mark = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="capacity")
        mark += label(LEFT + 6, y - 4, f"to reach: {aim:.3f}", "tick")
    drawn = [_curve(curve, k, frame) for k, curve in enumerate(curves)]
    return drawing(WIDTH, HEIGHT, *frame.axes(), mark, *drawn, title="test loss against time")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where time and loss are on the page."""

    last_s: float
    top: float

    def x(self, time_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * time_s / self.last_s

    def y(self, loss: float) -> float:
        return TOP + (1 - loss / self.top) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        lines = []
        for value in ticks(self.top):
            y = self.y(value)
            lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            lines.append(label(LEFT - 6, y + 4, f"{value:g}", "tick", "end"))
        for time_s in ticks(self.last_s, 8):
            told = seconds(time_s) if time_s else "0"
            lines.append(label(self.x(time_s), HEIGHT - 8, told, "tick", "middle"))
        return lines


def _points(curve: Curve) -> list[tuple[float, Epoch]]:
    return list(zip(curve.ends_s, curve.epochs, strict=True))


def _curve(curve: Curve, number: int, frame: _Frame) -> str:
    places = [(frame.x(end_s), frame.y(e.test_loss)) for end_s, e in _points(curve)]
    if not places:
        return ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    line = tag("path", d=path, style="fill:none;stroke:var(--c);stroke-width:2")
    dots = [
        tag("circle", cx=x, cy=y, r=3.5, class_="span", data_tip=_tip(curve, k))
        for k, (x, y) in enumerate(places)
    ]
    name = label(places[-1][0] + 9, places[-1][1] + 4, curve.name, "name")
    return tag("g", line, *dots, name, class_=device_class(number), data_device=number)


def _tip(curve: Curve, k: int) -> str:
    epoch = curve.epochs[k]
    told = f"{curve.name}, epoch {k + 1}, after {seconds(curve.ends_s[k])}\n"
    told += f"test loss {epoch.test_loss:.3f}, loss {epoch.loss:.3f}"
    return f"{told}, accuracy {percent(epoch.accuracy)}"
