"""Plans tried for real, in turns, in the first steps of a run: the fastest one stays.

Every step trains, whatever plan it is executed by. Turns come in rounds, the second one in the
opposite order, so that a machine that becomes faster or slower meanwhile favours no plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewright.adapt.decide import WARM_UP_STEPS
from placewright.operators.plan import OperatorPlan

MEASURED_STEPS = 4
"""Per plan and turn, after the warm-up."""

ROUNDS = 3

BEHIND = 0.05
"""A plan whose median is so much above the best one's has no further turn."""

STEPS_EACH = ROUNDS * (WARM_UP_STEPS + MEASURED_STEPS)


@dataclass(slots=True)
class Tryout:
    """Says after each step which plan is next.

    Parameters
    ----------
    plans
        The first one is in force when the tryout begins.

    Attributes
    ----------
    current
        Index of the plan in force.
    """

    plans: Sequence[OperatorPlan]
    current: int = 0
    _seconds: list[list[float]] = field(init=False)
    _turns: list[int] = field(init=False)
    _round: int = 1
    _steps: int = 0

    def __post_init__(self) -> None:
        self._seconds = [[] for _ in self.plans]
        self._turns = list(range(1, len(self.plans)))

    def took(self, seconds: float) -> bool:
        """Take in a step of the plan in force; whether its turn is over."""
        self._steps += 1
        if self._steps > WARM_UP_STEPS:
            self._seconds[self.current].append(seconds)
        return self._steps >= WARM_UP_STEPS + MEASURED_STEPS

    def next(self) -> int | None:
        """The plan whose turn it is now; ``None`` when the tryout is over."""
        self._steps = 0
        if not self._turns and self._round < ROUNDS:
            self._round += 1
            left = self._left()
            self._turns = [] if len(left) < 2 else self._order(left)
        if not self._turns:
            return None
        self.current = self._turns.pop(0)
        return self.current

    @property
    def best(self) -> int:
        """Index of the plan with the least median."""
        return int(np.argmin(self.medians()))

    def medians(self) -> list[float]:
        """Seconds per step of every plan, ``inf`` for one that had no turn yet."""
        return [float(np.median(s)) if s else float("inf") for s in self._seconds]

    def _left(self) -> list[int]:
        medians = self.medians()
        limit = min(medians) * (1.0 + BEHIND)
        return [k for k, median in enumerate(medians) if median <= limit]

    def _order(self, left: list[int]) -> list[int]:
        """The plan in force first if it is left: going on with it costs no migration."""
        backwards = left[::-1] if self._round % 2 == 0 else left
        return sorted(backwards, key=lambda k: k != self.current)
