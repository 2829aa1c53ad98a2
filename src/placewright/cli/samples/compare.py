"""placewright samples compare: every planner on one problem."""

from __future__ import annotations

from placewright.cli.answer import give
from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    PlannersOption,
    QuietOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
    VerboseOption,
)
from placewright.cli.samples.options import (
    EpochsOption,
    NodesFile,
    OverlapOption,
    PortsOption,
    RelayOption,
    load,
)


def compare(
    file: NodesFile,
    planner: PlannersOption = None,
    overlap: OverlapOption = None,
    relay: RelayOption = None,
    epochs: EpochsOption = None,
    ports: PortsOption = None,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    report: ReportOption = None,
    trace: TraceOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Let every planner try, judge them alike, and show all of them in one table.

    [bold]Example[/bold]

    [cyan]placewright samples compare nodes.yaml --planner none --planner greedy[/cyan]
    """
    from placewright.planning.solving import compare as compete
    from placewright.report.terminal import compare_table

    console = Console(format, output, quiet, verbose)
    problem = load(file, overlap, relay, epochs, ports)
    with console.meter(f"comparing planners on {problem.name}") as meter:
        result = compete(problem, planner or (), time_limit_s=time_limit, seed=seed, progress=meter)
    give(console, result, report=report, trace=trace, table=lambda: compare_table(result))
