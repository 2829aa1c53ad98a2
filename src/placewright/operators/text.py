"""Wing 1's objects as text: problems, placements, explanations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from placewright.report.text import (
    bare_numbers,
    percent,
    plain_table,
    relative_change,
    seconds,
    shorten,
    size,
)

if TYPE_CHECKING:
    from placewright.operators.explain import Alternative, ModuleExplanation, OperatorExplanation
    from placewright.operators.placement_summary import ModuleSplit, PlacementSummary
    from placewright.operators.problem import OperatorProblem
    from placewright.report.trace import Trace

MOST_DEVICES = 16
MOST_LINES = 8
"""Split modules and crossings that are listed."""

WIDTH = 88
"""Characters of a list of modules."""


def placement_text(summary: PlacementSummary, measured: Trace | None = None) -> str:
    """A row per device, what crosses, and which modules devices share; bounded in length.

    `measured`: a step that was watched: what devices really computed for stands beside the
    prediction.
    """
    took = None if measured is None else busy_seconds(measured)
    header = ["device", "operators", "resident", "peak", "memory", "predicted"]
    rows = []
    for k, d in enumerate(summary.devices[:MOST_DEVICES]):
        row = [d.device, str(d.operators), size(d.resident_bytes), size(d.peak_bytes)]
        row += [size(d.memory_bytes), seconds(d.seconds)]
        copied = f" (copy of {d.copy_of})" if d.copy_of and d.modules else ""
        row += [] if took is None else [seconds(took[k])]
        rows.append([*row, _modules(d.modules) + copied])
    if took is not None:
        header.append("measured")
    named = any(d.modules for d in summary.devices)
    table = plain_table(
        (*header, "modules" if named else ""), rows, " rrrrr" + "r" * bool(measured)
    )
    more = len(summary.devices) - len(rows)
    lines = [*([summary.module_map] if summary.module_map else []), table]
    lines += [*([f"... and {more} more devices"] if more > 0 else [])]
    lines += _listed([_split(s) for s in summary.split], "modules on several devices")
    crossings = [
        f"{c.source} -> {c.target}: {size(c.bytes)} in {c.tensors} tensor{'s' * (c.tensors != 1)}"
        for c in summary.crossings
    ]
    lines += _listed([f"per step {crossing}" for crossing in crossings], "pairs of devices")
    return "\n".join(lines)


def busy_seconds(trace: Trace) -> list[float]:
    """Seconds that each device of a trace computes."""
    on_devices = trace.track < trace.devices
    took = np.bincount(
        trace.track[on_devices],
        weights=(trace.end_s - trace.start_s)[on_devices],
        minlength=trace.devices,
    )
    return [float(value) for value in took]


def _modules(names: Sequence[str]) -> str:
    """As many names as fit in `WIDTH`."""
    listed: list[str] = []
    for name in names:
        if len(", ".join([*listed, name])) > WIDTH and listed:
            return f"{', '.join(listed)}, ... ({len(names) - len(listed)} more)"
        listed.append(name)
    return shorten(", ".join(listed), WIDTH)


def _listed(lines: Sequence[str], noun: str) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"... and {more} more {noun}"] if more > 0 else [])]


def _split(split: ModuleSplit) -> str:
    """By seconds, or by resident bytes where nothing takes time."""
    kind = "seconds" if sum(split.seconds.values()) else "resident bytes"
    amounts = split.seconds if kind == "seconds" else split.resident_bytes
    total = sum(amounts.values()) or math.inf
    parts = [f"{name} {percent(amount / total)}" for name, amount in _largest(amounts)]
    return f"split {split.module}: {', '.join(parts[:4])} of its {kind}"


def _along(count: int, where: str = "") -> str:
    """Operators of one colocation group, beside what is explained."""
    return f", with {count} operator{'s' * (count != 1)}{where} that must move along" * (count > 0)


def _largest(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda pair: -pair[1])


def module_explanation_text(e: ModuleExplanation) -> str:
    """A module's devices and traffic, and its alternatives, as text."""
    together = _along(e.together, " outside of it")
    rows = [
        (name, str(part.operators), seconds(part.seconds), size(part.resident_bytes))
        for name, part in e.parts.items()
    ]
    lines = [
        f"module {e.module}: {e.operators} operators on {', '.join(e.parts)}{together}",
        f"  {_when(e)}, {e.critical} of its operators on the critical path",
        plain_table(("on", "operators", "runs", "resident"), rows, " rrr"),
        *_traffic("in", "from", e.bytes_in),
        *_traffic("out", "to", e.bytes_out),
    ]
    moves = [_moves("moved whole to", e.alternatives, e.value_s)] if e.alternatives else []
    return "\n".join([*lines, *moves])


def _when(e: OperatorExplanation | ModuleExplanation) -> str:
    """Start and end in the schedule of one sample; of a stream, the period beside them."""
    period = f" (of a stream, {seconds(e.value_s)} each)" if e.value_s != e.makespan_s else ""
    return f"from {seconds(e.start_s)} to {seconds(e.end_s)} of {seconds(e.makespan_s)}{period}"


def _moves(title: str, alternatives: Sequence[Alternative], value_s: float) -> str:
    """A row per other device."""
    rows = [
        (a.device, seconds(a.compute_s), seconds(a.value_s), _change(a, value_s), a.note)
        for a in alternatives
    ]
    return plain_table((title, "runs", "value then", "change", "note"), rows, " rrr")


def _change(alternative: Alternative, value_s: float) -> str:
    return relative_change(alternative.value_s, value_s)


def _traffic(way: str, preposition: str, amounts: Mapping[str, float]) -> list[str]:
    if not amounts:
        return []
    parts = [f"{size(amount)} {preposition} {name}" for name, amount in _largest(amounts)[:8]]
    return [f"  bytes {way}: {', '.join(parts)}"]


def explanation_text(explanation: OperatorExplanation) -> str:
    """An operator's device, time and alternatives, as text."""
    e = explanation
    mates = _along(e.group - 1)
    crossing = [f"  receives {name} from {device}" for name, device in e.received.items()]
    crossing += [f"  sends {name} to {', '.join(to)}" for name, to in e.sent.items()]
    return "\n".join(
        [
            f"{e.operator} runs on {e.device} for {seconds(e.compute_s)}{mates}",
            f"  {_when(e)}, "
            + ("on the critical path" if e.critical else "not on the critical path"),
            *([f"  held here by {e.binding}"] if e.binding else []),
            *crossing,
            *(f"  the plan: {limit}" for limit in e.limits[:4]),
            _moves("moved to", e.alternatives, e.value_s),
        ]
    )


def problem_table(problem: OperatorProblem) -> str:
    """The problem's options, and what everything on one device would take."""
    with bare_numbers(problem.dimensionless):
        return _problem_text(problem)


def _problem_text(problem: OperatorProblem) -> str:
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
