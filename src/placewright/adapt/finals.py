"""A few plans tried for real before a run that keeps one of them: measured, not said.

A run that adapts tries plans while it trains (`placewright.adapt.tryout`), which costs only what
they are slower. Steps before a run train nothing: plans are few here, and rounds end early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from placewright.adapt.decide import WARM_UP_STEPS
from placewright.adapt.interrupts import interrupts_wait
from placewright.adapt.rivals import CLOSE
from placewright.errors import WorkerError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Overlap
from placewright.operators.run import execution_order
from placewright.profiling.calibration import LONGEST_S
from placewright.profiling.interference import InterferenceProfile
from placewright.runtime.session import Session

STEPS, TURN_S = 4, 1.0
"""Of a turn: so many steps at least, and more of them until so much time is spent."""

ROUNDS, SECONDS = 3, 30.0
"""So many rounds at least, and more of them until so much time is spent."""

FAR = 0.1
"""A plan drops out whose turns, two or more, were all this much slower than the best one."""

AHEAD = 0.02
"""What another plan must be ahead by to replace the favourite: what was said of it counts too."""


@dataclass(frozen=True, slots=True)
class Finals:
    """What came of it.

    Attributes
    ----------
    plans
        Those that took part, the favourite first.
    step_s
        Seconds of a step of each: the median of its least turn, since what else a machine does can
        only add; ``inf`` where it had none.
    best
        Index of the one to take: the fastest, or the favourite where that is not sure.
    ended
        What ended the finals early, if anything did.
    """

    plans: tuple[OperatorPlan, ...]
    step_s: tuple[float, ...]
    best: int
    ended: str = ""

    @property
    def plan(self) -> OperatorPlan:
        """The one to take."""
        return self.plans[self.best]

    def __str__(self) -> str:
        shown = ", ".join(f"{seconds:.3f} s" for seconds in self.step_s)
        return f"{shown}: number {self.best + 1} is taken"


def finalists(
    known: InterferenceProfile, plans: Sequence[OperatorPlan]
) -> tuple[OperatorPlan, ...]:
    """The first of `plans`, and others that are not said to be far behind, each placement once.

    The first one only, where its step is said to take more than
    `placewright.profiling.calibration.LONGEST_S`.
    """
    apart: dict[bytes, OperatorPlan] = {}
    for plan in plans:
        apart.setdefault(plan.placement.tobytes(), plan)
    values = [_said_s(known, plan) for plan in apart.values()]
    favourite, *others = apart.values()
    if values[0] > LONGEST_S:
        return (favourite,)
    limit = (1.0 + CLOSE) * min(values)
    return favourite, *[o for o, value in zip(others, values[1:], strict=True) if value <= limit]


def _said_s(known: InterferenceProfile, plan: OperatorPlan) -> float:
    """What the judge says, ``inf`` of a plan that does not fit."""
    judgement = judge(known.of(plan), plan)
    return judgement.value if judgement.feasible else float("inf")


def finals(
    session: Session,
    known: InterferenceProfile,
    plans: Sequence[OperatorPlan],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Finals:
    """Carry plans out in turns, as many rounds as it takes to tell, within some time.

    After Ctrl-C, and where a worker dies, what was measured until then counts; the plan that it
    died of is not taken.

    Parameters
    ----------
    session
        Workers for the devices of the problem, in their order; what they had loaded is replaced.
    plans
        The favourite first; `finalists` says which of them take part.
    progress
        Hears which plan has its turn.
    """
    contest, ended, fatal = _Contest(session, known, finalists(known, plans), progress), "", -1
    if len(contest.plans) > 1:
        try:
            contest.hold()
        except KeyboardInterrupt:
            ended = "interrupted"
        except WorkerError as error:
            ended, fatal = str(error), contest.loaded
    step_s = tuple(contest.least_s)
    return Finals(contest.plans, step_s, _best(step_s, fatal), ended)


def _best(step_s: Sequence[float], fatal: int) -> int:
    """The favourite, unless another one is clearly faster; never the one that is fatal."""
    ahead = min((k for k in range(len(step_s)) if k != fatal), key=step_s.__getitem__)
    if fatal == 0:
        return ahead
    return ahead if step_s[ahead] < (1.0 - AHEAD) * step_s[0] < float("inf") else 0


@dataclass(slots=True)
class _Contest:
    """Plans that take turns."""

    session: Session
    known: InterferenceProfile
    plans: tuple[OperatorPlan, ...]
    progress: Callable[[str], None]
    loaded: int = -1
    least_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.least_s = [float("inf")] * len(self.plans)

    def hold(self) -> None:
        """Every second round backwards, until one is left or time is up."""
        start, left = time.perf_counter(), list(range(len(self.plans)))
        for turn in count():
            if len(left) == 1 or (turn >= ROUNDS and time.perf_counter() - start > SECONDS):
                return
            for k in left if turn % 2 == 0 else reversed(left):
                self.progress(f"plan {k + 1} of {len(self.plans)}, round {turn + 1}")
                self.least_s[k] = min(self.least_s[k], self._turn_s(k))
            if turn > 0:
                limit = (1.0 + FAR) * min(self.least_s)
                left = [k for k in left if self.least_s[k] <= limit]

    def _turn_s(self, k: int) -> float:
        """Median seconds of a step."""
        if k != self.loaded:
            self._load(k)
            for _ in range(WARM_UP_STEPS):
                self._step_s()
        times: list[float] = []
        while len(times) < STEPS or sum(times) < TURN_S:
            times.append(self._step_s())
        return float(np.median(times))

    def _load(self, k: int) -> None:
        plan = self.plans[k]
        order = execution_order(self.known.alone, judge(self.known.of(plan), plan))
        self.loaded = k
        with interrupts_wait():
            serial = self.known.alone.overlap is Overlap.SERIAL
            self.session.load(plan.placement.tolist(), order, serial=serial)

    def _step_s(self) -> float:
        """Seconds of one step, which a Ctrl-C does not break off."""
        with interrupts_wait():
            (record,) = self.session.run(1)
        return record.duration_s
