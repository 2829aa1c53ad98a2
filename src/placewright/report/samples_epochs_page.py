"""A run of wing 3 that plans again, as a page: its epochs, its events, its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placewright.report.loss_curves import Curve, loss_curves
from placewright.report.samples_epochs import emulated, total_s
from placewright.report.sheet import definitions, facts, heading, legend, section, sheet
from placewright.report.svg import device_class, drawing, label, tag, text, ticks
from placewright.report.text import percent, seconds
from placewright.samples.problem import SampleProblem
from placewright.samples.replanning import Step

WIDTH, LEFT, RIGHT, BAR, GAP = 1100.0, 90.0, 150.0, 18.0, 8.0


def samples_epochs_page(problem: SampleProblem, steps: Sequence[Step], *, real: bool) -> str:
    """The page as text; of a run that was interrupted, the epochs that have ended."""
    events = [event for k, step in enumerate(steps, 1) for event in _events(k, step)]
    told = "Grey: moving before the epoch. A dashed line: something happened in it."
    body = [
        heading(problem.name, "samples run, planned again", _verdict(steps)),
        facts(_facts(steps)),
        section("Epochs", told, _scroll(_epochs(steps)), _table(events)),
        section(
            "Samples of each node",
            "Before the run, and after every epoch.",
            legend(problem.node_names, ["" for _ in problem.node_names]),
            _scroll(_holdings(problem, steps)),
        ),
        section("Loss against time", "On the test images, after every epoch.", _losses(steps)),
        section("Provenance", "What was real.", definitions(_provenance(problem, real=real))),
    ]
    return sheet(f"{problem.name}: {seconds(total_s(steps))} measured", *body)


def _verdict(steps: Sequence[Step]) -> str:
    moved, lost = sum(step.moved for step in steps), sum(step.lost for step in steps)
    told = f"<b>{text(seconds(total_s(steps)))}</b> for {len(steps)} epochs, {moved} samples moved"
    return f"{told}, {lost} lost with nodes that left." if lost else f"{told}."


def _facts(steps: Sequence[Step]) -> Iterator[tuple[str, str, str]]:
    yield "measured", seconds(total_s(steps)), "lead"
    yield "moving", seconds(sum(step.move_s for step in steps)), ""
    yield "planned again", f"{sum(step.planned for step in steps[1:])} times", ""
    yield "nodes left", str(sum(len(step.left) for step in steps)), ""
    if steps:
        yield "test loss", f"{steps[-1].epoch.test_loss:.3f}", ""
        yield "accuracy", percent(steps[-1].epoch.accuracy), ""


def _events(number: int, step: Step) -> Iterator[tuple[int, str, str]]:
    """Epoch, what, and its numbers."""
    if step.planned and number > 1:
        yield number, "planned again", _moved(step) if step.moved else "no move pays"
    elif step.moved:
        yield number, "planned", _moved(step)
    elif step.unplanned:
        yield number, "not planned again", step.unplanned
    for name in step.left:
        yield number, "node left", f"{name}; {step.lost} samples lost in this epoch"


def _moved(step: Step) -> str:
    return f"{step.moved} samples moved in {seconds(step.move_s)}"


def _table(events: Sequence[tuple[int, str, str]]) -> str:
    if not events:
        return tag("p", "Nothing happened: one plan from the first epoch to the last.")
    head = tag("tr", *[tag("th", name) for name in ("epoch", "what", "")])
    rows = [tag("tr", *[tag("td", text(cell)) for cell in event]) for event in events]
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _epochs(steps: Sequence[Step]) -> str:
    """A bar per epoch: moving, then training."""
    top = max((step.move_s + step.epoch.seconds for step in steps), default=1.0) or 1.0
    parts, y = [], 4.0
    for k, step in enumerate(steps, 1):
        parts.append(_epoch(k, step, y, top))
        y += BAR + GAP
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 14, seconds(t) if t else "0", "tick", "middle")
        for t in ticks(top, 8)
    ]
    return drawing(WIDTH, y + 22, *lines, *parts, title="seconds of every epoch")


def _epoch(number: int, step: Step, y: float, top: float) -> str:
    moved, ended = _x(step.move_s, top), _x(step.move_s + step.epoch.seconds, top)
    happened = [what for _, what, _ in _events(number, step)]
    tip = f"epoch {number}\nmoving {seconds(step.move_s)}, training {seconds(step.epoch.seconds)}"
    parts = [
        label(LEFT - 10, y + 13, f"epoch {number}", "name", "end"),
        tag("g", _rect(LEFT, moved, y), class_="link"),
        _rect(moved, ended, y),
        label(ended + 8, y + 13, ", ".join(happened), "busy"),
    ]
    if happened:
        parts.append(tag("line", x1=LEFT, x2=LEFT, y1=y - 3, y2=y + BAR + 3, class_="capacity"))
    return tag("g", *parts, class_="d0", data_tip=tip)


def _rect(left: float, right: float, y: float) -> str:
    width = max(right - left, 0.0)
    return tag("rect", x=left, y=y, width=width, height=BAR, class_="span", rx=1.5)


def _holdings(problem: SampleProblem, steps: Sequence[Step]) -> str:
    """A stacked bar at the start and after every epoch."""
    start = dict(zip(problem.node_names, map(int, problem.held), strict=True))
    rows = [("before", start), *((f"epoch {k}", step.held) for k, step in enumerate(steps, 1))]
    total, parts, y = float(max(1, sum(start.values()))), [], 4.0
    for told, held in rows:
        left = LEFT
        parts.append(label(LEFT - 10, y + 13, told, "name", "end"))
        for i, name in enumerate(problem.node_names):
            right = left + (WIDTH - LEFT - RIGHT) * held.get(name, 0) / total
            bar = tag("g", _rect(left, right, y), data_tip=f"{name}: {held.get(name, 0)} samples")
            parts.append(tag("g", bar, class_=device_class(i), data_device=i))
            left = right
        parts.append(label(left + 8, y + 13, f"{sum(held.values())} samples", "busy"))
        y += BAR + GAP
    return drawing(WIDTH, y + 4, *parts, title="samples of each node")


def _losses(steps: Sequence[Step]) -> str:
    ends, elapsed_s = [], 0.0
    for step in steps:
        elapsed_s += step.move_s + step.epoch.seconds
        ends.append(elapsed_s)
    return _scroll(loss_curves([Curve("this run", tuple(ends), tuple(s.epoch for s in steps))]))


def _provenance(problem: SampleProblem, *, real: bool) -> dict[str, str]:
    return {
        "problem": problem.name,
        "problem hash": problem.hash(),
        "engine": "torch.distributed gloo, one process per node",
        "emulated": emulated(real=real),
    }


def _x(time_s: float, top: float) -> float:
    return LEFT + time_s / top * (WIDTH - LEFT - RIGHT)


def _scroll(picture: str) -> str:
    return tag("div", picture, class_="scroll")
