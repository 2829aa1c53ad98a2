"""A few plans tried for real before a run that keeps one of them: measured, not said.

A run that adapts tries plans while it trains (`placewright.adapt.tryout`), which costs only what
they are slower. Steps before a run train nothing: plans are few here, and rounds end early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewright.adapt.interrupts import interrupts_wait
from placewright.adapt.rivals import CLOSE
from placewright.adapt.tryout import Tryout
from placewright.errors import WorkerError
from placewright.execute.session import Session
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import execution_order
from placewright.profile.calibration import LONGEST_S
from placewright.profile.together import Paces

ROUNDS, SECONDS = 2, 30.0
"""So many rounds at least, and more of them until so much time is spent."""


@dataclass(frozen=True, slots=True)
class Finals:
    """What came of it.

    Attributes
    ----------
    plans
        Those that took part, the favourite first.
    step_s
        Median seconds of a step of each, ``inf`` where it had no turn.
    best
        Index of the fastest; of the favourite where nothing was measured.
    ended
        What ended the finals early, if anything did.
    """

    plans: tuple[OperatorPlan, ...]
    step_s: tuple[float, ...]
    best: int
    ended: str = ""

    @property
    def plan(self) -> OperatorPlan:
        """The fastest."""
        return self.plans[self.best]

    def __str__(self) -> str:
        shown = ", ".join(f"{seconds:.3f} s" for seconds in self.step_s)
        return f"{shown}: number {self.best + 1} is taken"


def finalists(known: Paces, plans: Sequence[OperatorPlan]) -> tuple[OperatorPlan, ...]:
    """The first of `plans`, and others that are not said to be far behind, each placement once."""
    apart: dict[bytes, OperatorPlan] = {}
    for plan in plans:
        apart.setdefault(plan.placement.tobytes(), plan)
    values = [_said_s(known, plan) for plan in apart.values()]
    limit = (1.0 + CLOSE) * min(values)
    favourite, *others = apart.values()
    return favourite, *[o for o, value in zip(others, values[1:], strict=True) if value <= limit]


def _said_s(known: Paces, plan: OperatorPlan) -> float:
    """What the judge says, ``inf`` of a plan that does not fit."""
    judgement = judge(known.of(plan), plan)
    return judgement.value if judgement.feasible else float("inf")


def finals(
    session: Session,
    known: Paces,
    plans: Sequence[OperatorPlan],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Finals:
    """Carry plans out in turns, as many rounds as it takes to tell, within some time.

    After Ctrl-C, and where a worker dies of a plan, what was measured until then counts.

    Parameters
    ----------
    session
        Workers for the devices of the problem, in their order; what they had loaded is replaced.
    plans
        The favourite first. Nothing is carried out where it is the only one that is close, or where
        its step is said to take more than `placewright.profile.calibration.LONGEST_S`.
    progress
        Hears which plan has its turn.
    """
    taking_part = finalists(known, plans)
    tryout, ended = Tryout(taking_part), ""
    if len(taking_part) > 1 and _said_s(known, plans[0]) <= LONGEST_S:
        try:
            _turns(session, known, tryout, progress)
        except KeyboardInterrupt:
            ended = "interrupted"
        except WorkerError as error:
            ended = str(error)
    step_s = tuple(tryout.standings.median_s(k) for k in range(len(taking_part)))
    return Finals(taking_part, step_s, tryout.best if min(step_s) < float("inf") else 0, ended)


def _turns(session: Session, known: Paces, tryout: Tryout, progress: Callable[[str], None]) -> None:
    """Until nothing is left to find out, or time is up."""
    start = time.perf_counter()
    loaded, turn = -1, tryout.current
    while turn is not None:
        progress(f"plan {turn + 1} of {len(tryout.plans)}")
        if turn != loaded:
            _load(session, known, tryout.plans[turn])
            loaded = turn
        while not tryout.took(_step_s(session)):
            pass
        more = tryout.rounds < ROUNDS or time.perf_counter() - start < SECONDS
        turn = tryout.next(float("inf") if more else 0.0)


def _load(session: Session, known: Paces, plan: OperatorPlan) -> None:
    order = execution_order(known.alone, judge(known.of(plan), plan))
    with interrupts_wait():
        session.load(plan.placement.tolist(), order)


def _step_s(session: Session) -> float:
    """Seconds of one step, which a Ctrl-C does not break off."""
    with interrupts_wait():
        (record,) = session.run(1)
    return record.duration_s
