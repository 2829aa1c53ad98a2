"""operators run on real workers: how fast they are, alone and side by side, and the plan for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from placewright.cli.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from placewright.cli.sources import Loaded
    from placewright.planning.result import Result
    from placewright.profiling.interference import InterferenceProfile
    from placewright.runtime.engines.engine import Engine

FIRST_S = 5.0
"""At most, for the plan that shows how devices slow each other."""

SURE = "ceft+pbqp"
"""Its plan is tried beside those of `auto`: seldom the best one said, seldom a bad one."""


def interference_of(console: Console, loaded: Loaded, engine: Engine) -> InterferenceProfile:
    """At the pace of the workers, where they are not simply processes of this machine."""
    from placewright.operators.run import best_single
    from placewright.planning.solving import solve
    from placewright.profiling.calibration import calibrated
    from placewright.profiling.interference import InterferenceProfile, interference
    from placewright.runtime.session import Session

    problem = loaded.problem
    if engine.name == "local":
        return InterferenceProfile.alike(problem)
    assert loaded.graph is not None
    assert loaded.cluster is not None
    with (
        console.meter("calibrating: whole steps on every device alone") as meter,
        Session(loaded.graph, loaded.cluster, loaded.state, engine) as session,
    ):
        found = calibrated(problem, session)
        meter.step("calibrating: devices side by side")
        first = solve(found.problem, time_limit_s=FIRST_S).plan
        single = best_single(found.problem)
        known = InterferenceProfile.alike(found.problem)
        if single is not None:
            known = interference(found.problem, session, first, single.plan)
    if found.asked:
        console.note(f"whole steps take, beside the profile: {found}")
    if known.together is not known.alone:
        console.note(f"operators take, side by side beside alone: {known}")
    return known


def planned(
    console: Console, known: InterferenceProfile, planner: str, *, time_limit_s: float, seed: int
) -> tuple[Result, ...]:
    """By the pace of devices side by side; of `auto` the best single device too, best first."""
    from placewright.operators.run import best_single
    from placewright.planning.result import Status
    from placewright.planning.solving import AUTO, solve

    title = f"planning {known.alone.name}, at most {time_limit_s:g} s"
    with console.meter(title) as meter:
        result = solve(
            known.together, planner, time_limit_s=time_limit_s, seed=seed, progress=meter
        )
    if result.status is Status.INTERRUPTED:
        console.note("interrupted: the best plan so far is run; Ctrl-C again ends that too")
    result = _of_its_kind(known, result)
    single = best_single(known.alone) if planner == AUTO else None
    if single is None:
        return (result,)
    result = _beside(single, result)
    return (single, result) if single.value < result.value else (result, single)


def tried(
    console: Console,
    loaded: Loaded,
    known: InterferenceProfile,
    results: Sequence[Result],
    engine: Engine,
) -> Result:
    """Of the plans of `auto`, and one of a planner that is quick and sure, the fastest for real.

    After Ctrl-C the fastest so far; nothing is tried where planning was ended so.
    """
    from placewright.planning.result import Status

    stopped = any(result.status is Status.INTERRUPTED for result in results)
    if engine.name == "local" or stopped:
        return results[0]
    try:
        return _tried(console, loaded, known, results, engine)
    except KeyboardInterrupt:
        console.note("interrupted before any plan was tried: the best one said is run")
        return results[0]


def _tried(
    console: Console,
    loaded: Loaded,
    known: InterferenceProfile,
    results: Sequence[Result],
    engine: Engine,
) -> Result:
    from placewright.adapt.finals import finalists, finals
    from placewright.errors import PlacewrightError
    from placewright.planning.solving import solve
    from placewright.report.text import seconds
    from placewright.runtime.session import Session

    with suppress(PlacewrightError):
        results = (*results, _of_its_kind(known, solve(known.together, SURE)))
    plans = finalists(known, [result.plan for result in results])
    if len(plans) == 1:
        return results[0]
    assert loaded.graph is not None
    assert loaded.cluster is not None
    with (
        console.meter("trying the closest plans") as meter,
        Session(loaded.graph, loaded.cluster, loaded.state, engine) as session,
    ):
        found = finals(session, known, plans, progress=meter.step)
    of_plan = {id(result.plan): result for result in results}
    taking_part = [of_plan[id(plan)] for plan in found.plans]
    taken = taking_part[found.best]
    if found.ended:
        console.note(f"trying plans ended early, {taken.planner} is run: {found.ended}")
    shown = zip(taking_part, found.step_s, strict=True)
    told = [f"{result.planner} {seconds(step_s)}" for result, step_s in shown if step_s < inf]
    if told:
        console.note(f"tried: {', '.join(told)}; {taken.planner} is run")
    return taken


def _beside(single: Result, result: Result) -> Result:
    """With what one device takes alone among its candidates, not in company."""
    others = (c for c in result.candidates if not c.planner.startswith("only:"))
    return replace(result, candidates=(*others, *single.candidates))


def _of_its_kind(known: InterferenceProfile, result: Result) -> Result:
    """At the pace that its plan is to be judged by."""
    from placewright.planning.fixed_plan import FixedPlan
    from placewright.planning.result import Status
    from placewright.planning.solving import solve

    if known.of(result.plan) is result.problem:
        return result
    # What was proved of it was proved at the other pace.
    plan = result.plan
    found = solve(known.alone, FixedPlan(plan, name=result.planner))
    stopped = result.status is Status.INTERRUPTED
    return replace(found, status=result.status) if stopped else found


def judged(known: InterferenceProfile, path: Path) -> Result:
    """A plan from a file, by the pace of its kind."""
    from placewright.planning.fixed_plan import judged_plan

    result = judged_plan(known.together, path)
    return result if known.of(result.plan) is result.problem else judged_plan(known.alone, path)
