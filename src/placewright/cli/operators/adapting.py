"""placewright operators run --adapt: steps that go on while devices change and workers die."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.console import Console
from placewright.cli.progress import STEPS

if TYPE_CHECKING:
    from placewright.adapt.run import AdaptiveRun
    from placewright.adapt.timeline import Timeline
    from placewright.cli.sources import Loaded
    from placewright.planning.result import Result
    from placewright.profiling.interference import InterferenceProfile
    from placewright.runtime.engines.engine import Engine


def run_adaptively(
    console: Console,
    loaded: Loaded,
    known: InterferenceProfile,
    results: Sequence[Result],
    *,
    steps: int,
    seed: int,
    engine: Engine,
    snapshots: Path | None,
    check: bool = False,
) -> Timeline:
    """All steps by the first plan or what it is changed to, events told as they happen.

    Ctrl-C ends the run after the step it is in, with a last snapshot where they are kept; a second
    one ends it at once, with the snapshots that there are.
    """
    from placewright.runtime.scratch import Scratch

    with Scratch() as passing:
        run = _run(loaded, known, results, snapshots or Path(passing), steps, seed, engine)
        with run, console.meter(f"running {loaded.problem.name}", STEPS) as meter:
            _tell_start(run, console)
            try:
                _steps(run, console, meter, steps)
            except KeyboardInterrupt:
                console.note(f"interrupted after step {run.done}")
            if snapshots is not None and run.session is not None:
                run.finish()
            if check:
                _check(run, loaded, console)
        return run.timeline


def _check(run: AdaptiveRun, loaded: Loaded, console: Console) -> None:
    """Hold the whole run against eager steps, unless it was broken off in the middle of a step."""
    from placewright.adapt.check import check_run

    assert loaded.model is not None
    if run.session is None or not run.done:
        console.note("not compared with eager PyTorch: the run was broken off")
        return
    with console.meter(f"repeating {run.done} steps in eager PyTorch"):
        run.timeline.check = check_run(run, loaded.model)


def _run(
    loaded: Loaded,
    known: InterferenceProfile,
    results: Sequence[Result],
    folder: Path,
    steps: int,
    seed: int,
    engine: Engine,
) -> AdaptiveRun:
    from functools import partial

    from placewright.adapt.decide import Policy
    from placewright.adapt.rivals import rivals
    from placewright.adapt.run import AdaptiveRun, Job
    from placewright.runtime.session import Session

    assert loaded.graph is not None
    assert loaded.cluster is not None
    job = Job(
        loaded.graph,
        loaded.cluster,
        loaded.problem,
        loaded.state,
        open=partial(Session, engine=engine),
        **_reach(engine),
    )
    policy = Policy()
    plan, *at_hand = (result.plan for result in results)
    return AdaptiveRun(
        job,
        folder,
        plan=plan,
        rivals=rivals(known, plan, steps, at_hand=at_hand),
        interference=known,
        policy=policy,
        steps=steps,
        seed=seed,
    )


def _reach(engine: Engine) -> dict[str, Any]:
    """On a testbed and with Ray, how to find out who can still talk to whom."""
    from placewright.adapt.connectivity import all_talk
    from placewright.runtime.engines.local import Local
    from placewright.runtime.engines.ray_engine import Ray

    if isinstance(engine, Ray):
        return {"reachable": engine.reachable}
    handles = engine.handles if isinstance(engine, Local) else None
    if handles is None:
        return {}

    def reachable(names: Sequence[str]) -> frozenset[str]:
        return all_talk([handles[name] for name in names])

    return {"reachable": reachable}


def _tell_start(run: AdaptiveRun, console: Console) -> None:
    """Where a continued run goes on, and what it had to pass over."""
    for name in run.snapshots.damaged:
        console.note(f"{run.folder / name} is damaged and passed over")
    if run.done:
        console.note(f"continued after step {run.done}, from {run.folder}")


def _steps(run: AdaptiveRun, console: Console, meter: Any, steps: int) -> None:
    """Step after step; every event is told once, then what is in force now."""
    from placewright.report.history import QUIET, event_text

    meter.step("starting workers")
    seen = plans = 0
    predicted_s = float("nan")
    while run.done < steps:
        run.step()
        news = [e for e in run.timeline.events[seen:] if e.kind not in QUIET]
        seen = len(run.timeline.events)
        for event in news:
            console.note(f"step {event.step}: {event.kind}: {event_text(event)}")
        if plans != run.timeline.plans or news:
            predicted_s = _predicted_s(run)
        if plans != run.timeline.plans:
            plans = run.timeline.plans
            _tell_plan(run, console, predicted_s)
        meter(
            what=f"step {run.done} of {steps}, plan {plans}{_phase(run)}",
            value=run.timeline.typical_s(5),
            bound=predicted_s,
            elapsed_s=sum(run.timeline.step_s),
        )


def _predicted_s(run: AdaptiveRun) -> float:
    """What the plan in force should take, by the profile as it is now."""
    from placewright.operators.judge import judge

    if run.adaptation is None:
        return float("nan")
    return judge(run.adaptation.watch.problem(), run.adaptation.plan).value


def _tell_plan(run: AdaptiveRun, console: Console, predicted_s: float) -> None:
    from placewright.report.text import seconds

    if run.adaptation is None:
        return
    names = run.adaptation.problem.device_names
    counts = [run.adaptation.plan.placement.tolist().count(d) for d in range(len(names))]
    parts = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    console.note(
        f"step {run.done}: plan {run.timeline.plans}{_phase(run)}: {seconds(predicted_s)} "
        f"predicted; operators: {parts}"
    )


def _phase(run: AdaptiveRun) -> str:
    """What the plan is in force for, if not for good."""
    adaptation = run.adaptation
    if adaptation is not None and adaptation.tryout is not None:
        return " (plans take turns)"
    if adaptation is not None and adaptation.trial is not None:
        return " (on trial)"
    return " (watched)" if adaptation is not None and adaptation.watches_next else ""
