"""Options of a run that plans first, unless a plan is given."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.planning.fixed_plan import refuse_beside_plan

__all__ = ["TIME_LIMIT_S", "AskedPlannerOption", "AskedTimeLimitOption", "refuse_beside_plan"]

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
