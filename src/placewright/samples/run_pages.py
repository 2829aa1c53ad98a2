"""The pages of runs of wing 3: beside their baselines, and planned again epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from placewright.planning.result import Result
from placewright.report.gantt import timeline
from placewright.report.page import (
    definitions,
    device_class,
    drawing,
    facts,
    heading,
    html_page,
    label,
    legend,
    number,
    scroll,
    section,
    tag,
    text,
    ticks,
)
from placewright.report.text import percent, seconds, size
from placewright.report.trace import Trace
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import nothing
from placewright.samples.problem import Overlap, Ports, SampleProblem
from placewright.samples.run import SampleRun
from placewright.samples.views import (
    ENGINE,
    MOST_TRACKS,
    Curve,
    beside_others,
    emulated,
    loss_curves,
    loss_to_reach,
    moves_sections,
    total_s,
)

if TYPE_CHECKING:
    from placewright.samples.adaptive import AdaptiveEpoch

WIDTH, LEFT, RIGHT, BAR, GAP = 1100.0, 90.0, 150.0, 18.0, 8.0


def samples_run_page(result: Result, runs: Sequence[SampleRun]) -> str:
    """The page as text; the first of `runs` is the plan of `result`."""
    ours = runs[0]
    problem = result.problem.replace(overlap=Overlap.BARRIER, ports=Ports.QUEUED)
    judged, still = judge(problem, result.plan), judge(problem, nothing())
    body = [
        heading(problem.name, "samples run", _run_verdict(runs)),
        facts(_run_facts(result, ours)),
        moves_sections(judged, still),
        _timelines(judged, ours) if problem.n <= MOST_TRACKS else "",
        _run_losses(runs),
        _compared(runs),
        _run_provenance(result, ours),
    ]
    return html_page(f"{problem.name}: {seconds(ours.measured_s)} measured", *body)


def _run_verdict(runs: Sequence[SampleRun]) -> str:
    ours, loss = runs[0], loss_to_reach(runs)
    first = f"<b>{text(seconds(ours.measured_s))}</b> for moving and training"
    return "; ".join([first, *map(text, beside_others(runs, loss))]) + "."


def _run_facts(result: Result, ours: SampleRun) -> Iterator[tuple[str, str, str]]:
    yield "measured", seconds(ours.measured_s), "lead"
    if ours.predicted_s is not None:
        yield "predicted", seconds(ours.predicted_s), "lead"
        yield "prediction error", percent(ours.predicted_s / ours.measured_s - 1), ""
    yield "moving", seconds(ours.move_s), ""
    yield "samples moved", str(ours.moved_samples), ""
    yield "bytes moved", size(ours.moved_samples * result.problem.sample_bytes), ""
    yield "planner", result.planner, ""
    yield "accuracy", percent(ours.trained.epochs[-1].accuracy), ""


def _timelines(judged: SampleJudgement, ours: SampleRun) -> str:
    """Prediction and measurement to one scale."""
    names = judged.problem.node_names
    predicted, measured = judged.trace(), run_trace(ours, names)
    until = max(predicted.duration_s, measured.duration_s)
    return section(
        "Moves and steps, predicted and measured",
        "Both to one scale. Measured are a node's own gradients in every step; between them it "
        "waits for the others and exchanges gradients.",
        legend(names, ["" for _ in names]),
        tag("h3", tag("b", "Predicted"), f" {text(seconds(judged.value))}"),
        timeline(predicted, title="predicted timeline", until_s=until),
        tag("h3", tag("b", "Measured"), f" {text(seconds(ours.measured_s))}"),
        timeline(measured, title="measured timeline", until_s=until),
    )


def _run_losses(runs: Sequence[SampleRun]) -> str:
    curves = [Curve(run.name, run.epoch_ends_s, run.trained.epochs) for run in runs]
    subtitle = "On the test samples, after every epoch; moving comes first."
    return section("Loss against time", subtitle, scroll(loss_curves(curves, loss_to_reach(runs))))


def _compared(runs: Sequence[SampleRun]) -> str:
    """Every way to train: a predicted bar over a measured one."""
    top = max(max(run.measured_s, run.predicted_s or 0.0) for run in runs) or 1.0
    loss = loss_to_reach(runs)
    names = ("", "predicted over measured", "predicted", "measured", "error", "to same loss")
    cells = [tag("th", name, class_="num" if k > 1 else None) for k, name in enumerate(names)]
    rows = [_row(run, top, loss, chosen=run is runs[0]) for run in runs]
    subtitle = "Grey: predicted, which is possible for synchronous training on all samples only."
    table = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows))
    return section("Predicted beside measured", subtitle, scroll(table))


def _row(run: SampleRun, top: float, loss: float, *, chosen: bool) -> str:
    predicted, reached = run.predicted_s, run.seconds_to(loss)
    bars = _bar(predicted, top, "var(--link)") + _bar(run.measured_s, top, "var(--c0)")
    cells = (
        "-" if predicted is None else seconds(predicted),
        seconds(run.measured_s),
        "-" if predicted is None else percent(predicted / run.measured_s - 1),
        "-" if reached is None else seconds(reached),
    )
    return tag(
        "tr",
        tag("td", text(run.name), class_="who"),
        tag("td", bars, style="width:40%"),
        *[tag("td", text(cell), class_="num") for cell in cells],
        class_="chosen" if chosen else None,
    )


def _bar(value: float | None, top: float, colour: str) -> str:
    width = 0.0 if value is None else 100 * value / top
    style = f"height:7px;margin:2px 0;border-radius:2px;width:{number(width)}%;background:{colour}"
    return tag("div", "&#8203;", style=style)


def _run_provenance(result: Result, ours: SampleRun) -> str:
    entries = {
        "problem": result.problem.name,
        "problem hash": result.provenance.problem_hash,
        "nodes, samples, epochs": f"{result.problem.n}, {int(result.problem.held.sum())}, "
        f"{len(ours.trained.epochs)}",
        "engine": ENGINE,
        "emulated": emulated(real=ours.real),
        "seed": str(result.provenance.seed),
        "placewright": result.provenance.placewright,
        "python": result.provenance.python,
    }
    return section("Provenance", "What is needed to do the same again.", definitions(entries))


def samples_epochs_page(
    problem: SampleProblem, steps: Sequence[AdaptiveEpoch], *, real: bool
) -> str:
    """The page as text; of a run that was interrupted, the epochs that have ended."""
    events = [event for k, step in enumerate(steps) for event in _events(step, again=k > 0)]
    body = [
        heading(problem.name, "samples run, planned again", _verdict(steps)),
        facts(_facts(steps)),
        section(
            "Epochs",
            "Grey: moving before the epoch. Dashed: an event in it.",
            scroll(_epochs(steps)),
            _table(events),
        ),
        section(
            "Samples of each node",
            "Before the run, and after every epoch.",
            legend(problem.node_names, ["" for _ in problem.node_names]),
            scroll(_holdings(problem, steps)),
        ),
        section("Loss against time", "On the test samples, after every epoch.", _losses(steps)),
        section("Provenance", "What was real.", definitions(_provenance(problem, real=real))),
    ]
    return html_page(f"{problem.name}: {seconds(total_s(steps))} measured", *body)


def _verdict(steps: Sequence[AdaptiveEpoch]) -> str:
    moved, lost = sum(step.moved for step in steps), sum(step.lost for step in steps)
    line = f"<b>{text(seconds(total_s(steps)))}</b> for {len(steps)} epochs, {moved} samples moved"
    return f"{line}, {lost} lost with nodes that left." if lost else f"{line}."


def _facts(steps: Sequence[AdaptiveEpoch]) -> Iterator[tuple[str, str, str]]:
    yield "measured", seconds(total_s(steps)), "lead"
    yield "moving", seconds(sum(step.move_s for step in steps)), ""
    yield "planned again", f"{sum(step.planned for step in steps[1:])} times", ""
    yield "nodes left", str(sum(len(step.left) for step in steps)), ""
    if steps:
        yield "test loss", f"{steps[-1].epoch.test_loss:.3f}", ""
        yield "accuracy", percent(steps[-1].epoch.accuracy), ""


def _events(step: AdaptiveEpoch, *, again: bool) -> Iterator[tuple[int, str, str]]:
    """Epoch, what, and its numbers.

    `again`: whether the run has planned before.
    """
    if step.planned and again:
        yield step.number, "planned again", _moved(step) if step.moved else "no move pays"
    elif step.moved:
        yield step.number, "planned", _moved(step)
    elif step.unplanned:
        yield step.number, "not planned again", step.unplanned
    for name in step.left:
        yield step.number, "node left", f"{name}; {step.lost} samples lost in this epoch"


def _moved(step: AdaptiveEpoch) -> str:
    return f"{step.moved} samples moved in {seconds(step.move_s)}"


def _table(events: Sequence[tuple[int, str, str]]) -> str:
    if not events:
        return tag("p", "Nothing happened: one plan from the first epoch to the last.")
    head = tag("tr", *[tag("th", name) for name in ("epoch", "what", "")])
    rows = [tag("tr", *[tag("td", text(cell)) for cell in event]) for event in events]
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _epochs(steps: Sequence[AdaptiveEpoch]) -> str:
    """A bar per epoch: moving, then training."""
    top = max((step.move_s + step.epoch.seconds for step in steps), default=1.0) or 1.0
    parts, y = [], 4.0
    for k, step in enumerate(steps):
        parts.append(_epoch(step, y, top, again=k > 0))
        y += BAR + GAP
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 14, seconds(t) if t else "0", "tick", "middle")
        for t in ticks(top, 8)
    ]
    return drawing(WIDTH, y + 22, *lines, *parts, title="seconds of every epoch")


def _epoch(step: AdaptiveEpoch, y: float, top: float, *, again: bool) -> str:
    moved, ended = _x(step.move_s, top), _x(step.move_s + step.epoch.seconds, top)
    happened = [what for _, what, _ in _events(step, again=again)]
    name, took_s = f"epoch {step.number}", step.epoch.seconds
    tip = f"{name}\nmoving {seconds(step.move_s)}, training {seconds(took_s)}"
    parts = [
        label(LEFT - 10, y + 13, name, "name", "end"),
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


def _holdings(problem: SampleProblem, steps: Sequence[AdaptiveEpoch]) -> str:
    """A stacked bar at the start and after every epoch."""
    start = dict(zip(problem.node_names, map(int, problem.held), strict=True))
    rows = [("before", start), *((f"epoch {step.number}", step.held) for step in steps)]
    total, parts, y = float(max(1, sum(start.values()))), [], 4.0
    for name, held in rows:
        left = LEFT
        parts.append(label(LEFT - 10, y + 13, name, "name", "end"))
        for i, node in enumerate(problem.node_names):
            right = left + (WIDTH - LEFT - RIGHT) * held.get(node, 0) / total
            bar = tag("g", _rect(left, right, y), data_tip=f"{node}: {held.get(node, 0)} samples")
            parts.append(tag("g", bar, class_=device_class(i), data_device=i))
            left = right
        parts.append(label(left + 8, y + 13, f"{sum(held.values())} samples", "busy"))
        y += BAR + GAP
    return drawing(WIDTH, y + 4, *parts, title="samples of each node")


def _losses(steps: Sequence[AdaptiveEpoch]) -> str:
    ends, elapsed_s = [], 0.0
    for step in steps:
        elapsed_s += step.move_s + step.epoch.seconds
        ends.append(elapsed_s)
    first = steps[0].number if steps else 1
    epochs = tuple(step.epoch for step in steps)
    return scroll(loss_curves([Curve("this run", tuple(ends), epochs, first)]))


def _provenance(problem: SampleProblem, *, real: bool) -> dict[str, str]:
    return {
        "problem": problem.name,
        "problem hash": problem.hash(),
        "engine": ENGINE,
        "emulated": emulated(real=real),
    }


def _x(time_s: float, top: float) -> float:
    return LEFT + time_s / top * (WIDTH - LEFT - RIGHT)


def run_trace(run: SampleRun, names: Sequence[str]) -> Trace:
    """The trace of a run, in the problem's own time; `names` are those of the nodes.

    A node's spans are its own gradients. Where it has none it waits or exchanges gradients; between
    two epochs the test samples are looked at, which `SampleRun.measured_s` leaves out.
    """
    moves = run.moved.spans if run.moved else ()
    pairs = list(dict.fromkeys((i, j) for i, j, *_ in moves))
    track_of = {pair: len(names) + k for k, pair in enumerate(pairs)}
    nodes, steps = run.trained.spans_s.shape[:2]
    epochs = len(run.trained.epochs)
    begin_s, computed_s = (run.move_s + run.speed * run.trained.spans_s[:, :, k] for k in (0, 1))
    epoch = np.arange(steps) * epochs // max(steps, 1)
    return Trace(
        tracks=(*names, *(f"{names[i]}->{names[j]}" for i, j in pairs)),
        devices=len(names),
        labels=(
            *(f"own gradients, epoch {e + 1}" for e in range(epochs)),
            *(f"{count} samples" for _, _, count, _, _ in moves),
        ),
        track=np.concatenate(
            [
                np.repeat(np.arange(nodes), steps),
                np.array([track_of[i, j] for i, j, *_ in moves], dtype=np.int64),
            ]
        ),
        label=np.concatenate([np.tile(epoch, nodes), epochs + np.arange(len(moves))]),
        start_s=np.concatenate([begin_s.ravel(), [run.speed * m[3] for m in moves]]),
        end_s=np.concatenate([computed_s.ravel(), [run.speed * m[4] for m in moves]]),
        title=run.name,
    )
