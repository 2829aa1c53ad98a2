"""How a verb hands over a Result: on stdout, in files, with a word on what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.console import Console

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.graph.graph import Graph
    from placewright.planning.result import Measurement, Result


def give(
    console: Console,
    result: Result,
    *,
    report: Path | None = None,
    trace: Path | None = None,
    graph: Graph | None = None,
    table: Callable[[], Any] | None = None,
) -> None:
    """Show a plan and keep what was asked for."""
    from placewright.planning.result import Status

    if result.status is Status.INTERRUPTED:
        console.note("interrupted: this is the best plan so far")
    tell_compiling(console, result)
    console.show(result.as_json, table or (lambda: repr(result)))
    if console.output is not None:
        console.kept(result.save(console.output))
    keep_pictures(console, result, report=report, trace=trace, graph=graph)
    for name, value in result.bound_names.items():
        console.detail(f"bound {name}: {value:.6g} s")


def tell_compiling(console: Console, result: Result) -> None:
    """Why the first run was so slow, where it was."""
    if result.compile_s > 1.0:
        console.note(f"compiled kernels for {result.compile_s:.0f} s: once after an installation")


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
    """Write the page and the trace, where they were asked for."""
    from placewright.report.page import write_page

    if report is not None:
        console.kept(write_page(result, report, measurement, graph, run))
    if trace is not None:
        console.kept(result.trace(trace, measurement))
