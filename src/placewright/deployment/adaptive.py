"""Steps that go on while devices change and workers die; every event becomes a note."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.adapt.membership import reachable_on
from placewright.adapt.training_loop import note_events, note_start
from placewright.errors import InputError
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun, challengers
from placewright.planning.contract import STEPS
from placewright.report.text import seconds
from placewright.runtime.scratch import Scratch

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.workers import ModelWorkers
    from placewright.deployment.workload import Workload
    from placewright.planning.contract import Meter, Monitor


def adaptive_run(
    placed: PlacedModel,
    workers: ModelWorkers,
    folder: Path,
    *,
    steps: float,
    try_plans: bool = True,
    **settings: Any,
) -> AdaptiveRun:
    """A run that adapts, ready for its first step; workers that are up are its own from then on.

    Raises `InputError`: the folder holds another model's snapshots, or another run is using it; or
    a number is none that a run can have.

    Parameters
    ----------
    folder
        Of snapshots.
    steps
        How many are planned in all: plans are tried and migrated to where that pays.
    try_plans
        Try others than the plan in force, and those of quick planners, in the first steps.
    settings
        Further ones of `AdaptiveRun`.
    """
    least = {"snapshot_every": 1, "rejoin_every": 1, "patience_s": 0}
    for name, value in {"steps": steps, **settings}.items():
        # Others, policies for one, are no numbers.
        if name == "steps" or name in least:
            _refuse_below(name, value, least.get(name, 1))
    load, known = placed.workload, placed.interference
    job = AdaptiveJob(
        load.graph,
        load.cluster,
        known.alone,
        load.values,
        open=workers.take,
        reachable=reachable_on(workers.engine),
    )
    plan, *at_hand = placed.plans
    others = challengers(known, plan, steps, at_hand=at_hand) if try_plans else ()
    return AdaptiveRun(
        job, folder, plan=plan, challengers=others, interference=known, steps=steps, **settings
    )


def _refuse_below(name: str, value: Any, least: float) -> None:
    """Raise for what is no number, or too small a one."""
    if not isinstance(value, Real) or not float(value) >= least:  # a NaN is not
        raise InputError(
            f"{name} must be a number of at least {least}",
            where=f"trainer({name}=...)",
            by=f"got {value!r}",
            hint=f"leave {name} out for its default",
        )


def run_steps(run: AdaptiveRun, steps: int, monitor: Monitor) -> bool:
    """Do steps until there are `steps` in all; whether no Ctrl-C has ended them before.

    Every event is noted once, and every plan when it comes into force.
    """
    with monitor.meter(f"running {run.job.problem.name}", STEPS) as meter:
        note_start(run, monitor)
        try:
            _steps(run, steps, meter, monitor)
        except KeyboardInterrupt:
            monitor.note(f"interrupted after step {run.done}")
            return False
    return True


def _steps(run: AdaptiveRun, steps: int, meter: Meter, monitor: Monitor) -> None:
    meter.step("starting workers")
    seen = plans = 0
    predicted_s = float("nan")
    while run.done < steps:
        run.step()
        news = note_events(run, seen, monitor)
        seen = len(run.timeline.events)
        if plans != run.timeline.plans or news:
            predicted_s = _predicted_s(run)
        if plans != run.timeline.plans:
            plans = run.timeline.plans
            _note_plan(run, predicted_s, monitor)
        meter(
            what=f"step {run.done} of {steps}, plan {plans}{_phase(run)}",
            value=run.timeline.typical_s(5),
            bound=predicted_s,
            elapsed_s=sum(run.timeline.step_s),
        )


def _predicted_s(run: AdaptiveRun) -> float:
    """Predicted step time of the plan in force, with the costs observed so far."""
    return float("nan") if run.adaptation is None else run.adaptation.predicted_s()


def _note_plan(run: AdaptiveRun, predicted_s: float, monitor: Monitor) -> None:
    """How many operators each device has now."""
    if run.adaptation is None:
        return
    names = run.adaptation.problem.device_names
    counts = [run.adaptation.plan.placement.tolist().count(d) for d in range(len(names))]
    parts = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    monitor.note(
        f"step {run.done}: plan {run.timeline.plans}{_phase(run)}: {seconds(predicted_s)} "
        f"predicted; operators: {parts}"
    )


def _phase(run: AdaptiveRun) -> str:
    """Why the plan is in force, if it is not yet for good."""
    adaptation = run.adaptation
    if adaptation is not None and adaptation.trials is not None:
        return " (plans take turns)"
    if adaptation is not None and adaptation.pending is not None:
        return " (on trial)"
    return " (watched)" if adaptation is not None and adaptation.watches_next else ""


def check_steps(run: AdaptiveRun, workload: Workload, monitor: Monitor) -> None:
    """Compare all steps of a run with eager ones, unless it was broken off in the middle of one.

    The answer is in the run's ``timeline.check``; the run is closed.
    """
    from placewright.operators.adaptive.run import check_run

    if run.session is None or not run.done:
        monitor.note("not compared with eager PyTorch: the run was broken off")
        return
    with monitor.meter(f"repeating {run.done} steps in eager PyTorch"):
        run.timeline.check = check_run(run, workload.source)


def run_adaptively(
    placed: PlacedModel,
    workers: ModelWorkers,
    *,
    steps: int,
    seed: int,
    snapshots: Path | None,
    check: bool,
    monitor: Monitor,
) -> Timeline:
    """Do `steps` steps that adapt, from the first to the last; see `adaptive_run`.

    Ctrl-C ends the run after the step it is in, with a last snapshot where they are kept, and
    without the check; a second one ends it at once, with the snapshots that there are.

    `snapshots`: where they are kept, and continued from; ``None``: in a temporary folder.
    `check`: repeat all steps in eager PyTorch and compare.
    """
    with Scratch() as passing:
        folder = snapshots or Path(passing)
        with adaptive_run(placed, workers, folder, steps=steps, seed=seed) as run:
            uninterrupted = run_steps(run, steps, monitor)
            if snapshots is not None and run.session is not None:
                run.finish()
            if check and uninterrupted:
                check_steps(run, placed.workload, monitor)
            elif check:  # it takes as long as the steps, and torchrun kills after 30 s
                monitor.note("not compared with eager PyTorch: the run was interrupted")
        return run.timeline
