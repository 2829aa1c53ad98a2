"""Pages and tables of wing 1: where a plan runs a model, its timelines, memory and graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.adapt.timeline import Timeline, event_lines, history
from placewright.errors import PlacewrightError, UnknownNameError
from placewright.graph.graph import ORDER_ONLY, Graph, Operator
from placewright.graph.page import amounts, operator_facts, phase_and_kind
from placewright.io.boundary import validate
from placewright.measurement import Measurement, load_warnings, measurement_table, speed_up_text
from placewright.numerics.arrays import IntArray
from placewright.operators.explain import critical_operators, critical_spans, waited_for
from placewright.operators.explain import explain as explain
from placewright.operators.files import PlanFile, read_problem
from placewright.operators.judgement import OperatorJudgement, end_name
from placewright.operators.placement_summary import PlacementSummary, placement_summary
from placewright.operators.plan import SINGLE
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.streaming.prediction import predicted
from placewright.operators.streaming.run import (
    SHOWN_SAMPLES,
    StreamMeasurement,
    refuse_what_cannot_stream,
    stream_table,
)
from placewright.operators.text import placement_text
from placewright.planning.candidates import Candidate, Outcome
from placewright.planning.result import Result
from placewright.planning.views import (
    Data,
    Fact,
    bound_sentence,
    memory_section,
    result_facts,
    result_page,
    saved_plan_page,
    summary_text,
    text_page,
    value_sentence,
)
from placewright.report.explorer import Amount, Category, ExploredGraph, LayoutGraph, explorer
from placewright.report.gantt import timeline
from placewright.report.page import (
    Note,
    facts,
    heading,
    html_fragment,
    legend,
    scroll,
    section,
    tag,
    text,
)
from placewright.report.text import amount, bare_numbers, percent, seconds, size
from placewright.report.trace import Trace

TIMELINE = "Which device runs what when. Coloured tracks are devices, grey ones the links between."


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """Placement by device, with measured seconds where there are some, as text."""
    measured = None if measurement is None else measurement.trace
    with bare_numbers(result.problem.dimensionless):
        return placement_text(placement_summary(result.judgement, result.plan), measured)


def run_table(result: Result, measured: Measurement, run: Timeline | None = None) -> str:
    """Predicted and measured seconds of the plan and of the best single device, and the run."""
    lines = [_planned_by(result), measurement_table(measured)]
    if measured.baseline is None:
        lines.append(speed_up_text(measured))
    lines.append(summary_text(result, measured))
    return "\n".join(lines + ([] if run is None else _run_lines(run)))


def stream_text(result: Result, found: StreamMeasurement) -> str:
    """Predicted and measured throughput of the plan and of the best single device."""
    lines = (_planned_by(result), stream_table(found), summary_text(result))
    return "\n".join(line for line in lines if line)


def _planned_by(result: Result) -> str:
    """A plan from a file may have been made for other costs, and have another value there."""
    note = result.proposal.note if len(result.candidates) == 1 else ""
    return f"plan by {result.planner}" + f" ({note})" * bool(note)


def _run_lines(run: Timeline) -> list[str]:
    """Every event of an adaptive run, and the step time at its end."""
    last = f"{len(run.step_s)} steps done"
    if run.step_s:  # else the run that it continues had done them all
        last += f", the last {seconds(run.typical_s(5))} each"
    check = [] if run.check is None else [str(run.check)]
    return ["", "the run", *(event_lines(run.events) or ["nothing happened"]), last, *check]


def page(
    result: Result,
    measurement: Measurement | None = None,
    graph: Graph | None = None,
    run: Timeline | None = None,
) -> str:
    """The page of a plan.

    Parameters
    ----------
    measurement
        Of a run of the plan: drawn beside the prediction.
    graph
        The graph that the problem was made of: adds phases and FLOPs to the drawing.
    run
        The history of an adaptive run.
    """
    with bare_numbers(result.problem.dimensionless):
        return _page(result, measurement, graph, run)


def _page(
    result: Result, measurement: Measurement | None, graph: Graph | None, run: Timeline | None
) -> str:
    placed = placement_summary(result.judgement, result.plan)
    trace = _predicted(result, placed)
    headline = (
        f"predicted {amount(result.value, result.unit)}"
        if measurement is None
        else f"measured {seconds(measurement.measured_s)}"
    )
    body = (
        heading(result.problem.name, f"{result.objective} plan", _verdict(result, measurement)),
        facts(_facts(result, measurement)),
        _devices(placed, trace),
        _history(run),
        _timeline(result, trace, measurement),
        memory_section(trace),
        _graph(result, graph),
    )
    return result_page(result, body, headline=headline, more=_run_provenance(result, measurement))


def fragment(result: Result) -> str:
    """The page in a notebook: numbers, Gantt chart and memory."""
    placed = placement_summary(result.judgement, result.plan)
    trace = _predicted(result, placed)
    with bare_numbers(result.problem.dimensionless):
        return html_fragment(
            heading(result.problem.name, f"{result.objective} plan", _verdict(result, None)),
            facts(_facts(result, None)),
            _devices(placed, trace),
            _timeline(result, trace),
            memory_section(trace),
        )


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a problem or plan file.

    Raises `InputError`: a field that is missing or wrong.
    """
    if kind == "problem":
        problem = read_problem(path)
        return text_page(problem.name, kind, path, repr(problem))
    validate(PlanFile, data, where=str(path))
    with bare_numbers(bool(data["plan"].get("dimensionless"))):
        return _plan_page(data, path)


def _plan_page(data: Data, path: Path) -> str:
    trace, count = saved_trace(data, str(path)), Counter(data["plan"]["placement"].values())
    devices = trace.tracks[: trace.devices]
    stream = data.get("objective") == str(Objective.THROUGHPUT)
    title = "Timeline of one sample" if stream else "Timeline"
    sections = [
        legend(devices, [f"{count[d]} operators" for d in devices]),
        section(title, TIMELINE, timeline(trace, title="predicted timeline")),
    ]
    return saved_plan_page(data, path, f"{data.get('objective', '')} plan", sections)


def _verdict(result: Result, measurement: Measurement | None) -> str:
    """The sentence under the title (markup): measured where there is a measurement."""
    bound, p = bound_sentence(result), result.problem
    stream = p.objective is Objective.THROUGHPUT and not p.micro_batch.any()
    per = "per sample" if stream else "per step"
    if measurement is None:
        if result.own_objective:
            return value_sentence(result)
        first = f"Predicted: <b>{text(seconds(result.value))}</b> {per}"
        return f"{first}{_versus_single(result)}. {bound}"
    first = f"Measured: <b>{text(seconds(measurement.measured_s))}</b> {per}"
    expected = f" (predicted {text(seconds(measurement.predicted_s))})"
    machine = "".join(f" {tag('strong', text(line))}." for line in load_warnings(measurement))
    proved = f"Of the prediction: {bound[0].lower()}{bound[1:]}"
    if measurement.baseline is None:
        return f"{first}{expected}{_versus_single(result)}.{machine} {proved}"
    alone = measurement.baseline.measurement
    if alone is not None:
        name = text(measurement.baseline.name)
        expected += f"; {name} alone <b>{text(seconds(alone.measured_s))}</b>"
        expected += f" (predicted {text(seconds(alone.predicted_s))})"
    sentence = speed_up_text(measurement)
    sentence = text(sentence[:1].upper() + sentence[1:])
    return f"{first}{expected}. {sentence}.{machine} {proved}"


def _versus_single(result: Result) -> str:
    """The plan against the best single device where that was not measured (markup)."""
    if result.own_objective:  # which need not be a time
        return ""
    best = best_single_candidate(result)
    if best is None and _none_alone(result):
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


def _none_alone(result: Result) -> bool:
    """Whether every device was tried alone and cannot take everything."""
    unfit = (Outcome.DOES_NOT_FIT, Outcome.UNSUPPORTED)
    found = {c.planner.removeprefix(SINGLE) for c in result.candidates if c.outcome in unfit}
    return found.issuperset(result.problem.device_names)


def best_single_candidate(result: Result) -> Candidate | None:
    """The best plan that uses one device, ``None`` where no device takes everything."""
    fit = [c for c in result.candidates if c.planner.startswith(SINGLE) and c.fits]
    return min(fit, key=lambda c: c.value, default=None)


def _facts(result: Result, measurement: Measurement | None) -> Iterator[Fact]:
    value, *others = result_facts(result)
    expected_s = math.nan if measurement is None else measurement.predicted_s
    if math.isfinite(expected_s) and expected_s != result.value:
        # Of a stream: bound and gap are those of its load, which is less than its period.
        what = result.objective if result.own_objective else "busiest device or link"
        others = [(what, amount(result.value, result.unit), ""), *others]
        value = "predicted", seconds(expected_s), "lead"
    yield value
    if measurement is not None:
        emulated = ", emulated" if measurement.emulated else ""
        yield f"measured{emulated}", seconds(measurement.measured_s), "lead"
        yield "prediction error", percent(measurement.predicted_s / measurement.measured_s - 1), ""
        yield from _baseline_facts(measurement)
    yield from others


def _baseline_facts(measurement: Measurement) -> Iterator[Fact]:
    """Measured seconds of the best single device, taken in turns with the plan."""
    baseline = measurement.baseline
    if baseline is None or baseline.measurement is None:
        return
    yield f"measured, {baseline.name} alone", seconds(baseline.measurement.measured_s), ""
    found = measurement.speed_up
    if found is not None and found.rounds > 1:
        yield "measured speed-up, 95 %", f"{found.low:.2f} to {found.high:.2f}", ""


def _predicted(result: Result, summary: PlacementSummary) -> Trace:
    """The simulated step or sample; a device with copies holds as much as the one it copies."""
    trace: Trace = result.judgement.trace()
    curves = {trace.tracks[curve.track]: curve for curve in trace.memory}
    copied = {d.device: curves[d.copy_of] for d in summary.devices if d.copy_of in curves}
    memory = (
        replace(copied.get(name, own), track=own.track, capacity_bytes=own.capacity_bytes)
        for name, own in curves.items()
    )
    return replace(trace, memory=tuple(memory))


def _devices(summary: PlacementSummary, trace: Trace) -> str:
    """Which layers are where, and the legend: each device with its operators and load."""
    top = trace.duration_s or 1.0
    remarks = []
    for k, device in enumerate(summary.devices):
        mine = trace.track == k
        busy = float((trace.end_s[mine] - trace.start_s[mine]).sum()) / top
        count = f"{device.operators} operators"
        copied = f"{count}, copy of {device.copy_of}"
        remarks.append(copied if device.copy_of else f"{count}, {percent(busy)} busy")
    where = summary.module_map
    line = tag("p", text(where)) if where else ""
    return line + legend(trace.tracks[: trace.devices], remarks)


def _timeline(result: Result, trace: Trace, measurement: Measurement | None = None) -> str:
    """Predicted, and measured where a run was traced; of a stream, the same samples in both."""
    measured = None if measurement is None else measurement.trace
    stream = stream_trace(result)
    what, shown = (TIMELINE, trace) if stream is None else (STREAM, stream)
    known: dict[str, Any] = {}
    if result.problem.objective is Objective.LATENCY:
        judged, what = result.judgement, f"{what} {CRITICAL}"
        known = {"critical": critical_spans(judged), "waits": waited_for(judged)}
    if stream is None:
        known["notes"] = _span_notes(result.judgement)
    if measurement is None or measured is None:
        return section("Timeline", what, timeline(shown, title="predicted timeline", **known))
    until = max(shown.duration_s, measured.duration_s)
    with_emulation = f" ({measurement.emulated})" if measurement.emulated else ""
    traced = "one traced step" if stream is None else "samples of a traced stream"
    unit = "steps" if stream is None else "samples"
    return section(
        "Timeline, predicted and measured",
        f"{what} Both to one scale. Below, {traced} of "
        f"{measurement.engine}{with_emulation}; the median of {len(measurement.step_s)} {unit} "
        f"that were not traced is {seconds(measurement.measured_s)}.",
        tag("h3", tag("b", "Predicted"), f" {text(seconds(shown.duration_s))}"),
        timeline(shown, title="predicted timeline", until_s=until, **known),
        tag("h3", tag("b", "Measured"), f" {text(seconds(measured.duration_s))}"),
        timeline(measured, title="measured timeline", until_s=until),
    )


def _span_notes(judged: OperatorJudgement) -> list[Note]:
    """Why operators are where they are and what they take elsewhere; what transfers carry."""
    p, moves = judged.problem, judged.transfers
    fastest = np.argsort(p.compute_s, axis=1, kind="stable")[:, :FEW_DEVICES]
    alone = [
        ", ".join(f"{p.device_names[d]} {seconds(float(took[d]))}" for d in sorted(devices))
        for took, devices in zip(p.compute_s, fastest.tolist(), strict=True)
    ]
    ends = zip(moves.source.tolist(), moves.target.tolist(), strict=True)
    carried = p.tensor_bytes[moves.tensor].tolist()
    ways = [
        f"{size(held)} from {end_name(p, a)} to {end_name(p, b)}"
        for held, (a, b) in zip(carried, ends, strict=True)
    ]
    no_operator, no_transfer = [""] * len(ways), [""] * p.n
    return [
        Note("here because", [*_reasons(judged), *no_operator]),
        Note("alone on", [*alone, *no_operator]),
        Note("carries", [*no_transfer, *ways]),
    ]


CRITICAL = "Outlined is the critical path: a chain without a gap that ends last."

STREAM = (
    f"{SHOWN_SAMPLES} samples of a full pipeline: which device works on which sample when. The "
    "time per sample is the distance between samples, not their length."
)


def stream_trace(result: Result) -> Trace | None:
    """Samples of the predicted stream as a measured one shows them; ``None`` if it is no stream."""
    p = result.problem
    if p.objective is not Objective.THROUGHPUT or p.micro_batch.any():
        return None
    try:
        refuse_what_cannot_stream(p)
        return predicted(p, result.plan).trace
    except PlacewrightError:  # planned, and not executed like this
        return None


def _history(run: Timeline | None) -> str:
    if run is None:
        return ""
    subtitle = "Every step, coloured by the plan in force, and what happened meanwhile."
    return section("The run", subtitle, scroll(history(run)))


def _graph(result: Result, graph: Graph | None) -> str:
    problem, place = result.problem, result.plan.placement
    bold = _crossing(problem, place)
    subtitle = f"Boxes are modules; data flow from left to right. {bold}"
    return section("Graph", subtitle, explorer(explored(result, graph)))


def _crossing(problem: OperatorProblem, place: IntArray) -> str:
    """What crosses devices, each tensor once per device."""
    tensor, target = problem.consumed, place[problem.consumers]
    crosses = target != place[problem.tensor_producer[tensor]]
    moved = np.unique(np.stack([tensor, target], axis=1)[crosses], axis=0)
    if not len(moved):
        return "Nothing crosses devices."
    bytes_ = size(float(problem.tensor_bytes[moved[:, 0]].sum()))
    return f"Bold lines cross devices: {len(moved)} transfers, {bytes_}."


def explored(result: Result, graph: Graph | None = None) -> ExploredGraph:
    """A plan as the explorer draws it; the `graph` of the problem adds phases and FLOPs."""
    p, operators = result.problem, _operators_of(result.problem, graph)
    kinds = tuple(op.kind for op in operators) or p.operator_kinds
    flow = LayoutGraph(
        p.operator_names,
        p.tensor_producer,
        p.tensor_bytes,
        p.consumer_offsets,
        p.consumers,
        np.array([name.startswith(ORDER_ONLY) for name in p.tensor_names], dtype=np.bool_),
        tuple(op.module for op in operators) or p.operator_modules,
        tuple(op.phase for op in operators) or _phases(p),
    )
    shapes = [str(list(shape)) for shape in p.output_shapes]
    known = [Note("kind", kinds), Note("module", flow.modules), Note("gives", shapes)]
    return ExploredGraph(
        p.name,
        flow,
        [
            Category("device", p.device_names, result.plan.placement, devices=True),
            *phase_and_kind(flow.phases, kinds),
        ],
        [*_simulated(result.judgement), *amounts(operators)[:1]],
        [*(operator_facts(operators) or known), Note("here because", _reasons(result.judgement))],
        bare=p.dimensionless,
    )


def _operators_of(problem: OperatorProblem, graph: Graph | None) -> tuple[Operator, ...]:
    same = graph is not None and graph.operator_names == problem.operator_names
    return graph.operators if graph is not None and same else ()


def _phases(problem: OperatorProblem) -> tuple[str, ...]:
    return tuple("backward" if back else "forward" for back in problem.is_backward.tolist())


FEW_DEVICES = 4
"""So many devices' own times of every operator are on a page."""


def _simulated(judged: OperatorJudgement) -> Iterator[Amount]:
    """What the judge says of each operator, and what it would take alone on other devices."""
    p, place = judged.problem, judged.placement
    yield Amount("time", "s", p.compute_s[np.arange(p.n), place])
    made = np.bincount(p.tensor_producer, p.tensor_bytes, minlength=p.n)
    yield Amount("memory", "bytes", p.resident_bytes + made)
    yield Amount("of it resident", "bytes", p.resident_bytes, sums=False)
    yield Amount("starts", "s", judged.op_start_s, sums=False)
    yield Amount("ends", "s", judged.op_end_s, sums=False)
    if p.m <= FEW_DEVICES:
        for d, name in enumerate(p.device_names):
            yield Amount(f"alone on {name}", "s", p.compute_s[:, d], sums=False)


def _reasons(judged: OperatorJudgement) -> list[str]:
    """What can be said of each operator without another simulation."""
    p, place = judged.problem, judged.placement
    own = p.compute_s[np.arange(p.n), place]
    size_of_group = np.bincount(p.colocation)[p.colocation]
    said = {
        "pinned to this device": p.pinned >= 0,
        "no other device runs it": np.isfinite(p.compute_s).sum(axis=1) == 1,
        "its group shares a device": size_of_group > 1,
        "no device is faster for it": own <= p.compute_s.min(axis=1),
        "on the critical path": critical_operators(judged),
    }
    slow = "another device is faster for it alone: transfers, waiting or memory decide"
    reasons = []
    for row in zip(*(flags.tolist() for flags in said.values()), strict=True):
        words = [text for text, holds in zip(said, row, strict=True) if holds]
        reasons.append("; ".join(words if any(row[:4]) else [slow, *words]))
    return reasons


def _run_provenance(result: Result, measurement: Measurement | None) -> dict[str, str]:
    """Engine, emulation and machine of the measurement, and the bytes of all tensors."""
    entries = {"tensors in the graph": size(float(result.problem.tensor_bytes.sum()))}
    if measurement is None:
        return entries
    entries |= {"engine": measurement.engine, "emulated": measurement.emulated or "nothing"}
    if measurement.machine is not None:
        entries["machine"] = str(measurement.machine)
    if measurement.check is not None:
        entries["check"] = str(measurement.check)
    return entries


def parts(data: Data) -> dict[str, str]:
    """The device of every operator in a saved plan."""
    return dict(data["plan"]["placement"])


def saved_trace(data: Data, where: str = "plan") -> Trace:
    """The schedule and the transfers of a saved plan.

    Links are one track per pair of devices: a plan does not record which of them share a channel.
    """
    plan = data["plan"]
    operators, transfers = plan.get("schedule") or [], plan.get("transfers") or []
    devices = tuple(dict.fromkeys(_device_names(plan)))
    _check_known(devices, operators, where)
    pairs = list(dict.fromkeys(f"{t['source']}->{t['target']}" for t in transfers))
    tracks = {name: k for k, name in enumerate((*devices, *pairs))}
    track = [tracks[o["device"]] for o in operators]
    track += [tracks[f"{t['source']}->{t['target']}"] for t in transfers]
    both = [*operators, *transfers]
    return Trace(
        tracks=tuple(tracks),
        devices=len(devices),
        labels=(*(o["op"] for o in operators), *(t["tensor"] for t in transfers)),
        track=np.array(track, dtype=np.int64),
        label=np.arange(len(both)),
        start_s=np.array([span["start_s"] for span in both], dtype=np.float64),
        end_s=np.array([span["end_s"] for span in both], dtype=np.float64),
    )


def _check_known(devices: Sequence[str], spans: Sequence[dict[str, Any]], where: str) -> None:
    unknown = next((span for span in spans if span["device"] not in devices), None)
    if unknown is not None:
        place = f"{where}: plan.schedule, operator {unknown['op']!r}"
        raise UnknownNameError("device", unknown["device"], devices, where=place)


def _device_names(plan: dict[str, Any]) -> list[str]:
    named = plan.get("devices") or sorted(set(plan["placement"].values()))
    return [str(name) for name in named]
