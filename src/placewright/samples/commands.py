"""The command line of wing 3: what a problem is loaded from, and the verbs generate and run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from placewright.errors import InputError, PlacewrightError, UnknownNameError
from placewright.io.output import output_file
from placewright.planning.wing import Loaded

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.planning.contract import Progress
    from placewright.samples.adaptive import AdaptiveEpoch
    from placewright.samples.placed_samples import PlacedSamples
    from placewright.samples.problem import SampleProblem
    from placewright.samples.run import SampleRun
    from placewright.samples.training.job import SampleJob

AUTO = "auto"

LARGE = {"channels": 16, "depth": 2, "enlarged": 4}
"""Of the example on a testbed: a step takes several periods of the CPU quotas."""

OVERRUN = 1.3
"""Ratio of measured to predicted seconds that noise does not explain."""

BaselinesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="none, lb-bsp, weighted, proportional, fedavg; several times; all without.",
    ),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slow", metavar="NODE:EPOCH:TIMES", help="With --adapt, on purpose; several times."
    ),
]
KillOption = Annotated[
    list[str] | None,
    typer.Option("--kill", metavar="NODE:EPOCH", help="With --adapt, on purpose; several times."),
]


def run(
    console: Console,
    file: NodesFile,
    plan: Path | None = None,
    planner: str | None = None,
    baseline: BaselinesOption = None,
    epochs: EpochsOption = None,
    relay: RelayOption = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples of a step.")] = 64,
    local_steps: Annotated[
        int, typer.Option("--local-steps", min=1, help="Steps between two exchanges.")
    ] = 1,
    compression: Annotated[
        Literal["none", "fp16", "top10"], typer.Option("--compression", help="Of gradients.")
    ] = "none",
    engine: Annotated[
        Literal["emulated", "testbed"],
        typer.Option("--engine", help="testbed: CPU quotas and shaped links, as root."),
    ] = "emulated",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="package.module:factory that returns (model, inputs, loss_fn, targets): rows of "
            "inputs and targets are the samples; with --data a dict with model, loss_fn and read, "
            "as train_samples takes them. A small network on pictures of digits without it.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Files that are the samples, in a folder for each node or dealt out by path.",
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option("--test", metavar="FOLDER", help="Files to test on after every epoch."),
    ] = None,
    optimizer: Annotated[
        Literal["sgd", "adam"], typer.Option("--optimizer", help="With --model.")
    ] = "sgd",
    lr: Annotated[float, typer.Option("--lr", min=1e-9, help="With --model.")] = 0.1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            callback=output_file,
            help="With --adapt: written after every epoch.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint; with --adapt.")
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="Plan again when nodes slow down or leave; no baselines."),
    ] = False,
    slow: SlowOption = None,
    kill: KillOption = None,
    speed: Annotated[
        float, typer.Option("--speed", min=1e-3, help="How many times faster than the file says.")
    ] = 1.0,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            callback=output_file,
            help="Write what was learned by the plan (safetensors).",
        ),
    ] = None,
    time_limit: float | None = None,
    seed: int = 0,
    report: Path | None = None,
) -> None:
    """Execute a plan on one process per node, and train without it for comparison.

    Speeds are emulated by waiting, or those of a testbed: the fastest node gets a core or what
    the machine can spare, the others in proportion. There speeds are measured before planning.

    Ctrl-C, or an error, ends it with the runs, or the epochs, that have ended.
    """
    from placewright.adapt.timeline import disturbances
    from placewright.planning.solving import refuse_beside_plan
    from placewright.samples.placed_samples import TIME_LIMIT_S, placed_job
    from placewright.samples.run import BASELINES, EXECUTED, known_baselines
    from placewright.samples.run_pages import samples_run_page
    from placewright.samples.training.node_training import Recipe
    from placewright.samples.views import runs_json, runs_table

    problem = read_changed(file, relay=relay, epochs=epochs)
    baselines = known_baselines(baseline or BASELINES)
    names = problem.node_names
    asked = disturbances("NODE", "EPOCH", names, problem.epochs, slow=slow or (), kill=kill or ())
    events = list(asked)
    _refuse_unfit(engine, speed, adapt, plan, bool(events), bool(baseline))
    if (checkpoint is not None or resume) and not adapt:
        raise InputError("--checkpoint and --resume go with --adapt", where="samples run")
    refuse_beside_plan(plan, planner, time_limit)
    recipe = Recipe(
        epochs=problem.epochs,
        batch=batch,
        seed=seed,
        local_steps=local_steps,
        compression=compression,
    )
    if data is not None or test is not None:
        problem, job = _job_of_files(problem, model, data, test, optimizer, lr, seed)
    else:
        job = _job(problem, model, optimizer, lr, seed, real=engine == "testbed")
    with placed_job(job, problem, recipe=recipe, engine=engine, speed=speed) as placed:
        if adapt:
            from placewright.samples.adaptive import Disturbance

            ahead = placed.adapt(
                planner or AUTO,
                planning_s=time_limit,
                checkpoint=checkpoint,
                resume=resume,
                disturbances=[Disturbance(k - 1, names.index(x), t) for x, k, t in events],
            )
            _answer_epochs(console, placed, ahead, report, weights)
            return
        with console.meter(f"planning {problem.name}") as meter:
            limit_s = TIME_LIMIT_S if time_limit is None else time_limit
            result = placed.plan(
                planner or AUTO, plan=plan, time_limit_s=limit_s, seed=seed, progress=meter
            ).demand_finished()
        for key, (done, why) in EXECUTED.items():
            if (asked := getattr(problem, key)) is not done:
                console.note(f"{key} {asked} of the file is planned and priced as {done}: {why}")
        runs: list[SampleRun] = []
        partial = PartialRun(console, runs, lambda: f"{len(runs)} of {1 + len(baselines)} runs")
        with console.meter(f"running {problem.name}") as meter, partial:
            placed.run(result.plan, baselines=baselines, progress=meter, ended=runs.append)
        if weights is not None and runs:
            job.write_back(runs[0].trained.state)
            console.kept(job.save(weights))
    console.answer(lambda: runs_json(runs), lambda: runs_table(runs))
    _note_overrun(console, runs)
    _keep_page(console, report, lambda: samples_run_page(result, runs))
    partial.finish()


def _job(
    problem: SampleProblem, model: str | None, optimizer: str, lr: float, seed: int, *, real: bool
) -> SampleJob:
    """The model of a factory with its batch as samples, or the example."""
    from placewright.samples.training.job import SampleJob, example_job
    from placewright.samples.training.sample_set import SampleSet

    if model is None:
        return example_job(problem, seed, **(LARGE if real else {}))
    from placewright.capturing.source import load_model

    total = int(problem.held.sum())
    source = load_model(model, training=True, seed=seed)
    samples = SampleSet((source.inputs, source.targets), f"model {model}")
    if len(samples) < total:
        raise InputError(
            "the model's batch has fewer rows than the nodes have samples",
            where=f"--model {model}",
            by=f"{len(samples)}, the nodes have {total}",
            hint="let the factory return all samples as its inputs and targets",
        )
    assert source.loss_fn is not None
    return SampleJob(source.model, source.loss_fn, samples, optimizer, lr)


OF_FACTORY = ("model", "loss_fn", "read", "collate", "optimizer", "lr")
"""Keys of what a factory returns for files: arguments of `placewright.train_samples`."""


def _job_of_files(
    problem: SampleProblem,
    source: str | None,
    data: Path | None,
    test: Path | None,
    optimizer: str,
    lr: float,
    seed: int,
) -> tuple[SampleProblem, SampleJob]:
    """The model of a factory with files as samples, and the problem with each node's number."""
    from placewright.capturing.source import call_factory
    from placewright.samples.placed_samples import job_of

    if source is None or data is None:
        raise InputError(
            "files of samples go with --data and --model",
            where="--data" if data is not None else "--test",
            hint="give --data FOLDER and --model package.module:factory",
        )
    made = call_factory(source, seed=seed)
    where = f"model {source}"
    if not isinstance(made, dict) or not {"model", "loss_fn", "read"} <= made.keys():
        raise InputError(
            "for files the factory must return a dict with model, loss_fn and read",
            where=where,
            by=f"got {type(made).__name__}"
            + (f" with {', '.join(map(str, made))}" if isinstance(made, dict) else ""),
            hint='return {"model": ..., "loss_fn": ..., "read": ...}; collate is optional',
        )
    for key in made:
        if key not in OF_FACTORY:
            raise UnknownNameError("key", str(key), OF_FACTORY, where=where)
    given: dict[str, Any] = {"optimizer": optimizer, "lr": lr, "test": test} | made
    return job_of(given.pop("model"), data, problem, **given)


def _answer_epochs(
    console: Console,
    placed: PlacedSamples,
    ahead: Generator[AdaptiveEpoch, None, None],
    report: Path | None,
    weights: Path | None,
) -> None:
    """Train epoch by epoch, print what they took, and keep what is asked for."""
    from placewright.samples.run_pages import samples_epochs_page
    from placewright.samples.views import epochs_json, epochs_table

    steps: list[AdaptiveEpoch] = []
    partial = PartialRun(console, steps, lambda: f"epoch {steps[-1].number}")
    with console.meter(f"running {placed.problem.name}") as meter, partial, closing(ahead):
        for step in ahead:
            steps.append(step)
            _show_step(console, meter, steps, placed.recipe.epochs)
    if weights is not None:
        console.kept(placed.job.save(weights))
    data = epochs_json(steps, real=placed.real)
    console.answer(lambda: data, lambda: epochs_table(steps, real=placed.real))
    _keep_page(
        console, report, lambda: samples_epochs_page(placed.problem, steps, real=placed.real)
    )
    partial.finish()


def _show_step(
    console: Console, meter: Progress, steps: Sequence[AdaptiveEpoch], epochs: int
) -> None:
    """Show the last of `steps` beside the time of all."""
    step = steps[-1]
    if step.unplanned:
        console.note(f"epoch {step.number}: not planned again: {step.unplanned}")
    meter(
        what=f"epoch {step.number} of {epochs}",
        value=step.epoch.seconds,
        bound=0.0,
        elapsed_s=sum(s.epoch.seconds + s.move_s for s in steps),
    )


def _note_overrun(console: Console, runs: list[SampleRun]) -> None:
    """Note where this machine computes slower than the nodes that it emulates by waiting."""
    ratios = [run.measured_s / run.predicted_s for run in runs if run.predicted_s and not run.real]
    if ratios and (over := median(ratios)) > OVERRUN:
        console.note(
            f"note: runs took {over:.1f} times what was predicted: this machine cannot compute as "
            f"fast as these nodes at --speed {runs[0].speed:g}; try {runs[0].speed / over / 2:.2g}"
        )


def _keep_page(console: Console, path: Path | None, page: Callable[[], str]) -> None:
    from placewright.io.stored import write_file

    if path is not None:
        console.kept(write_file(path, page()))


def _refuse_unfit(
    engine: str, speed: float, adapt: bool, plan: Path | None, disturbed: bool, baselines: bool
) -> None:
    """Raise if options conflict."""
    if engine == "testbed" and speed != 1.0:  # before anything starts, by the option's name
        raise InputError("a testbed runs in real time", where="--speed", by=f"{speed:g}")
    if adapt and plan is not None:
        raise InputError("a run that plans again takes no plan", where="--adapt", by=str(plan))
    if adapt and baselines:
        raise InputError("a run that plans again has no baselines beside it", where="--baseline")
    if disturbed and not adapt:
        raise InputError("--slow and --kill go with --adapt", where="samples run")


class PartialRun:
    """Holds back Ctrl-C and errors, where something has ended, until that is printed.

    Parameters
    ----------
    done
        What has ended, growing.
    progress
        How far the run is, as text.
    """

    def __init__(
        self, console: Console, done: Sequence[object], progress: Callable[[], str]
    ) -> None:
        self._console, self._done, self._progress = console, done, progress
        self._error: PlacewrightError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not self._done or not isinstance(error, KeyboardInterrupt | PlacewrightError):
            return False
        if isinstance(error, PlacewrightError):
            self._error = error
        else:
            self._console.note(f"interrupted after {self._progress()}")
        return True

    def finish(self) -> None:
        """Raise the error that was held back, if there was one."""
        if self._error is not None:
            raise self._error


RegimeName = Annotated[
    str,
    typer.Argument(
        metavar="REGIME", show_default=False, help="mild, moderate, heavy or network-bound."
    ),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="How many.")]


def load(
    console: Console,
    file: NodesFile,
    overlap: OverlapOption = None,
    relay: RelayOption = None,
    epochs: EpochsOption = None,
    ports: PortsOption = None,
) -> Loaded:
    """The problem of the file, with the options that were given in place of the file's."""
    return Loaded(read_changed(file, overlap=overlap, relay=relay, epochs=epochs, ports=ports))


def generate(
    console: Console,
    regime: RegimeName,
    nodes: NodesOption = 10,
    seed: int = 0,
    format: str = "yaml",
) -> None:
    """Make a file of nodes and links; the same seed gives the same file."""
    from placewright.samples.files import problem_json, write_problem
    from placewright.samples.problem import generate as make

    problem = make(regime, nodes, seed)
    if console.output is None or console.format != "yaml":
        console.show(lambda: problem_json(problem), lambda: repr(problem))
    if console.output is not None:
        console.kept(write_problem(problem, console.output))


verbs: dict[str, Callable[..., None]] = {"run": run, "generate": generate}
examples = {
    "plan": ["nodes.yaml --report plan.html", "nodes.yaml --planner greedy -f json"],
    "compare": ["nodes.yaml --planner none --planner greedy"],
    "simulate": ["nodes.yaml plan.json --ports queued"],
    "explain": ["nodes.yaml plan.json n3"],
    "run": [
        "nodes.yaml --epochs 3 --speed 5 --baseline none",
        "nodes.yaml --data pictures --model my_models.py:cnn --test pictures-test",
        "nodes.yaml --engine testbed",
        "nodes.yaml --adapt --slow n0:3:4 --kill n1:5",
    ],
    "generate": ["heavy --nodes 20 --seed 1 -o nodes.yaml -q"],
}


NodesFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="Nodes and links, YAML or JSON.")
]
OverlapOption = Annotated[
    Literal["A", "B", "C"] | None,
    typer.Option("--overlap", help="A: all wait; B: each node waits; C: move while training."),
]
RelayOption = Annotated[
    bool | None, typer.Option("--relay/--no-relay", help="May samples pass through a third node?")
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, metavar="N", help="Visits of every sample.")
]
PortsOption = Annotated[
    Literal["ideal", "queued"] | None,
    typer.Option("--ports", help="Do transfers wait for the port at the other end?"),
]


def read_changed(file: Path, **options: Any) -> SampleProblem:
    """The problem of a file, with the options that are not ``None`` in place of the file's."""
    from placewright.samples.files import read_problem

    changes = {key: value for key, value in options.items() if value is not None}
    problem = read_problem(file)
    return problem.replace(**changes) if changes else problem
