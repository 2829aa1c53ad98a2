"""Plans in turns: the fastest one is found, also while the machine becomes slower."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.adapt.decide import WARM_UP_STEPS
from placewright.adapt.tryout import MEASURED_STEPS, ROUNDS, STEPS_EACH, Tryout
from placewright.operators.plan import OperatorPlan


def some(count: int) -> list[OperatorPlan]:
    """Plans that differ."""
    return [OperatorPlan(np.full(3, k)) for k in range(count)]


def played(tryout: Tryout, step_s: Callable[[int, int], float]) -> list[int]:
    """The plan in force at every step of a whole tryout; `step_s` of (plan, step)."""
    at: list[int] = []
    while True:
        at.append(tryout.current)
        if tryout.took(step_s(tryout.current, len(at))) and tryout.next() is None:
            return at


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_the_fastest_wins_and_nobody_has_more_than_its_steps(seconds: list[float]) -> None:
    """Without noise the plan with the shortest step is the best, whatever the warm-up costs."""
    tryout = Tryout(some(len(seconds)))
    last: list[int] = []

    def step_s(plan: int, step: int) -> float:
        last.append(plan)
        cold = last[-3:].count(plan) < WARM_UP_STEPS + 1
        return seconds[plan] * (5.0 if cold else 1.0)

    at = played(tryout, step_s)
    assert seconds[tryout.best] == min(seconds)
    assert max(at.count(k) for k in range(len(seconds))) <= STEPS_EACH


def test_a_plan_far_behind_has_one_turn() -> None:
    """Twice as slow as the best: no second round for it; with one plan left the tryout ends."""
    at = played(Tryout(some(2)), lambda plan, step: 1.0 + plan)
    assert at == [0] * (len(at) // 2) + [1] * (len(at) // 2)
    assert len(at) == 2 * (WARM_UP_STEPS + MEASURED_STEPS)


def test_a_machine_that_slows_down_favours_no_plan() -> None:
    """Plans 2 % apart while steps become 10 % longer in all: turns in both orders even it out."""
    tryout = Tryout(some(2))
    total = 2 * STEPS_EACH
    played(tryout, lambda plan, step: (1.02 - 0.02 * plan) * (1 + 0.1 * step / total))
    assert tryout.best == 1


def test_going_on_costs_no_migration() -> None:
    """A round begins with the plan that the last one ended with, if it is left."""
    at = played(Tryout(some(3)), lambda plan, step: 1.0)
    moves = int(np.count_nonzero(np.diff(at)))
    assert moves == 2 * ROUNDS
