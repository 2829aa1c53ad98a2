"""The verbs that every wing has: plan, compare, simulate, explain.

`placewright.cli.wing_verbs` adds the options of a wing's problems to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.console import Console, print_result
from placewright.cli.options import (
    BoundsOption,
    PlanFile,
    PlannerOption,
    PlannersOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
)

if TYPE_CHECKING:
    from placewright.planning.wing import Loaded

PartName = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="A part of the plan, by its name."),
]

Load = Callable[[], "Loaded"]


def plan(
    console: Console,
    load: Load,
    *,
    planner: PlannerOption = "auto",
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    bounds: BoundsOption = True,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Find the best plan in the time given, and a bound on what could be better.

    Ctrl-C stops the search and gives the best plan so far.
    """
    from placewright.planning.solving import solve
    from placewright.planning.wings import unit_of

    loaded = load()
    title, unit = f"planning {loaded.problem.name}", unit_of(loaded.problem)
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = solve(
            loaded.problem,
            planner,
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
            bounds=bounds,
        )
    print_result(console, result, report=report, trace=trace, graph=loaded.graph)


def measuring(loaded: Any) -> AbstractContextManager[Any]:
    """What executes plans while planners learn; ``None`` where nothing can be executed."""
    opened = getattr(loaded, "measuring", nullcontext)
    found: AbstractContextManager[Any] = opened()
    return found


def compare(
    console: Console,
    load: Load,
    *,
    planner: PlannersOption = None,
    time_limit: TimeLimitOption = 60.0,
    seed: SeedOption = 0,
    bounds: BoundsOption = True,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Run every planner, value their plans by one judge, and print one table."""
    from placewright.planning.result_text import compare_table
    from placewright.planning.solving import compare as run_all
    from placewright.planning.wings import unit_of

    loaded = load()
    title, unit = f"comparing planners on {loaded.problem.name}", unit_of(loaded.problem)
    with console.meter(title, unit=unit) as meter, measuring(loaded) as measure:
        result = run_all(
            loaded.problem,
            planner or (),
            time_limit_s=time_limit,
            seed=seed,
            progress=meter,
            measure=measure,
            bounds=bounds,
        )
    table = partial(compare_table, result)
    print_result(console, result, report=report, trace=trace, graph=loaded.graph, table=table)


def simulate(
    console: Console,
    load: Load,
    plan: PlanFile,
    *,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Simulate a saved plan by the judge: value, timeline, limits. Exit 3 if it does not fit."""
    from placewright.planning.fixed_plan import judged_plan

    loaded = load()
    result = judged_plan(loaded.problem, plan)
    print_result(console, result, report=report, trace=trace, graph=loaded.graph)


def explain(console: Console, load: Load, plan: PlanFile, name: PartName) -> None:
    """Print why a part of a saved plan is where it is, and what moving it would change."""
    from placewright.planning.fixed_plan import judged_plan

    explanation = judged_plan(load().problem, plan).explain(name)
    console.answer(explanation.as_json, lambda: str(explanation))
