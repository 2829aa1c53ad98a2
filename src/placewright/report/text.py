"""Short plain-text tables: what objects print when they are asked who they are.

They are called by ``repr``, so they must work on whatever is there and never raise for a
missing part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.cluster.units import BANDWIDTH, BYTES, FLOPS, SECONDS, show

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.graph.graph import Graph
    from placewright.operators.explain import Explanation
    from placewright.operators.explain_module import ModuleExplanation
    from placewright.operators.placement_summary import PlacementSummary
    from placewright.planning.result import Candidate, Measurement, Result

Row = Sequence[str]


def plain_table(header: Row, rows: Sequence[Row], right: str = "") -> str:
    """Columns aligned with spaces; `right` has an ``r`` for each column that ends flush."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    sides = right.ljust(len(header))
    lines = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """``12.34 ms``; ``-`` where there is no value."""
    return show(value, SECONDS, digits=4)


def percent(value: float) -> str:
    """``3.2 %``; ``-`` where there is no value."""
    if not math.isfinite(value):
        return "-"
    return f"{value * 100:.0f} %" if abs(value) >= 1 else f"{value * 100:.1f} %"


def size(value: float) -> str:
    """``1.95 GiB``; ``-`` where unlimited."""
    return show(value, BYTES)


def cluster_table(cluster: Cluster) -> str:
    """Devices, then links."""
    header = ("device", "kind", "node", "cores", "speed", "memory", "peak", "bandwidth")
    rows = [
        (
            d.name,
            d.kind,
            d.node,
            str(d.cores),
            f"{d.speed:g}",
            size(d.memory_bytes),
            "-" if d.peak_flops is None else show(d.peak_flops, FLOPS),
            "-" if d.memory_bandwidth is None else show(d.memory_bandwidth, BANDWIDTH),
        )
        for d in cluster.devices
    ]
    parts = [
        f"cluster {cluster.name}: {_count(cluster.devices, 'device')} on "
        f"{_count(cluster.nodes, 'node')}, {_count(cluster.links, 'link')}",
        plain_table(header, rows, "   rrrrr"),
    ]
    return "\n".join(parts + ([_links(cluster)] if cluster.links else []))


def _links(cluster: Cluster, most: int = 16) -> str:
    header = ("link", "bandwidth", "latency", "channel")
    rows = [
        (
            f"{k.source} -> {k.target}",
            show(k.bandwidth, BANDWIDTH),
            seconds(k.latency_s),
            k.channel if k.channel != f"{k.source}->{k.target}" else "own",
        )
        for k in cluster.links[:most]
    ]
    more = len(cluster.links) - len(rows)
    return plain_table(header, rows, " rr") + (f"\n... and {more} more links" if more else "")


def graph_table(graph: Graph) -> str:
    """Sizes, and the kinds of operator that compute most."""
    phases = Counter(op.phase for op in graph.operators if op.phase)
    phase_text = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    moved = sum(t.bytes for t in graph.tensors)
    head = (
        f"graph {graph.name}: {_count(graph.operators, 'operator')}"
        + (f" ({phase_text})" if phase_text else "")
        + f", {_count(graph.tensors, 'tensor')}, {graph.flops / 1e9:.3g} GFLOP, "
        f"{size(graph.resident_bytes)} resident, {size(moved)} of tensors"
    )
    return f"{head}\n{_kinds(graph)}"


def _kinds(graph: Graph, most: int = 8) -> str:
    count: Counter[str] = Counter(op.kind for op in graph.operators)
    flops: Counter[str] = Counter()
    for op in graph.operators:
        flops[op.kind] += op.flops  # type: ignore[assignment]  # Counter sums floats as well
    top = sorted(count, key=lambda kind: (-flops[kind], -count[kind], kind))[:most]
    rows = [(kind, str(count[kind]), f"{flops[kind] / 1e9:.3g}") for kind in top]
    more = len(count) - len(rows)
    table = plain_table(("kind", "operators", "GFLOP"), rows, " rr")
    return table + (f"\n... and {more} more kinds" if more else "")


def problem_table(problem: Any) -> str:
    """What is asked, and each device with what it would take to do everything there."""
    moved = float(np.sum(problem.tensor_bytes))
    head = (
        f"problem {problem.name}: {problem.n} operators, {problem.t} tensors "
        f"({size(moved)}), {problem.m} devices; "
        f"{problem.objective}, links {problem.links}, overlap {problem.overlap}"
    )
    need = float(np.sum(problem.resident_bytes))
    rows = [
        (name, seconds(float(total)), size(need), size(float(limit)))
        for name, total, limit in zip(
            problem.device_names[:16],
            np.sum(problem.compute_s, axis=0)[:16],
            problem.memory_bytes[:16],
            strict=True,
        )
    ]
    return f"{head}\n{plain_table(('device', 'all on it', 'resident', 'memory'), rows, ' rrr')}"


def result_table(result: Result) -> str:
    """Value, bound, gap and status; then every candidate, the chosen one marked."""
    head = (
        f"predicted {result.objective} {seconds(result.value)} by {result.planner}: "
        f"lower bound {seconds(result.lower_bound)}, gap {percent(result.gap)}, "
        f"{result.status} in {seconds(result.runtime_s)}"
    )
    notes = [result.note] if result.note else []
    where = result_placement_text(result)
    parts = [head, candidates_text(result.candidates, result), *notes, *([where] if where else [])]
    return "\n".join(parts)


def result_placement_text(result: Result, measurement: Measurement | None = None) -> str:
    """Where a plan of operators runs, and what devices were measured to take; else nothing."""
    if not hasattr(result.judgement, "op_start_s"):
        return ""
    from placewright.operators.placement_summary import placement_summary
    from placewright.report.placement_text import placement_text

    measured = None if measurement is None else measurement.trace
    return placement_text(placement_summary(result.judgement), measured)


def placement_text(summary: PlacementSummary) -> str:
    """Where a plan runs; see `placewright.report.placement_text.placement_text`."""
    from placewright.report import placement_text as rendering

    return rendering.placement_text(summary)


def module_explanation_text(explanation: ModuleExplanation) -> str:
    """See `placewright.report.placement_text.module_explanation_text`."""
    from placewright.report import placement_text as rendering

    return rendering.module_explanation_text(explanation)


def candidates_text(candidates: Sequence[Candidate], result: Result) -> str:
    """One line per candidate."""
    rows = [
        ("*" if c.planner == result.planner else "", *candidate_cells(c, result.lower_bound))
        for c in candidates
    ]
    return plain_table(("", "planner", "value", "gap", "time", "status", "note"), rows, "  rrr")


def compare_table(result: Result) -> Any:
    """Every candidate, best first; see `placewright.report.terminal.compare_table`."""
    from placewright.report.terminal import compare_table

    return compare_table(result)


def candidate_cells(candidate: Candidate, lower_bound: float) -> tuple[str, ...]:
    """Planner, value, gap, time, status and note as text."""
    from placewright.planning.result import relative_gap

    return (
        candidate.planner,
        seconds(candidate.value),
        percent(relative_gap(candidate.value, lower_bound)),
        seconds(candidate.runtime_s),
        str(candidate.status) if math.isfinite(candidate.value) else "no plan",
        shorten(candidate.note),
    )


def measurement_table(measurement: Measurement) -> str:
    """Predicted and measured seconds of a plan and of what was measured beside it."""
    rows = [_measured_row("plan", measurement)]
    baseline = measurement.baseline
    if baseline is not None and baseline.measurement is not None:
        rows.append(_measured_row(f"{baseline.name} alone", baseline.measurement))
    lines = [
        f"{measurement.engine}; emulated: {measurement.emulated or 'nothing'}",
        plain_table(("", "predicted", "measured", "error"), rows, " rrr"),
        *([] if baseline is None else [speed_up_text(measurement)]),
        *machine_lines(measurement),
        *([] if measurement.check is None else [str(measurement.check)]),
    ]
    return "\n".join(lines)


def _measured_row(name: str, taken: Measurement) -> tuple[str, ...]:
    error = taken.predicted_s / taken.measured_s - 1
    return name, seconds(taken.predicted_s), seconds(taken.measured_s), percent(error)


def machine_lines(measurement: Measurement) -> list[str]:
    """A warning where the machine was busy with something else meanwhile."""
    machine = measurement.machine
    if machine is None or not machine.disturbed:
        return []
    return [f"warning: {machine}: measure again when it is idle"]


def speed_up_text(measurement: Measurement) -> str:
    """How a plan compares with the best single device: measured, with the interval."""
    baseline, found = measurement.baseline, measurement.speed_up
    if baseline is None:
        return "no single device fits the model"
    if found is None:
        return f"the plan is {baseline.name} alone: splitting is predicted not to pay"
    single = f"{baseline.name}, the best single device that fits"
    times = f"{found.ratio:.2f} times as fast"
    interval = (
        f"95 % interval {found.low:.2f} to {found.high:.2f} from {found.rounds} rounds in turns"
        if found.rounds > 1
        else "one round, so without an interval"
    )
    predicted = measurement.predicted_speed_up
    wanted = "" if predicted is None else f"; predicted {predicted:.2f}"
    if found.rounds > 1 and not found.decided:
        return f"measured: no difference beyond noise from {single}: {times} ({interval}{wanted})"
    slower = "slower, " if found.ratio < 1 else ""
    return f"measured: {slower}{times} as {single} ({interval}{wanted})"


def explanation_text(explanation: Explanation) -> str:
    """Where an operator is, and where else it could be."""
    e = explanation
    mates = f", with {e.group - 1} that move with it" if e.group > 1 else ""
    crossing = [f"  receives {name} from {device}" for name, device in e.received.items()]
    crossing += [f"  sends {name} to {', '.join(to)}" for name, to in e.sent.items()]
    header = ("moved to", "runs", "value then", "change", "note")
    rows = [
        (a.device, seconds(a.compute_s), seconds(a.value_s), _change(a.value_s, e.value_s), a.note)
        for a in e.alternatives
    ]
    return "\n".join(
        [
            f"{e.operator} runs on {e.device} for {seconds(e.compute_s)}{mates}",
            f"  from {seconds(e.start_s)} to {seconds(e.end_s)} of {seconds(e.value_s)}, "
            + ("on the critical path" if e.critical else "not on the critical path"),
            *([f"  held here by {e.binding}"] if e.binding else []),
            *crossing,
            *(f"  the plan: {limit}" for limit in e.limits[:4]),
            plain_table(header, rows, " rrr"),
        ]
    )


def _change(then: float, now: float) -> str:
    return f"{(then / now - 1) * 100:+.2f} %" if math.isfinite(then) and now else "-"


def shorten(text: str, most: int = 72) -> str:
    """One line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")


def sample_problem_table(problem: Any) -> str:
    """What is asked, and each node with how long it would train on what it holds."""
    head = (
        f"problem {problem.name}: {int(problem.held.sum())} samples on {problem.n} nodes, "
        f"{problem.epochs} epochs, overlap {problem.overlap}, duplex {problem.duplex}, "
        f"batches {problem.batches}" + (", relays" if problem.relay else "")
    )
    rows = [
        (
            problem.node_names[i],
            str(int(problem.held[i])),
            seconds(float(problem.seconds_per_sample[i])),
            seconds(float(problem.work_s[i] * problem.held[i])),
            f"{problem.storage[i]:g}" if math.isfinite(problem.storage[i]) else "-",
        )
        for i in range(min(problem.n, 16))
    ]
    more = f"\n... and {problem.n - 16} more nodes" if problem.n > 16 else ""
    header = ("node", "samples", "per sample", "trains for", "storage")
    return f"{head}\n{plain_table(header, rows, ' rrrr')}{more}"
