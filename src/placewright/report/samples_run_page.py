"""A run of wing 3 as a page: what was planned, what really happened, and what the peers did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placewright.planning.result import Result
from placewright.report.gantt import gantt
from placewright.report.loss_curves import Curve, loss_curves
from placewright.report.node_bars import node_bars
from placewright.report.sample_map import sample_map
from placewright.report.samples_page import MOST_TRACKS
from placewright.report.samples_runs import emulated, loss_to_reach
from placewright.report.sheet import definitions, facts, heading, legend, section, sheet
from placewright.report.svg import number, tag, text
from placewright.report.text import percent, seconds, size
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import nothing
from placewright.samples.problem import Overlap, Ports
from placewright.samples.run import SampleRun
from placewright.samples.run_trace import run_trace

ENGINE = "torch.distributed gloo, one process per node"


def samples_run_page(result: Result, runs: Sequence[SampleRun]) -> str:
    """The page as text; the first of `runs` is the plan of `result`."""
    ours = runs[0]
    asked = result.problem.replace(overlap=Overlap.BARRIER, ports=Ports.QUEUED)
    judged, still = judge(asked, result.plan), judge(asked, nothing())
    body = [
        heading(asked.name, "samples run", _verdict(runs)),
        facts(_facts(result, ours)),
        _flows(judged, still),
        _timelines(judged, ours) if asked.n <= MOST_TRACKS else "",
        _losses(runs),
        _side_by_side(runs),
        _provenance(result, ours),
    ]
    return sheet(f"{asked.name}: {seconds(ours.measured_s)} measured", *body)


def _verdict(runs: Sequence[SampleRun]) -> str:
    ours, loss = runs[0], loss_to_reach(runs)
    first = f"<b>{text(seconds(ours.measured_s))}</b> for moving and training"
    still = next((run for run in runs if run.name == "none"), None)
    if still is None:
        return f"{first}."
    slow, fast = still.seconds_to(loss), ours.seconds_to(loss)
    if not slow or not fast:
        return f"{first}; without moving {text(seconds(still.measured_s))}."
    return f"{first}; <b>{slow / fast:.2f}&times;</b> as fast to the same loss as without moving."


def _facts(result: Result, ours: SampleRun) -> Iterator[tuple[str, str, str]]:
    yield "measured", seconds(ours.measured_s), "lead"
    if ours.predicted_s is not None:
        yield "predicted", seconds(ours.predicted_s), "lead"
        yield "prediction error", percent(ours.predicted_s / ours.measured_s - 1), ""
    yield "moving", seconds(ours.move_s), ""
    yield "samples moved", str(ours.moved_samples), ""
    yield "bytes moved", size(ours.moved_samples * result.problem.sample_bytes), ""
    yield "planner", result.planner, ""
    yield "accuracy", percent(ours.trained.epochs[-1].accuracy), ""


def _flows(judged: SampleJudgement, still: SampleJudgement) -> str:
    told = "Wide arrows carry many samples; the area of a node is what it holds after the move."
    picture = section("Map of flows", told, _scroll(sample_map(judged)))
    told = "Upper bar: if nothing moved. Lower bar: moving (grey), then training; as predicted."
    return picture + section("Nodes before and after", told, _scroll(node_bars(judged, still)))


def _timelines(judged: SampleJudgement, ours: SampleRun) -> str:
    """Prediction and measurement to one scale."""
    names = judged.problem.node_names
    said, seen = judged.trace(), run_trace(ours, names)
    until = max(said.duration_s, seen.duration_s)
    told = "Both to one scale. Measured are a node's own gradients in every step; between them it "
    told += "waits for the others and exchanges gradients."
    return section(
        "Moves and steps, predicted and measured",
        told,
        legend(names, ["" for _ in names]),
        tag("h3", tag("b", "Predicted"), f" {text(seconds(judged.value))}"),
        _scroll(gantt(said, title="predicted timeline", until_s=until)),
        tag("h3", tag("b", "Measured"), f" {text(seconds(ours.measured_s))}"),
        _scroll(gantt(seen, title="measured timeline", until_s=until)),
    )


def _losses(runs: Sequence[SampleRun]) -> str:
    curves = [Curve(run.name, run.epoch_ends_s, run.trained.epochs) for run in runs]
    told = "On the test images, after every epoch; moving comes first."
    return section("Loss against time", told, _scroll(loss_curves(curves, loss_to_reach(runs))))


def _side_by_side(runs: Sequence[SampleRun]) -> str:
    """Every way to train: a bar of what was predicted over one of what was measured."""
    top = max(max(run.measured_s, run.predicted_s or 0.0) for run in runs) or 1.0
    loss = loss_to_reach(runs)
    names = ("", "predicted over measured", "predicted", "measured", "error", "to same loss")
    cells = [tag("th", name, class_="num" if k > 1 else None) for k, name in enumerate(names)]
    rows = [_row(run, top, loss, chosen=run is runs[0]) for run in runs]
    told = "Grey is the judge's word, which it has for synchronous training on all samples."
    table = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows))
    return section("Predicted beside measured", told, _scroll(table))


def _row(run: SampleRun, top: float, loss: float, *, chosen: bool) -> str:
    said, reached = run.predicted_s, run.seconds_to(loss)
    bars = _bar(said, top, "var(--link)") + _bar(run.measured_s, top, "var(--c0)")
    cells = (
        "-" if said is None else seconds(said),
        seconds(run.measured_s),
        "-" if said is None else percent(said / run.measured_s - 1),
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


def _provenance(result: Result, ours: SampleRun) -> str:
    entries = {
        "problem": result.problem.name,
        "problem hash": result.provenance.problem_hash,
        "nodes, samples, epochs": f"{result.problem.n}, {int(result.problem.held.sum())}, "
        f"{len(ours.trained.epochs)}",
        "engine": ENGINE,
        "emulated": emulated([ours]),
        "seed": str(result.provenance.seed),
        "placewright": result.provenance.placewright,
        "python": result.provenance.python,
    }
    return section("Provenance", "What is needed to do the same again.", definitions(entries))


def _scroll(picture: str) -> str:
    return tag("div", picture, class_="scroll")
