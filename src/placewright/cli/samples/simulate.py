"""placewright samples simulate: what a plan from a file is worth."""

from __future__ import annotations

from placewright.cli.answer import give
from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    PlanFile,
    QuietOption,
    ReportOption,
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
from placewright.planning.fixed_plan import judged_plan


def simulate(
    file: NodesFile,
    plan: PlanFile,
    overlap: OverlapOption = None,
    relay: RelayOption = None,
    epochs: EpochsOption = None,
    ports: PortsOption = None,
    report: ReportOption = None,
    trace: TraceOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Play a plan by the judge: its value and each node's times. Exit 3 if it breaks a limit.

    [bold]Example[/bold]

    [cyan]placewright samples simulate nodes.yaml plan.json --ports queued[/cyan]
    """
    from placewright.report.samples_table import moves_table

    console = Console(format, output, quiet, verbose)
    result = judged_plan(load(file, overlap, relay, epochs, ports), plan)
    give(console, result, report=report, trace=trace, table=lambda: moves_table(result))
