"""A result as one self-contained HTML page, and as a fragment for a notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.io.stored import write_file
from placewright.planning.result import Candidate, Measurement, Result, Status
from placewright.planning.trace import Trace
from placewright.report.candidates import Contest
from placewright.report.gantt import gantt
from placewright.report.graph_view import graph_view
from placewright.report.history import history
from placewright.report.memory import memory_charts
from placewright.report.samples_page import samples_fragment, samples_page
from placewright.report.sheet import definitions, facts, fragment, heading, legend, section, sheet
from placewright.report.svg import tag, text
from placewright.report.text import machine_lines, percent, seconds, size, speed_up_text
from placewright.samples.problem import SampleProblem

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.graph.graph import Graph

SINGLE = "only:"
"""How planners that put everything on one device are called."""


def write_page(
    result: Result,
    path: str | Path,
    measurement: Measurement | None = None,
    graph: Graph | None = None,
    run: Timeline | None = None,
) -> Path:
    """Write the page.

    Parameters
    ----------
    measurement
        Of a run of the plan: drawn beside the prediction.
    graph
        The graph that the problem was made of: large ones are then drawn by module.
    run
        The history of an adaptive run.
    """
    return write_file(path, result_page(result, measurement, graph, run))


def result_page(
    result: Result,
    measurement: Measurement | None = None,
    graph: Graph | None = None,
    run: Timeline | None = None,
) -> str:
    """The page as text."""
    if isinstance(result.problem, SampleProblem):
        return samples_page(result)
    trace = result.judgement.trace()
    body = [
        heading(result.problem.name, f"{result.objective} plan", _verdict(result, measurement)),
        facts(_facts(result, measurement)),
        _devices(result, trace),
        _history(run),
        _timeline(trace, measurement),
        _candidates(result),
        _memory(trace),
        _graph(result, graph),
        _provenance(result, measurement),
    ]
    headline = (
        f"predicted {seconds(result.value)}"
        if measurement is None
        else f"measured {seconds(measurement.measured_s)}"
    )
    return sheet(f"{result.problem.name}: {headline}", *body)


def result_fragment(result: Result) -> str:
    """What a notebook shows: the numbers, the Gantt chart and the memory."""
    if isinstance(result.problem, SampleProblem):
        return samples_fragment(result)
    trace = result.judgement.trace()
    return fragment(
        heading(result.problem.name, f"{result.objective} plan", _verdict(result)),
        facts(_facts(result, None)),
        _devices(result, trace),
        _timeline(trace, None),
        _memory(trace),
    )


def _verdict(result: Result, measurement: Measurement | None = None) -> str:
    """The sentence under the title (markup): measured where there is a measurement."""
    if measurement is None:
        first = f"Predicted: <b>{text(seconds(result.value))}</b> per step"
        return f"{first}{_predicted_beside(result)}. {_bound_sentence(result)}"
    first = f"Measured: <b>{text(seconds(measurement.measured_s))}</b> per step"
    predicted = f" (predicted {text(seconds(result.value))})"
    machine = "".join(f" {tag('strong', text(line))}." for line in machine_lines(measurement))
    if measurement.baseline is None:
        beside = _predicted_beside(result)
        return f"{first}{predicted}{beside}.{machine} {_bound_sentence(result)}"
    alone = measurement.baseline.measurement
    if alone is not None:
        name = text(measurement.baseline.name)
        predicted += f"; {name} alone <b>{text(seconds(alone.measured_s))}</b>"
        predicted += f" (predicted {text(seconds(alone.predicted_s))})"
    sentence = speed_up_text(measurement)
    sentence = text(sentence[:1].upper() + sentence[1:])
    return f"{first}{predicted}. {sentence}.{machine} {_bound_sentence(result)}"


def _predicted_beside(result: Result) -> str:
    """The plan beside the best single device where that was not measured (markup)."""
    best = best_single(result)
    if best is None and any(c.planner.startswith(SINGLE) for c in result.candidates):
        return ". No single device can take it alone"
    if best is None:
        return ""
    name = text(best.planner.removeprefix(SINGLE))
    if best.planner == result.planner:
        return f" on {name} alone: splitting is predicted not to pay"
    times = best.value / result.value if result.value else math.inf
    return (
        f", predicted <b>{times:.2f}&times;</b> as fast as {name}, the best single device that fits"
        f" (predicted {text(seconds(best.value))})"
    )


def _bound_sentence(result: Result) -> str:
    if result.lower_bound <= 0:
        return "No lower bound is known."
    if result.status is Status.OPTIMAL or result.gap <= 1e-9:
        return "This is proved to be the best possible."
    return f"No plan can be faster than {text(seconds(result.lower_bound))}."


def best_single(result: Result) -> Candidate | None:
    """The best plan that uses one device, ``None`` where no device takes everything."""
    fit = [
        c
        for c in result.candidates
        if c.planner.startswith(SINGLE) and math.isfinite(c.value) and c.status != "INFEASIBLE"
    ]
    return min(fit, key=lambda c: c.value, default=None)


def _facts(result: Result, measurement: Measurement | None) -> Iterator[tuple[str, str, str]]:
    yield "predicted", seconds(result.value), "lead"
    if measurement is not None:
        emulated = ", emulated" if measurement.emulated else ""
        yield f"measured{emulated}", seconds(measurement.measured_s), "lead"
        yield "prediction error", percent(result.value / measurement.measured_s - 1), ""
        yield from _baseline_facts(measurement)
    yield "lower bound", seconds(result.lower_bound) if result.lower_bound > 0 else "-", ""
    yield "gap", percent(result.gap), ""
    yield "status", str(result.status), "good" if result.status == "OPTIMAL" else ""
    yield "planner", result.planner, ""
    yield "planned in", seconds(result.runtime_s), ""


def _baseline_facts(measurement: Measurement) -> Iterator[tuple[str, str, str]]:
    """What the best single device took, measured in turns with the plan."""
    baseline = measurement.baseline
    if baseline is None or baseline.measurement is None:
        return
    yield f"measured, {baseline.name} alone", seconds(baseline.measurement.measured_s), ""
    found = measurement.speed_up
    if found is not None and found.rounds > 1:
        yield "measured speed-up, 95 %", f"{found.low:.2f} to {found.high:.2f}", ""


def _devices(result: Result, trace: Trace) -> str:
    """The legend: each device with what it does."""
    top = trace.duration_s or 1.0
    remarks = []
    for k in range(trace.devices):
        mine = trace.track == k
        busy = float((trace.end_s[mine] - trace.start_s[mine]).sum()) / top
        remarks.append(f"{int(mine.sum())} operators, {percent(busy)} busy")
    return legend(trace.tracks[: trace.devices], remarks)


def _timeline(trace: Trace, measurement: Measurement | None) -> str:
    measured = None if measurement is None else measurement.trace
    if measured is None:
        told = "Who runs what when. Coloured tracks are devices, grey ones the links between them."
        return section("Timeline", told, _scroll(gantt(trace, title="predicted timeline")))
    assert measurement is not None
    until = max(trace.duration_s, measured.duration_s)
    with_emulation = f" ({measurement.emulated})" if measurement.emulated else ""
    return section(
        "Timeline, predicted and measured",
        f"Both to one scale. Below, one watched step of {measurement.engine}{with_emulation}; the "
        f"median of {len(measurement.step_s)} steps that were not watched is "
        f"{seconds(measurement.measured_s)}.",
        tag("h3", tag("b", "Predicted"), f" {text(seconds(trace.duration_s))}"),
        _scroll(gantt(trace, title="predicted timeline", until_s=until)),
        tag("h3", tag("b", "Measured"), f" {text(seconds(measured.duration_s))}"),
        _scroll(gantt(measured, title="measured timeline", until_s=until)),
    )


def _history(run: Timeline | None) -> str:
    if run is None:
        return ""
    told = "Every step that was done, coloured by the plan in force, and what happened meanwhile."
    return section("The run", told, _scroll(history(run)))


def _candidates(result: Result) -> str:
    if len(result.candidates) < 2:
        return ""
    told = "Every plan that was tried, as the same judge saw it. The line is the lower bound."
    contest = Contest(result.candidates, result.planner, result.value, result.lower_bound)
    return section("Candidates", told, contest.table())


def _memory(trace: Trace) -> str:
    if not trace.memory:
        return ""
    told = "Weights and state that stay, and tensors while they are needed."
    return section("Memory", told, tag("div", memory_charts(trace), class_="charts"))


def _graph(result: Result, graph: Graph | None) -> str:
    if not hasattr(result.plan, "placement") or not hasattr(result.problem, "compute_s"):
        return ""
    picture, caption = graph_view(result.problem, result.plan.placement, graph)
    return section("Graph", caption, _scroll(picture))


def _provenance(result: Result, measurement: Measurement | None) -> str:
    origin = result.provenance
    entries = {
        "problem": result.problem.name,
        "problem hash": origin.problem_hash,
        "seed": str(origin.seed),
        "placewright": origin.placewright,
        "python": origin.python,
        **{f"bound: {name}": seconds(value) for name, value in result.bound_names.items()},
    }
    if measurement is not None:
        entries |= {"engine": measurement.engine, "emulated": measurement.emulated or "nothing"}
        if measurement.machine is not None:
            entries["machine"] = str(measurement.machine)
        if measurement.check is not None:
            entries["check"] = str(measurement.check)
    moved = float(result.problem.tensor_bytes.sum()) if _has_tensors(result) else math.inf
    entries["tensors in the graph"] = size(moved)
    return section(
        "Provenance", "What is needed to get the same answer again.", definitions(entries)
    )


def _has_tensors(result: Result) -> bool:
    return hasattr(result.problem, "tensor_bytes")


def _scroll(picture: str) -> str:
    return tag("div", picture, class_="scroll")
