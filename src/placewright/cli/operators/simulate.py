"""placewright operators simulate: what a plan from a file is worth."""

from __future__ import annotations

from placewright.cli.answer import give
from placewright.cli.console import Console
from placewright.cli.options import (
    BatchOption,
    ContiguousOption,
    FormatOption,
    LinksOption,
    ObjectiveOption,
    OnOption,
    OutputOption,
    OverlapOption,
    PlanFile,
    QuietOption,
    ReportOption,
    Source,
    TraceOption,
    TrainingOption,
    VerboseOption,
)
from placewright.cli.pipelines import (
    ClustersOption,
    PipelineOptions,
    ReplicationOption,
    SpeedupOption,
    SyncOption,
)
from placewright.planning.fixed_plan import judged_plan


def simulate(
    source: Source,
    plan: PlanFile,
    on: OnOption = None,
    objective: ObjectiveOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    contiguous: ContiguousOption = False,
    replication: ReplicationOption = False,
    sync_bandwidth: SyncOption = None,
    clusters: ClustersOption = None,
    cluster_speedup: SpeedupOption = None,
    report: ReportOption = None,
    trace: TraceOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Play a plan by the judge: its value, its schedule, its memory. Exit 3 if it does not fit.

    [bold]Examples[/bold]

    [cyan]placewright operators simulate problem.json plan.json[/cyan]

    [cyan]placewright operators simulate dag:tasks.json plan.json --links contended[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load

    console = Console(format, output, quiet, verbose)
    pipeline = PipelineOptions(replication, sync_bandwidth, clusters, cluster_speedup)
    asked = SourceOptions(
        source, on, training, batch, objective, links, overlap, contiguous, pipeline
    )
    loaded = load(asked, console)
    result = judged_plan(loaded.problem, plan)
    give(console, result, report=report, trace=trace, graph=loaded.graph)
