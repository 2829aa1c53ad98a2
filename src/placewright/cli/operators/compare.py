"""placewright operators compare: every planner on one problem."""

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
    PlannersOption,
    QuietOption,
    ReportOption,
    SeedOption,
    Source,
    TimeLimitOption,
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


def compare(
    source: Source,
    on: OnOption = None,
    planner: PlannersOption = None,
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

    [bold]Examples[/bold]

    [cyan]placewright operators compare zoo:inception_v3 --on edge-quad[/cyan]

    [cyan]placewright operators compare dag:tasks.json --planner heft --planner peft[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.planning.solving import compare as compete
    from placewright.report.terminal import compare_table

    console = Console(format, output, quiet, verbose)
    pipeline = PipelineOptions(replication, sync_bandwidth, clusters, cluster_speedup)
    asked = SourceOptions(
        source, on, training, batch, objective, links, overlap, contiguous, pipeline
    )
    loaded = load(asked, console)
    with console.meter(f"comparing planners on {loaded.problem.name}") as meter:
        result = compete(
            loaded.problem, planner or (), time_limit_s=time_limit, seed=seed, progress=meter
        )
    table = lambda: compare_table(result)  # noqa: E731
    give(console, result, report=report, trace=trace, graph=loaded.graph, table=table)
