"""Results on stdout and in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.console import Console

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.graph.graph import Graph
    from placewright.measurement.measurement import Measurement
    from placewright.planning.result import Result


def print_result(
    console: Console,
    result: Result,
    *,
    report: Path | None = None,
    trace: Path | None = None,
    graph: Graph | None = None,
    table: Callable[[], Any] | None = None,
) -> None:
    """Print a plan and write the files that were named."""
    from placewright.planning.candidates import Status
    from placewright.planning.wings import unit_of
    from placewright.report.text import amount

    if result.status is Status.INTERRUPTED:
        console.note("interrupted: this is the best plan so far")
    note_compiling(console, result.compile_s)
    console.show(result.as_json, table or (lambda: repr(result)))
    if console.output is not None:
        console.kept(result.save(console.output))
    keep_pictures(console, result, report=report, trace=trace, graph=graph)
    unit = unit_of(result.problem)
    for name, value in result.bound_names.items():
        console.detail(f"bound {name}: {amount(value, unit)}")


def note_compiling(console: Console, compile_s: float) -> None:
    """Note how long kernels were compiled, where that took more than a second."""
    if compile_s > 1.0:
        console.note(f"compiled kernels for {compile_s:.0f} s: once after an installation")


def keep_pictures(
    console: Console,
    result: Result,
    *,
    report: Path | None,
    trace: Path | None,
    graph: Graph | None = None,
    measurement: Measurement | None = None,
    run: Timeline | None = None,
) -> None:
    """Write the page and the trace, where they were named."""
    if report is not None:
        console.kept(result.report(report, measurement, graph, run))
    if trace is not None:
        console.kept(result.trace(trace, measurement))
