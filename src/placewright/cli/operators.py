"""The command line of wing 1: what a problem is made of, its verbs, and their options.

It captures and profiles models and deploys them, so it stands above the wing.
Planners that learn add `compare --learned` and `train`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placewright.cli import options
from placewright.cli.console import Console
from placewright.errors import CheckError, InputError, MissingDependencyError, UnsupportedError
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.cli.sources import LoadedSource
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.workload import Workload
    from placewright.measurement import Measurement
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.result import Result
    from placewright.planning.wing import Loaded


EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate/--no-emulate",
        help="Wait where devices and links are slower than the machines that are there.",
    ),
]
GpusOption = Annotated[
    Literal["together", "apart"] | None,
    typer.Option(
        "--gpus",
        help="One process for the GPUs of a node, or one each; together where all are on one "
        "node. With --engine local.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        metavar="N",
        help="Measured steps, after warm-up (10), or samples of a stream (30).",
    ),
]
STEPS, SAMPLES = 10, 30
AdaptOption = Annotated[
    bool,
    typer.Option(
        "--adapt", help="Watch the run, plan again when something changes, survive lost workers."
    ),
]
SnapshotsOption = Annotated[
    Path | None,
    typer.Option(
        "--snapshots", metavar="FOLDER", help="With --adapt: kept here, and continued from here."
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="PATH",
        help="A safetensors file or a folder of them, for a model on the meta device: each worker "
        "reads what lives on its device.",
    ),
]


def run(
    console: Console,
    source: options.Source,
    plan: options.OptionalPlan = None,
    on: options.OnOption = None,
    steps: StepsOption = None,
    check: options.CheckOption = False,
    engine: options.EngineOption = "local",
    emulate: EmulateOption = True,
    gpus: GpusOption = None,
    adapt: AdaptOption = False,
    snapshots: SnapshotsOption = None,
    planner: options.OptionalPlannerOption = None,
    training: options.TrainingOption = False,
    batch: options.BatchOption = None,
    micro_batches: options.MicroBatchesOption = None,
    weights: WeightsOption = None,
    objective: options.ObjectiveOption = None,
    contiguous: options.ContiguousOption = False,
    links: options.LinksOption = None,
    overlap: options.OverlapOption = None,
    time_limit: options.OptionalTimeLimitOption = None,
    seed: options.SeedOption = 0,
    report: options.ReportOption = None,
    trace: options.TraceOption = None,
) -> None:
    """Run a placed step on one worker process per device, beside the best single device.

    With [cyan]--objective throughput[/cyan] a stream of samples, several in flight.

    A model.onnx runs in ONNX Runtime, one thread with sessions of its own per device; an ir.xml or
    openvino:MODEL in OpenVINO's HETERO, one affinity per operator.

    Started by torchrun on every machine: [cyan]torchrun --master-port 29500 --nproc-per-node 2
    -m placewright operators run zoo:resnet50 --on edge-duo --engine torchrun[/cyan]
    """
    from placewright.cli.sources import SourceOptions, find_cluster, load
    from placewright.deployment.model_files import is_model_file, refuse_for_files

    if engine == "torchrun":
        from placewright.runtime.engines.torchrun_agent import served_torchrun

        if served_torchrun(engine):
            return
    source_options = SourceOptions(
        source,
        on,
        training,
        batch,
        objective,
        links=links,
        overlap=overlap,
        contiguous=contiguous,
        weights=weights,
        micro_batches=micro_batches,
    )
    streamed = source_options.changes.get("objective") == "throughput"
    run_options = RunOptions(
        plan,
        planner,
        time_limit,
        seed,
        steps=steps or (SAMPLES if streamed else STEPS),
        check=check,
        emulate=emulate,
        adapt=adapt,
        streamed=streamed,
        snapshots=snapshots,
        report=report,
        trace=trace,
    )
    run_options.refuse_conflicts()
    if is_model_file(source):
        loaded = load(source_options, console)
        foreign = {
            "--engine": engine != "local",
            "--adapt": adapt,
            "--gpus": gpus is not None,
            "--objective throughput": streamed,
        }
        refuse_for_files(loaded.problem.name, foreign)
        run_model_file(console, loaded, run_options)
        return
    if find_spec("torch") is None:
        raise MissingDependencyError("torch", extra="torch", purpose="running a PyTorch model")
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.planning import Chooser
    from placewright.deployment.workers import ModelWorkers, shared_process

    with console.noted(UserWarning):  # an engine that cannot be had fails before any work
        together = shared_process(gpus)
        workers = ModelWorkers(engine, find_cluster(on), emulate=emulate, together=together)
    workers.begin()
    workload = _runnable(load(source_options, console))
    choice = Chooser(workload, workers, console, seed).choose(
        planner=planner or "auto",
        plan=plan,
        time_limit_s=time_limit,
        trials=not adapt,  # a run that adapts tries plans while it trains
    )
    with PlacedModel(workload, workers, choice, seed=seed, monitor=console) as placed:
        if streamed:
            _run_stream(console, placed, run_options)
            return
        with suppress(CheckError):  # raised below, when all is printed and kept
            placed.run(run_options.steps, check=check, adapt=adapt, snapshots=snapshots)
        measured = placed.measurement
        assert measured is not None
    _answer_steps(console, placed, measured, run_options)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a plan is chosen and executed, and what is kept of it."""

    plan: Path | None
    planner: str | None
    time_limit: float | None
    seed: int
    steps: int
    check: bool
    emulate: bool
    adapt: bool
    streamed: bool
    snapshots: Path | None
    report: Path | None
    trace: Path | None

    def refuse_conflicts(self) -> None:
        """Raise if options conflict."""
        from placewright.planning.solving import refuse_beside_plan

        if self.snapshots is not None and not self.adapt:
            raise InputError("--snapshots is for runs that adapt", hint="add --adapt")
        refuse_beside_plan(self.plan, self.planner, self.time_limit)
        if self.streamed and self.adapt:
            raise InputError(
                "--adapt is for steps", by="--objective throughput", hint="leave it out"
            )


def _answer_steps(
    console: Console, placed: PlacedModel, measured: Measurement, run_options: RunOptions
) -> None:
    """Print what steps took, and keep what is asked for."""
    from placewright.operators.run import as_json
    from placewright.operators.views import run_table

    result, timeline = placed.result, placed.timeline
    data = as_json(measured, result) | ({} if timeline is None else {"run": timeline.as_json()})
    console.answer(lambda: data, lambda: run_table(result, measured, timeline))
    console.keep_pictures(
        result,
        report=run_options.report,
        trace=run_options.trace,
        graph=placed.workload.graph,
        measurement=measured,
        run=timeline,
    )
    for checked in (measured.check, None if timeline is None else timeline.check):
        if checked is not None:
            checked.demand()


def _run_stream(console: Console, placed: PlacedModel, run_options: RunOptions) -> None:
    """Measure a stream, print what it took, and keep what is asked for."""
    from placewright.operators.views import stream_text
    from placewright.report.trace import write_trace

    with suppress(CheckError):  # raised below, when all is printed and kept
        placed.measure_stream(run_options.steps, check=run_options.check)
    found = placed.stream_measurement
    assert found is not None
    result, measurement = placed.result, found.measurement
    data = found.as_json(result) | {"tried": [asdict(each) for each in placed.tried]}
    console.answer(lambda: data, lambda: stream_text(result, found))
    if run_options.report is not None:
        console.kept(result.report(run_options.report, measurement, placed.workload.graph))
    if run_options.trace is not None:
        predicted, measured = found.prediction.trace, measurement.trace
        console.kept(write_trace(run_options.trace, predicted=predicted, measured=measured))
    if measurement.check is not None:
        measurement.check.demand()


def _runnable(loaded: LoadedSource) -> Workload:
    """What was loaded, if it is a model."""
    if loaded.workload is None:
        raise UnsupportedError(
            "only a model can be run",
            where=loaded.problem.name,
            hint="give zoo:NAME, package.module:factory or FILE.py:factory as SOURCE, "
            "and the plan after it",
        )
    return loaded.workload


LIMIT_S = 10.0
"""Seconds of planning where none are given."""

FolderOption = Annotated[
    Path,
    typer.Option("--folder", metavar="FOLDER", show_default=False, help="Where it is written."),
]


def run_model_file(console: Console, loaded: LoadedSource, run_options: RunOptions) -> None:
    """Run a plan, or one made in `LIMIT_S` where no time is given, beside the best device."""
    from placewright.deployment.model_files import TensorFlowMeasurement
    from placewright.operators.run import as_json, best_single
    from placewright.operators.views import run_table

    problem, result = loaded.problem, _plan(console, loaded, run_options)
    with console.meter(f"running {problem.name}") as meter:
        measured = loaded.file_workload().measure(
            result,
            beside=best_single(problem),
            steps=run_options.steps,
            seed=run_options.seed,
            check=run_options.check,
            emulate=run_options.emulate,
            progress=meter,
        )
    data, lines = as_json(measured, result), [run_table(result, measured)]
    if isinstance(measured, TensorFlowMeasurement):
        data["unplaced"] = measured.unplaced_json()
        lines.append(measured.unplaced_text())
    console.answer(lambda: data, lambda: "\n".join(lines))
    console.keep_pictures(
        result,
        report=run_options.report,
        trace=run_options.trace,
        graph=loaded.graph,
        measurement=measured,
    )
    if measured.check is not None:
        measured.check.demand()


def _plan(console: Console, loaded: LoadedSource, run_options: RunOptions) -> Result:
    from placewright.planning.solving import judged_plan, solve

    if run_options.plan is not None:
        return judged_plan(loaded.problem, run_options.plan)
    with console.meter(f"planning {loaded.problem.name}") as meter, loaded.measuring() as measure:
        return solve(
            loaded.problem,
            run_options.planner or "auto",
            time_limit_s=LIMIT_S if run_options.time_limit is None else run_options.time_limit,
            seed=run_options.seed,
            progress=meter,
            measure=measure,
        ).demand_finished()


def export(
    console: Console,
    source: options.Source,
    plan: options.PlanFile,
    folder: FolderOption,
    on: options.OnOption = None,
    batch: options.BatchOption = None,
    training: options.TrainingOption = False,
) -> None:
    """Write a plan in the model's own format, load what was written, and compare its outputs.

    An ONNX model becomes one sub-model per stretch of operators on a device, and a
    ``manifest.json`` by which plain ONNX Runtime runs them; an OpenVINO model an IR that holds the
    affinity of every operator. A TensorFlow model becomes a SavedModel with a device for every
    node, or a GraphDef if FOLDER ends in .pb.
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.deployment.model_files import is_model_file
    from placewright.planning.solving import judged_plan

    if not is_model_file(source):
        raise UnsupportedError(
            "only models of other runtimes are written back",
            where=source,
            hint="give a FILE.onnx, FILE.xml or GRAPH.pb; `operators plan -o` saves any plan",
        )
    loaded = load(SourceOptions(source, on, training, batch, method="analytic"), console)
    workload, result = loaded.file_workload(), judged_plan(loaded.problem, plan)
    files, check = workload.export(result, folder)
    data = {"files": [str(path) for path in files], "check": check.as_json()}
    lines = [f"wrote {files[0]} and {len(files) - 1} files beside it", str(check)]
    console.answer(lambda: data, lambda: "\n".join(lines))
    check.demand()


def load(
    console: Console,
    source: options.Source,
    on: options.OnOption = None,
    objective: options.ObjectiveOption = None,
    training: options.TrainingOption = False,
    batch: options.BatchOption = None,
    micro_batches: options.MicroBatchesOption = None,
    links: options.LinksOption = None,
    overlap: options.OverlapOption = None,
    contiguous: options.ContiguousOption = False,
    replication: options.ReplicationOption = False,
    by_speed: options.BySpeedOption = False,
    sync_bandwidth: options.SyncOption = None,
    clusters: options.ClustersOption = None,
    cluster_speedup: options.SpeedupOption = None,
) -> LoadedSource:
    """The problem of a model, a graph, a problem file or a published instance."""
    from placewright.cli.sources import SourceOptions
    from placewright.cli.sources import load as load_source

    pipeline = options.PipelineOptions(
        replication, sync_bandwidth, clusters, cluster_speedup, by_speed
    )
    source_options = SourceOptions(
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
    return load_source(source_options, console)


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
AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="FILE",
        show_default=False,
        help="Another problem, as a file, on which the same policy is trained; repeatable.",
    ),
]
TurnsOption = Annotated[
    int, typer.Option("--turns", min=1, metavar="N", help="How often each problem is trained on.")
]


def compare(
    console: Console,
    load: Callable[[], Loaded],
    *,
    planner: options.PlannersOption = None,
    learned: LearnedOption = False,
    evaluations: EvaluationsOption = None,
    seconds: SecondsOption = 0.0,
    seeds: SeedsOption = 5,
    time_limit: options.TimeLimitOption = 60.0,
    seed: options.SeedOption = 0,
    report: options.ReportOption = None,
    trace: options.TraceOption = None,
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
    planner: options.PlannerOption = "post",
    also: AlsoOption = None,
    turns: TurnsOption = 1,
    resume: ResumeOption = False,
    evaluations: EvaluationsOption = None,
    time_limit: options.TimeLimitOption = 60.0,
    seed: options.SeedOption = 0,
) -> None:
    """Train a planner that learns on a problem, and keep its parameters.

    With [cyan]--also[/cyan] one policy is trained on several problems. Ctrl-C keeps those so far.

    [cyan]--planner 'post(checkpoint="FILE")'[/cyan] starts from them.
    """
    from placewright.cli.wing_verbs import measuring
    from placewright.operators.learning import train as run
    from placewright.operators.learning import train_in_turns

    loaded = load()
    problems = [loaded.problem, *map(_operator_problem, also or ())]
    settings: dict[str, Any] = {"resume": resume, "evaluations": evaluations, "seed": seed}
    names = ", ".join(problem.name for problem in problems)
    with (
        console.meter(f"training on {names}") as meter,
        measuring(loaded) as measure,
    ):
        settings |= {"time_limit_s": time_limit, "progress": meter}
        if len(problems) == turns == 1:
            found = [run(problems[0], planner, checkpoint, measure=measure, **settings)]
        else:
            found = [*train_in_turns(problems, planner, checkpoint, turns=turns, **settings)]
    if found[-1].interrupted:
        console.note("interrupted: the parameters so far were kept")
    console.kept(Path(found[-1].checkpoint))
    console.answer(
        lambda: (
            found[0].as_json() if not also else {"problems": [each.as_json() for each in found]}
        ),
        lambda: "\n".join(map(str, found)),
    )


def _operator_problem(source: str) -> OperatorProblem:
    """Of a file; `InputError` where it holds something else."""
    from placewright.files import read_file
    from placewright.operators.problem import OperatorProblem

    problem = read_file(source)
    if not isinstance(problem, OperatorProblem):
        hint = "name a problem of operators, or a graph of tasks"
        raise InputError("is no problem that this planner learns on", where=source, hint=hint)
    return problem


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
        "a.json --also b.json --turns 3 --planner doppler --checkpoint all.safetensors",
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
