"""The command line of wing 1: what a problem is made of, and its verbs; run is in `operators_run`.

It captures and profiles models and deploys them, so it stands above the wing.
Planners that learn add `compare --learned` and `train`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.console import Console
from placewright.cli.operators_run import export, run
from placewright.cli.options import (
    BatchOption,
    BySpeedOption,
    ClustersOption,
    ContiguousOption,
    LinksOption,
    MicroBatchesOption,
    ObjectiveOption,
    OnOption,
    OverlapOption,
    PipelineOptions,
    PlannerOption,
    PlannersOption,
    ReplicationOption,
    ReportOption,
    SeedOption,
    Source,
    SpeedupOption,
    SyncOption,
    TimeLimitOption,
    TraceOption,
    TrainingOption,
)
from placewright.errors import InputError
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.cli.sources import LoadedSource
    from placewright.planning.wing import Loaded


def load(
    console: Console,
    source: Source,
    on: OnOption = None,
    objective: ObjectiveOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    micro_batches: MicroBatchesOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    contiguous: ContiguousOption = False,
    replication: ReplicationOption = False,
    by_speed: BySpeedOption = False,
    sync_bandwidth: SyncOption = None,
    clusters: ClustersOption = None,
    cluster_speedup: SpeedupOption = None,
) -> LoadedSource:
    """The problem of a model, a graph, a problem file or a published instance."""
    from placewright.cli.sources import SourceOptions
    from placewright.cli.sources import load as load_source

    pipeline = PipelineOptions(replication, sync_bandwidth, clusters, cluster_speedup, by_speed)
    options = SourceOptions(
        source,
        on,
        training,
        batch,
        objective,
        links=links,
        overlap=overlap,
        contiguous=contiguous,
        pipeline=pipeline,
        micro_batches=micro_batches,
    )
    return load_source(options, console)


LearnedOption = Annotated[
    bool,
    typer.Option(
        "--learned",
        help="Planners that learn and their baselines, at equal evaluations and equal seconds.",
    ),
]
EvaluationsOption = Annotated[
    int | None,
    typer.Option("--evaluations", min=1, metavar="N", help="Placements that a run may judge."),
]
SecondsOption = Annotated[
    float,
    typer.Option(
        "--seconds", min=0, metavar="S", help="With --learned: of a second run, limited by time."
    ),
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, metavar="N", help="With --learned: runs, from --seed on.")
]
CheckpointOption = Annotated[
    Path,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        show_default=False,
        callback=output_file,
        help="Safetensors file of parameters.",
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Start from the parameters in the checkpoint.")
]


def compare(
    console: Console,
    load: Callable[[], Loaded],
    *,
    planner: PlannersOption = None,
    learned: LearnedOption = False,
    evaluations: EvaluationsOption = None,
    seconds: SecondsOption = 0.0,
    seeds: SeedsOption = 5,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Run every planner, value their plans by one judge, and print one table.

    With [cyan]--learned[/cyan] planners that learn, at equal budgets and over several seeds.
    """
    from placewright.cli import wing_verbs

    if not learned:
        if evaluations is not None or seconds:
            raise InputError(
                "--evaluations and --seconds belong to --learned",
                hint="add --learned, or use --time-limit",
            )
        wing_verbs.compare(
            console,
            load,
            planner=planner,
            time_limit=time_limit,
            seed=seed,
            report=report,
            trace=trace,
        )
        return
    if report is not None or trace is not None:
        raise InputError(
            "--learned compares values and keeps no plan for a page or a trace",
            hint="use `placewright operators plan` with one of the planners",
        )
    from placewright.operators.learning import compare_learned

    problem = load().problem
    with console.meter(f"comparing learned planners on {problem.name}") as meter:
        found = compare_learned(
            problem,
            planner or (),
            evaluations=evaluations or 2000,
            seconds=seconds,
            seeds=range(seed, seed + seeds),
            progress=meter,
        )
    if found.interrupted:
        console.note("interrupted: planners that were not finished are left out")
    console.answer(found.as_json, lambda: str(found))


def train(
    console: Console,
    load: Callable[[], Loaded],
    *,
    checkpoint: CheckpointOption,
    planner: PlannerOption = "post",
    resume: ResumeOption = False,
    evaluations: EvaluationsOption = None,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
) -> None:
    """Train a planner that learns on a problem, and keep its parameters.

    Ctrl-C keeps those so far. [cyan]--planner 'post(checkpoint="FILE")'[/cyan] starts from them.
    """
    from placewright.cli.wing_verbs import measuring
    from placewright.operators.learning import train as run

    loaded = load()
    problem = loaded.problem
    with (
        console.meter(f"training on {problem.name}") as meter,
        measuring(loaded) as measure,
    ):
        found = run(
            problem,
            planner,
            checkpoint,
            resume=resume,
            evaluations=evaluations,
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
        )
    if found.interrupted:
        console.note("interrupted: the parameters so far were kept")
    console.kept(Path(found.checkpoint))
    console.answer(found.as_json, lambda: str(found))


verbs: dict[str, Callable[..., None]] = {"run": run, "export": export}
source_verbs: dict[str, Callable[..., None]] = {
    "compare": compare,
    "train": train,
}
examples = {
    "plan": [
        "zoo:resnet50 --training --on edge-duo -o plan.json",
        "zoo:alexnet --training --micro-batches 4 --on edge-duo",
        "zoo:resnet50 --on edge-duo --objective throughput --replication --by-speed",
        "dag:tasks.json --planner heft -f json",
        "problem.json --report plan.html --trace plan.json.gz",
    ],
    "compare": [
        "zoo:inception_v3 --on edge-quad",
        "dag:tasks.json --planner heft --planner peft",
        "dag:tasks.json --learned --evaluations 2000 --seconds 5 -f json",
    ],
    "train": [
        "zoo:resnet50 --on edge-quad --planner hp3c --checkpoint hp3c.safetensors",
        "problem.json --planner post --checkpoint post.safetensors --resume --seed 1",
    ],
    "simulate": [
        "problem.json plan.json",
        "dag:tasks.json plan.json --links contended",
    ],
    "explain": ["problem.json plan.json addmm_3", "problem.json plan.json model.layers.14"],
    "export": ["model.onnx plan.json --on edge-duo --folder placed"],
    "run": [
        "zoo:resnet50 --training --on edge-duo --steps 5 --check",
        "zoo:alexnet plan.json --on edge-duo --report run.html",
        "zoo:resnet50 --training --on edge-duo --engine testbed --adapt --steps 200 "
        "--report run.html",
    ],
}
