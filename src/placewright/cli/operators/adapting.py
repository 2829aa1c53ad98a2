"""placewright operators run --adapt: steps that go on while devices change and workers die."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.face import Face

if TYPE_CHECKING:
    from placewright.adapt.run import AdaptiveRun
    from placewright.adapt.timeline import Timeline
    from placewright.cli.sources import Loaded
    from placewright.execute.engines.engine import Engine
    from placewright.result import Result


def run_adaptively(
    face: Face,
    loaded: Loaded,
    result: Result,
    *,
    steps: int,
    seed: int,
    engine: Engine,
    snapshots: Path | None,
) -> Timeline:
    """All steps, events told as they happen; Ctrl-C ends the run after the step it is in."""
    with tempfile.TemporaryDirectory(prefix="placewright-snapshots-") as passing:
        run = _run(loaded, result, snapshots or Path(passing), steps, seed, engine)
        with run, face.meter(f"running {loaded.problem.name}") as meter:
            try:
                _steps(run, face, meter, steps, result.value)
            except KeyboardInterrupt:
                face.note(f"interrupted after step {run.done}")
                if snapshots is not None:
                    run.finish()
        return run.timeline


def _run(
    loaded: Loaded,
    result: Result,
    folder: Path,
    steps: int,
    seed: int,
    engine: Engine,
) -> AdaptiveRun:
    from functools import partial

    from placewright.adapt.decide import Policy
    from placewright.adapt.rivals import rivals
    from placewright.adapt.run import AdaptiveRun, Job
    from placewright.execute.session import Session

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
    others = rivals(loaded.problem, result.plan, steps)
    return AdaptiveRun(
        job, folder, plan=result.plan, rivals=others, policy=policy, steps=steps, seed=seed
    )


def _reach(engine: Engine) -> dict[str, Any]:
    """On a testbed, how to find out who can still talk to whom."""
    from placewright.adapt.reach import all_talk
    from placewright.execute.engines.local import Local

    seats = engine.seats if isinstance(engine, Local) else None
    if seats is None:
        return {}

    def reachable(names: Sequence[str]) -> frozenset[str]:
        return all_talk([seats[name] for name in names])

    return {"reachable": reachable}


def _steps(run: AdaptiveRun, face: Face, meter: Any, steps: int, predicted_s: float) -> None:
    from placewright.report.history import QUIET, told

    seen = 0
    while run.done < steps:
        run.step()
        for event in run.timeline.events[seen:]:
            if event.kind not in QUIET:
                face.note(f"step {event.step}: {event.kind}: {told(event)}")
        seen = len(run.timeline.events)
        meter(
            what=f"step {run.done} of {steps}, plan {run.timeline.plans}",
            value=run.timeline.typical_s(5),
            lower_bound=predicted_s,
            elapsed_s=sum(run.timeline.step_s),
        )
