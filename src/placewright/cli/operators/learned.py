"""Verbs for planners that learn: operators compare --learned, operators train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.console import Console
from placewright.cli.options import (
    PlannerOption,
    PlannersOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
)
from placewright.errors import InputError
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.planning.wing import Loaded

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
    from placewright.cli import generic_verbs

    if not learned:
        if evaluations is not None or seconds:
            raise InputError(
                "--evaluations and --seconds belong to --learned",
                hint="add --learned, or use --time-limit",
            )
        generic_verbs.compare(
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
    from placewright.cli.generic_verbs import measuring
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
