"""placewright samples plan: the moves that end the training first."""

from __future__ import annotations

from placewright.cli.answer import give
from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
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
    PlannerOption,
    PortsOption,
    RelayOption,
    load,
)


def plan(
    file: NodesFile,
    planner: PlannerOption = "auto",
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
    """Decide which samples move where before training, so that nobody waits.

    Ctrl-C stops the search and gives the best plan so far.

    [bold]Examples[/bold]

    [cyan]placewright samples plan nodes.yaml --report plan.html[/cyan]

    [cyan]placewright samples plan nodes.yaml --planner greedy -f json[/cyan]
    """
    from placewright.planning.solving import solve
    from placewright.report.samples_table import moves_table

    console = Console(format, output, quiet, verbose)
    problem = load(file, overlap, relay, epochs, ports)
    with console.meter(f"planning {problem.name}") as meter:
        result = solve(problem, planner, time_limit_s=time_limit, seed=seed, progress=meter)
    give(console, result, report=report, trace=trace, table=lambda: moves_table(result))
