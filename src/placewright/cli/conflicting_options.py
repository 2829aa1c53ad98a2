"""Options of a run that say how to plan, beside a plan that is given: they would say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.errors import InputError

AskedPlannerOption = Annotated[
    str | None,
    typer.Option(
        "--planner", metavar="NAME", help="See `compare`; auto without it. Not with PLAN."
    ),
]
AskedTimeLimitOption = Annotated[
    float | None,
    typer.Option(
        "--time-limit", min=0.0, metavar="SECONDS", help="No search beyond it. Not with PLAN."
    ),
]

TIME_LIMIT_S = 60.0
"""For planning, where nothing is said."""


def refuse_beside_plan(plan: Path | None, planner: str | None, time_limit: float | None) -> None:
    """Say which option nobody would listen to.

    Raises
    ------
    InputError
        A plan is given, and so is how to make one.
    """
    given = [("--planner", planner), ("--time-limit", time_limit)]
    for option, said in given if plan is not None else ():
        if said is not None:
            raise InputError(
                "a plan that is given is not made again",
                where=option,
                by=f"{said} beside {plan}",
                hint="leave one of the two out",
            )
