"""Plans tried for real, in turns, in the first steps of a run: the fastest one stays.

Every step trains, whatever plan it is executed by, so that trying costs only the moves and what
a plan is slower than the best one. Turns come in rounds, every second one in the opposite order,
so that a machine that becomes faster or slower meanwhile favours no plan. After a round those
drop out that are behind for sure (successive elimination: Even-Dar, Mannor, Mansour, JMLR 7,
2006; our error bounds are estimated from the steps, not worst cases). Rounds end when one plan is
left, or when what another one may gain over the steps that are left no longer pays for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from placewright.adapt.decide import WARM_UP_STEPS
from placewright.adapt.standings import Standings, likely_gain
from placewright.operators.plan import OperatorPlan

TURN_S = 2.0
"""Measured per turn, at least: short steps need many of them, for they scatter the most."""

LEAST_STEPS, MOST_STEPS = 6, 20
"""Measured per turn, after the warm-up."""

ROUNDS = 16
"""At most."""

INDIFFERENT = 0.02
"""A plan drops out when it is sure that it is not ahead by more than this."""

SURE = 2.0
"""Standard errors."""

ONE_TURN = 0.1
"""What a single turn says of smaller differences is not believed: a second may be busy."""

TIE = 0.01
"""A plan that is ahead by less is not worth a move."""

SHIFT, SHIFT_ERRORS = 0.25, 4.0
"""A plan's turn that is so far off its turns before means that the machine has changed."""


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
    standings
        What is known of each.
    disturbed
        Whether the tryout ended early because the machine changed.
    """

    plans: Sequence[OperatorPlan]
    current: int = 0
    standings: Standings = field(init=False)
    disturbed: bool = False
    _left: list[int] = field(init=False)
    _turns: list[int] = field(init=False)
    _turn: list[float] = field(default_factory=list)
    _cold: int = 0
    _round: int = 1
    _moves_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.standings = Standings(len(self.plans))
        self._left = list(range(len(self.plans)))
        self._turns = self._left[1:]
        self._cold = WARM_UP_STEPS

    def took(self, seconds: float) -> bool:
        """Take in a step of the plan in force; whether its turn is over."""
        if self._cold:
            self._cold -= 1
            return False
        self._turn.append(seconds)
        steps = len(self._turn)
        return steps >= LEAST_STEPS and (sum(self._turn) >= TURN_S or steps >= MOST_STEPS)

    def next(self, remaining_steps: float = math.inf) -> int | None:
        """The plan whose turn it is now; ``None`` when the tryout is over."""
        self.standings.note(self.current, self._turn)
        self._turn = []
        if self._machine_changed():
            self.standings.forget_last(self.current)
            self.disturbed = True
            return None
        if not self._turns and self._another_round(remaining_steps):
            self._round += 1
            self._turns = self._order()
        if not self._turns:
            return None
        following = self._turns.pop(0)
        self._cold = WARM_UP_STEPS if following != self.current else 0
        self.current = following
        return following

    def moved(self, seconds: float) -> None:
        """The move to the plan in force took so long."""
        self._moves_s.append(seconds)

    @property
    def best(self) -> int:
        """Index of the fastest plan; of the one in force where the two are about equal."""
        ahead = self._ahead()
        tried = self.standings.turns(self.current) > 0
        tie = tried and self.standings.behind(self.current, ahead) < TIE
        return self.current if tie else ahead

    def told(self) -> str:
        """What came out, in words."""
        best = self.best
        gain = -math.expm1(self.standings.behind(best, 0))
        if self.disturbed:
            return "the machine changed meanwhile: the fastest plan so far stays"
        verdict = (
            "the first one stays"
            if best == 0
            else f"number {best + 1} is {100 * gain:.1f} % faster"
        )
        return f"{len(self.plans)} plans tried: {verdict}"

    def _ahead(self) -> int:
        tried = [k for k in self._left if self.standings.turns(k)]
        return min(tried, key=self.standings.median_s)

    def _machine_changed(self) -> bool:
        change, error = self.standings.shift(self.current)
        return abs(change) > max(SHIFT, SHIFT_ERRORS * error)

    def _another_round(self, remaining_steps: float) -> bool:
        """Drop those that are behind for sure; whether the others are worth another round."""
        ahead = self._ahead()
        self._left = [k for k in self._left if k == ahead or not self._surely_behind(k, ahead)]
        if len(self._left) < 2 or self._round >= ROUNDS:
            return False
        step_s = self.standings.median_s(ahead)
        return self._gain(ahead) * step_s * remaining_steps > self._price_s(ahead)

    def _surely_behind(self, plan: int, ahead: int) -> bool:
        behind, error = self.standings.behind(plan, ahead), self.standings.error(plan, ahead)
        if self._round == 1 and behind < ONE_TURN:
            return False
        return behind + INDIFFERENT > SURE * error

    def _gain(self, ahead: int) -> float:
        """What the plan that most likely is faster than the one `ahead` promises, relative."""
        others = [k for k in self._left if k != ahead]
        between = self.standings
        return max(likely_gain(between.behind(k, ahead), between.error(k, ahead)) for k in others)

    def _price_s(self, ahead: int) -> float:
        """Seconds that another round costs: moves, and turns of plans that are behind."""
        moves_s = sum(self._moves_s) / max(1, len(self._moves_s)) * len(self._left)
        step_s = self.standings.median_s(ahead)
        steps = WARM_UP_STEPS + min(MOST_STEPS, max(LEAST_STEPS, TURN_S / step_s))
        behind = sum(max(0.0, math.expm1(self.standings.behind(k, ahead))) for k in self._left)
        return moves_s + behind * steps * step_s

    def _order(self) -> list[int]:
        """The plan in force first if it is left: going on with it costs no migration."""
        backwards = self._left[::-1] if self._round % 2 == 0 else self._left
        return sorted(backwards, key=lambda k: k != self.current)
