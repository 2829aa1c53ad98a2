"""The command line of wing 2: its sources, and `layers run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from placewright.errors import CheckError, InputError, UnknownNameError
from placewright.io.output import output_file
from placewright.layers.plan import Strategy
from placewright.layers.problem import LayerProblem
from placewright.planning.wing import Loaded

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.layers.devicemap.problem import MapProblem
    from placewright.layers.flow.problem import FlowProblem
    from placewright.layers.halda.problem import RingProblem

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="zoo:NAME, package.module:factory or FILE.py:factory.",
    ),
]


def run(
    console: Console,
    model: ModelName,
    plan: Path | None = None,
    on: str | None = None,
    engine: Literal["local", "testbed", "torchrun", "ray"] = "local",
    batch: int | None = None,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured.")] = 10,
    check: Annotated[
        bool, typer.Option("--check", help="Compare losses, gradients, updates with one process.")
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--approximate",
            help="Refuse dropout, batch norm and losses that need the whole batch on parts of it, "
            "or accept them.",
        ),
    ] = True,
    trials: Annotated[
        bool,
        typer.Option(
            "--trials/--as-predicted",
            help="Try the few best plans on the workers, or take the best by prediction.",
        ),
    ] = True,
    train: Annotated[
        int | None,
        typer.Option("--train", min=1, metavar="N", help="Then train N steps, adapting."),
    ] = None,
    snapshots: Annotated[
        Path | None,
        typer.Option("--snapshots", metavar="FOLDER", help="Of --train; continues from there."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            callback=output_file,
            help="Write what was learned (safetensors).",
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option("--slow", metavar="WORKER:STEP:TIMES", help="Slow a worker down, to try it."),
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="WORKER:STEP", help="Kill a worker, to try it."),
    ] = None,
    report: Path | None = None,
    planner: str = "auto",
    time_limit: float = 20.0,
    seed: int = 0,
) -> None:
    """Measure the layers on the workers, plan, train; beside the fastest worker alone.

    Prints predicted and measured step times, the speed-up over the fastest worker and over data
    parallelism with equal batches, and the sum of speeds that no plan can exceed. With --train it
    is then trained on that batch, or on its own data (zoo:small_gpt): shares follow the speeds of
    workers, survivors go on.
    """
    from placewright.capturing.source import load_model
    from placewright.capturing.zoo import zoo_batches
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster
    from placewright.layers import placed_training
    from placewright.layers.files import plan_json
    from placewright.layers.training import train_steps
    from placewright.planning.solving import refuse_beside_plan
    from placewright.runtime.engines.torchrun_agent import served_torchrun

    if served_torchrun(engine):
        return
    refuse_beside_plan(plan, None if planner == "auto" else planner, None)
    cluster = Cluster.detect() if on is None else load_cluster(on)
    events = disturbances(cluster.device_names, train or 0, slow or (), kill or ())
    if train is None and (snapshots is not None or weights is not None):
        raise InputError("needs --train", where="--snapshots and --weights", hint="--train 20")
    source = load_model(model, batch, training=True, seed=seed)
    with console.meter(f"measuring the layers of {source.name}, and planning"):
        made = placed_training.train(
            source,
            cluster=cluster,
            engine=engine,
            planner=planner,
            plan=plan,
            time_limit_s=time_limit,
            trials=trials,
            exact=exact,
            seed=seed,
        )
    with made as placed:
        for note in placed.notes:
            console.note(note)
        # An error of the check is raised below, when all is printed and kept.
        with console.meter("measuring the plan, and its baselines"), suppress(CheckError):
            placed.run(steps, check=check)
        measured = placed.measurement
        assert measured is not None
        result = placed.result
        if report is not None:
            console.kept(placed.report(report))
        trained = None
        if train is not None:
            with placed.trainer(snapshots, planner=planner, seed=seed, disturbances=events) as own:
                with console.meter(f"training {train} steps"):
                    drawn = zoo_batches(model)
                    samples = placed.problem.global_batch
                    batches = None if drawn is None else partial(drawn, samples)
                    trained = train_steps(own, train, check=check, batches=batches)
                if (done := len(trained.losses)) < train:
                    unchecked = "; losses are not compared" if check else ""
                    console.note(f"interrupted after {done} of {train} steps{unchecked}")
                if weights is not None:
                    console.kept(own.save(weights))
    data = measured.as_json() | {
        "planner": result.planner,
        "plan": plan_json(result.judgement),
        "notes": list(placed.notes),
        "training": None if trained is None else trained.as_json(),
    }
    after = "" if trained is None else f"\n{trained!r}"
    console.show(lambda: data, lambda: f"{result!r}\n{measured!r}{after}")
    console.keep(lambda: data)
    measured.demand()
    if trained is not None:
        trained.demand()


def disturbances(
    workers: Sequence[str], steps: int, slow: Sequence[str], kill: Sequence[str]
) -> dict[int, tuple[str, float]]:
    """By step; errors as `placewright.adapt.timeline.disturbances`, and where a step has two."""
    from placewright.adapt import timeline

    found: dict[int, tuple[str, float]] = {}
    for name, step, times in timeline.disturbances(
        "WORKER", "STEP", workers, steps, slow=slow, kill=kill
    ):
        if step in found:
            raise InputError(f"step {step} has two disturbances", where="--slow and --kill")
        found[step] = name, times
    return found


SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A model (zoo:NAME, package.module:factory or FILE.py:factory, with --on), a problem "
        "file, piper:FILE[?devices=K&memory=16GiB], or layers of a language model: flow:FILE, "
        "halda:FILE, devicemap:FILE.",
    ),
]
MOST_SAMPLES = 100_000

BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, max=MOST_SAMPLES, metavar="N", help="Samples of a step."),
]

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="CLUSTER", help="Workers of a model: a file or a preset."),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact/--approximate",
        help="Of a model: refuse dropout and batch norm on parts of the batch, or accept them.",
    ),
]


def load(
    console: Console,
    source: SourceName,
    on: OnOption = None,
    batch: BatchOption = None,
    exact: ExactOption = True,
) -> Loaded:
    """The problem of a source."""
    return Loaded(find_problem(source, console, on, batch, exact=exact))


verbs: dict[str, Callable[..., None]] = {"run": run}
examples = {
    "plan": [
        "zoo:bert --on server-4gpu --batch 16 -o plan.json",
        "problem.json --report plan.html",
        "piper:bert.json?devices=512 -f json",
        "flow:cluster.json --time-limit 60 -f json",
        "halda:devices.json",
    ],
    "compare": ["problem.json --planner dp --planner pso", "zoo:gpt2 --on edge-duo --approximate"],
    "simulate": ["problem.json plan.json"],
    "run": ["zoo:gpt2 --on edge-duo --batch 8 --approximate --steps 6"],
    "explain": ["problem.json plan.json block.7"],
}


SCHEMES = ("piper", "flow", "halda", "devicemap")


def find_problem(
    source: str,
    console: Console,
    on: str | None = None,
    batch: int | None = None,
    *,
    exact: bool = True,
) -> LayerProblem | FlowProblem | RingProblem | MapProblem:
    """What SOURCE names; `on` and `exact` are for models.

    Raises
    ------
    InputError
        No such file or format, or a field in it is wrong.
    """
    scheme, colon, _ = source.partition(":")
    if colon and scheme not in SCHEMES and not Path(source).exists():
        if on is None and scheme != "zoo" and "." not in scheme:
            raise UnknownNameError("format", scheme, (*SCHEMES, "zoo"), where=source)
        return _model(source, console, on, batch, exact=exact)
    for option, given, what in (
        (f"--on {on}", on is not None, "has its own workers"),
        ("--approximate", not exact, "is no model"),
    ):
        if given:
            hint = (
                f"leave {option.split()[0]} out, or name a model: zoo:NAME, package.module:factory"
            )
            raise InputError(what, where=source, by=f"got {option}", hint=hint)
    from placewright.files import read_file

    found = read_file(source) if colon and scheme in SCHEMES else _file(source)
    if batch is None:
        return found
    if not isinstance(found, LayerProblem):
        hint = "leave --batch out"
        raise InputError("has no batch", where=source, by=f"got --batch {batch}", hint=hint)
    variants = None if found.variants is None else replace(found.variants, batch_samples=batch)
    return found.replace(global_batch=batch, variants=variants)


def _model(
    source: str, console: Console, on: str | None, batch: int | None, *, exact: bool
) -> LayerProblem:
    """Costs of a model's layers, computed."""
    from placewright.capturing.source import load_model
    from placewright.cluster.files import load_cluster
    from placewright.layers.execution.layer_problem import layer_problem

    if on is None:
        raise InputError(
            "is a model, and needs the workers that it is to be trained on",
            where=source,
            hint="--on CLUSTER, a file or a preset such as edge-duo",
        )
    cluster = load_cluster(on)
    with console.meter(f"computing costs of the layers of {source}"):
        model = load_model(source, batch, training=True)
        problem = layer_problem(model, cluster=cluster, exact=exact)
    whole = {x.layer: x.reason for x in problem.refusals if x.strategy is Strategy.DATA}
    if whole:
        layer, reason = next(iter(whole.items()))
        console.note(
            f"{len(whole)} of {problem.n} layers have to see the whole batch, which rules out "
            f"data parallelism and micro-batches ({problem.layer_names[layer]}: {reason}); "
            "--approximate accepts parts of it"
        )
    return problem


def _file(source: str) -> LayerProblem | FlowProblem | RingProblem | MapProblem:
    from placewright.layers.files import read_problem

    try:
        return read_problem(source)
    except InputError as error:
        from placewright.files import document_kind, read_file

        kind = ""
        with suppress(InputError):  # no document of ours: Piper's are none
            kind = document_kind(Path(source))
        if kind in SCHEMES:
            found: FlowProblem | RingProblem | MapProblem = read_file(source)
            return found
        if ": layer_names" not in error.where:
            raise
        hint = f"Piper's input is given as piper:{source}"
        raise InputError(error.what, where=error.where, by=error.by, hint=hint) from None
