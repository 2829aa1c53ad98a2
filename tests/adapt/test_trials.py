"""Plan trials: the fastest plan is found in few steps, also while the machine changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.adapt.trials import INDIFFERENT, ROUNDS, WARM_UP_STEPS, SuccessiveElimination

MOVE_S = 0.5
LEAST_STEPS = SuccessiveElimination.least_steps
MOST_STEPS = int(SuccessiveElimination.most_steps)
TURN_S = SuccessiveElimination.turn_s


def run_trials(
    trials: SuccessiveElimination, step_s: Callable[[int, int], float], remaining: float = math.inf
) -> list[int]:
    """The plan in force at every step of whole trials; `step_s` of (plan, step)."""
    at: list[int] = []
    while True:
        was = trials.current
        at.append(was)
        if not trials.took(step_s(was, len(at))):
            continue
        turn = trials.next(remaining - len(at))
        if turn is None:
            return at
        if turn != was:
            trials.moved(MOVE_S)


@dataclass(frozen=True)
class Machine:
    """Steps that scatter: normal noise in logarithms, correlated from step to step, and bursts."""

    scatter: float
    correlation: float = 0.0
    bursts: float = 0.05

    def noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Factors of that many steps."""
        fresh = rng.normal(0.0, self.scatter * math.sqrt(1 - self.correlation**2), steps)
        for k in range(1, steps):
            fresh[k] += self.correlation * fresh[k - 1]
        return np.exp(fresh) * np.where(rng.random(steps) < self.bursts, 1.4, 1.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_without_noise_the_fastest_wins(seconds: list[float]) -> None:
    """Nothing is more than the indifference above the best, whatever the warm-up costs."""
    trials, last = SuccessiveElimination(len(seconds)), []

    def step_s(plan: int, step: int) -> float:
        last.append(plan)
        cold = last[-3:].count(plan) < WARM_UP_STEPS + 1
        return seconds[plan] * (5.0 if cold else 1.0)

    run_trials(trials, step_s)
    assert seconds[trials.best] <= (1 + INDIFFERENT) * min(seconds)


@pytest.mark.parametrize(
    ("step_s", "machine", "gaps", "wrong", "price"),
    [
        (0.1, Machine(0.10), (0.0, 0.05), 0.06, 40),
        (0.1, Machine(0.16), (0.0, 0.1, 0.1, 0.15), 0.06, 80),
        (0.1, Machine(0.10, 0.6), (0.0, 0.05), 0.15, 45),
        (0.7, Machine(0.05, 0.0, 0.0), (0.0, 0.04, 0.04, 0.04), 0.1, 30),
        (0.7, Machine(0.10), (0.0, 0.1, 0.1, 0.15), 0.08, 35),
    ],
)
def test_it_ends_within_three_percent_of_the_best(
    step_s: float, machine: Machine, gaps: tuple[float, ...], wrong: float, price: float
) -> None:
    """Simulated runs: how often the end is more than 3 % above the best; what trying costs in
    steps of the best plan, half a second for every move and a third more for a cold step.
    """
    rng, runs, missed, cost = np.random.default_rng(0), 60, 0, 0.0
    for _ in range(runs):
        seconds = step_s * (1.0 + rng.permutation(gaps))
        trials, noise = SuccessiveElimination(len(gaps)), machine.noise(rng, 2000)
        at = np.asarray(
            run_trials(trials, lambda plan, step, s=seconds, f=noise: s[plan] * f[step])
        )
        moves = np.count_nonzero(np.diff(at)) + (trials.best != at[-1])
        cold = WARM_UP_STEPS * step_s / 3 * moves
        cost += (np.sum(seconds[at] - step_s) + MOVE_S * moves + cold) / step_s / runs
        missed += seconds[trials.best] > 1.03 * step_s
    assert missed <= wrong * runs
    assert cost <= price


def test_a_plan_far_behind_has_one_turn() -> None:
    """Twice as slow as the best: no second round for it; with one plan left the trials end."""
    at = run_trials(SuccessiveElimination(2), lambda plan, step: 1.0 + plan)
    assert at == [0] * (len(at) // 2) + [1] * (len(at) // 2)
    assert len(at) == 2 * (WARM_UP_STEPS + LEAST_STEPS)


def test_short_steps_have_longer_turns() -> None:
    """Turns last `TURN_S`, within the least and the most steps."""
    for step_s, steps in ((1e-3, MOST_STEPS), (0.25, round(TURN_S / 0.25)), (3.0, LEAST_STEPS)):
        at = run_trials(SuccessiveElimination(2), lambda plan, step, s=step_s: s * (1 + plan))
        assert at.count(0) == WARM_UP_STEPS + steps


def test_a_tie_stays_with_the_plan_in_force() -> None:
    """Equal plans: no move after the last turn, and none at all to one that is ahead by a hair."""
    trials = SuccessiveElimination(3)
    at = run_trials(trials, lambda plan, step: 1.0 - 0.002 * plan)
    assert trials.best == at[-1]
    assert len(at) <= 3 * (ROUNDS * LEAST_STEPS + WARM_UP_STEPS)


def test_a_short_run_stops_trying() -> None:
    """What another round may gain shrinks with the steps that are left."""
    noise = Machine(0.1).noise(np.random.default_rng(3), 2000)
    lengths = [
        len(run_trials(SuccessiveElimination(3), lambda p, at: (1 + 0.03 * p) * noise[at], steps))
        for steps in (30, 300, math.inf)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] == 3 * (WARM_UP_STEPS + LEAST_STEPS)


def test_a_machine_that_slows_down_favours_no_plan() -> None:
    """Plans 4 % apart while steps become half as long again: both orders even it out."""
    trials = SuccessiveElimination(2)
    run_trials(trials, lambda plan, step: (1.04 - 0.04 * plan) * (1 + step / 200))
    assert trials.best == 1


def test_going_on_costs_no_migration() -> None:
    """A round begins with the plan that the last one ended with, if it is left."""
    noise = Machine(0.05).noise(np.random.default_rng(5), 2000)
    at = run_trials(SuccessiveElimination(3), lambda plan, step: noise[step])
    rounds = math.ceil(len(at) / (3 * LEAST_STEPS + 2 * WARM_UP_STEPS))
    assert np.count_nonzero(np.diff(at)) <= 2 * rounds


def test_a_disturbance_ends_it_and_does_not_count() -> None:
    """Steps that take half as long again: the best so far, at what it took before."""
    trials = SuccessiveElimination(2)
    noise = Machine(0.05, bursts=0.0).noise(np.random.default_rng(2), 2000)
    begins = 2 * WARM_UP_STEPS + 2 * LEAST_STEPS + 1
    at = run_trials(
        trials, lambda p, step: (1 + 0.01 * p) * noise[step] * (1 + (step >= begins) / 2)
    )
    assert trials.disturbed
    assert len(at) == begins + LEAST_STEPS - 1
    assert trials.times.median_s(trials.best) == pytest.approx(1.0, rel=0.1)
    assert "changed" in trials.summary()
