"""placewright operators plan: the best plan that is found in the time given."""

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
    PlannerOption,
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


def plan(
    source: Source,
    on: OnOption = None,
    planner: PlannerOption = "auto",
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
    """Decide which device runs which operator, with a bound on what could be better.

    Ctrl-C stops the search and gives the best plan so far.

    [bold]Examples[/bold]

    [cyan]placewright operators plan zoo:resnet50 --training --on edge-duo -o plan.json[/cyan]

    [cyan]placewright operators plan dag:tasks.json --planner heft -f json[/cyan]

    [cyan]placewright operators plan problem.json --report plan.html --trace plan.json.gz[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.planning.solving import solve

    console = Console(format, output, quiet, verbose)
    pipeline = PipelineOptions(replication, sync_bandwidth, clusters, cluster_speedup)
    asked = SourceOptions(
        source, on, training, batch, objective, links, overlap, contiguous, pipeline
    )
    loaded = load(asked, console)
    with console.meter(f"planning {loaded.problem.name}") as meter:
        result = solve(loaded.problem, planner, time_limit_s=time_limit, seed=seed, progress=meter)
    give(console, result, report=report, trace=trace, graph=loaded.graph)
