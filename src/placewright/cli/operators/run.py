"""placewright operators run: carry a plan out and measure it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.answer import keep_pictures
from placewright.cli.conflicting_options import (
    TIME_LIMIT_S,
    AskedPlannerOption,
    AskedTimeLimitOption,
    refuse_beside_plan,
)
from placewright.cli.console import Console
from placewright.cli.operators.adapting import run_adaptively
from placewright.cli.operators.engines import (
    EmulateOption,
    EngineOption,
    GpusOption,
    prepared,
    serves,
)
from placewright.cli.operators.pacing import interference_of, judged, planned, tried
from placewright.cli.options import (
    BatchOption,
    LinksOption,
    OnOption,
    OverlapOption,
    ReportOption,
    SeedOption,
    Source,
    TraceOption,
    TrainingOption,
)
from placewright.cli.progress import STEPS
from placewright.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from placewright.cli.sources import Loaded
    from placewright.planning.result import Measurement, Result
    from placewright.runtime.engines.engine import Engine

OptionalPlan = Annotated[
    Path | None, typer.Argument(metavar="[PLAN]", help="A plan.json; planned first without one.")
]
StepsOption = Annotated[
    int, typer.Option("--steps", min=1, metavar="N", help="Measured steps, after warm-up.")
]
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
CheckOption = Annotated[
    bool,
    typer.Option("--check", help="Compare with plain eager PyTorch; exit code 1 if it differs."),
]


def run(
    console: Console,
    source: Source,
    plan: OptionalPlan = None,
    on: OnOption = None,
    steps: StepsOption = 10,
    check: CheckOption = False,
    engine: EngineOption = "local",
    emulate: EmulateOption = True,
    gpus: GpusOption = None,
    adapt: AdaptOption = False,
    snapshots: SnapshotsOption = None,
    planner: AskedPlannerOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    time_limit: AskedTimeLimitOption = None,
    seed: SeedOption = 0,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Run a placed step on one worker process per device, beside the best single device.

    Started by torchrun on every machine: [cyan]torchrun --master-port 29500 --nproc-per-node 2
    -m placewright operators run zoo:resnet50 --on edge-duo --engine torchrun[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.operators.run import as_json
    from placewright.operators.views import run_table

    if serves(engine):
        return
    if snapshots is not None and not adapt:
        raise InputError("--snapshots is for runs that adapt", hint="add --adapt")
    refuse_beside_plan(plan, planner, time_limit)
    with console.noted(UserWarning):
        workers = prepared(engine, on, emulate, gpus)
    asked = SourceOptions(source, on, training, batch, links=links, overlap=overlap)
    loaded = load(asked, console)
    _check_runnable(loaded)
    timeline = None
    with workers as up:
        known = interference_of(console, loaded, up)
        loaded = replace(loaded, problem=known.alone)
        limit_s = TIME_LIMIT_S if time_limit is None else time_limit
        if plan is not None:
            results: tuple[Result, ...] = (judged(known, plan),)
        else:
            results = planned(console, known, planner or "auto", time_limit_s=limit_s, seed=seed)
        choose = len(results) > 1 and not adapt  # a run that adapts tries plans while it trains
        result = tried(console, loaded, known, results, up) if choose else results[0]
        measured = _measure(
            console,
            loaded,
            result,
            up,
            steps=min(steps, 10) if adapt else steps,
            seed=seed,
            check=check,
        )
        if adapt:
            timeline = run_adaptively(
                console,
                loaded,
                known,
                results,
                steps=steps,
                seed=seed,
                engine=up,
                snapshots=snapshots,
                check=check,
            )
    data = as_json(measured, result) | ({} if timeline is None else {"run": timeline.as_json()})
    console.show(lambda: data, lambda: run_table(result, measured, timeline))
    console.keep(lambda: data)
    keep_pictures(
        console,
        result,
        report=report,
        trace=trace,
        graph=loaded.graph,
        measurement=measured,
        run=timeline,
    )
    for checked in (measured.check, None if timeline is None else timeline.check):
        if checked is not None:
            checked.demand()


def _check_runnable(loaded: Loaded) -> None:
    if loaded.graph is None or loaded.cluster is None or loaded.model is None:
        raise UnsupportedError(
            "only a model can be run",
            where=loaded.problem.name,
            hint="give zoo:NAME or package.module:factory as SOURCE, and the plan after it",
        )


def _measure(
    console: Console,
    loaded: Loaded,
    result: Result,
    engine: Engine,
    *,
    steps: int,
    seed: int,
    check: bool,
) -> Measurement:
    """The plan and the best single device that fits, in turns on the same workers."""
    from placewright.operators.run import best_single, running

    assert loaded.graph is not None
    assert loaded.cluster is not None
    single = best_single(loaded.problem)
    with ExitStack() as up:
        with console.meter("starting workers"):
            workers = running(loaded.graph, loaded.cluster, loaded.state, engine)
            runner = up.enter_context(workers)
        beside = "" if single is None else f" and {single.planner} in turns"
        with console.meter(f"running the plan{beside}", STEPS) as meter:
            meter.step("first steps")
            return runner.measure(
                result,
                beside=single,
                steps=steps,
                seed=seed,
                check=loaded.model if check else None,
                progress=meter,
            )
