"""From timed steps to speeds: made-up steps of known speeds come out as these."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.samples.judge import judge
from placewright.samples.measuring import speeds
from placewright.samples.measuring.speeds import REPEATS, SCALES, WARM_UP, Speeds, measure
from placewright.samples.measuring.steps import Trial
from placewright.samples.plan import nothing
from placewright.samples.training.recipe import Recipe
from tests.samples.tiny import tiny

PROBLEM = tiny([60, 20, 40], seconds_per_sample=np.array([0.4, 0.1, 0.2]))
EACH_S = np.array([0.03, 0.007, 0.02])
STEP_S = np.array([0.01, 0.05, 0.0])


def made_up(problem: object, recipe: Recipe, handles: object, sizes: np.ndarray) -> list[Trial]:
    """Steps of `EACH_S` and `STEP_S`; all wait for the slowest, and an exchange takes 0.2 s."""
    own_s = STEP_S[:, None] + EACH_S[:, None] * sizes
    own_s[:, : WARM_UP * len(SCALES)] *= 7  # the first steps are cold
    wait_s = own_s.max(axis=0) - own_s + 0.2
    return [Trial(a, b) for a, b in zip(own_s, wait_s, strict=True)]


def test_lines_through_steps_are_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes whose shares are balanced by the file; the exchange is what is left."""
    asked = []

    def steps(problem: object, recipe: Recipe, handles: object, sizes: np.ndarray) -> list[Trial]:
        asked.append(sizes)
        return made_up(problem, recipe, handles, sizes)

    monkeypatch.setattr(speeds, "take_steps", steps)
    monkeypatch.setattr(speeds, "slowed", lambda *_: np.array([1.0, 2.0, 1.5]))
    found = measure(PROBLEM, Recipe(batch=70), ())
    np.testing.assert_allclose(found.seconds_per_sample, EACH_S, rtol=1e-9)
    np.testing.assert_allclose(found.step_s, STEP_S, atol=1e-9)
    assert found.exchange_s == pytest.approx(0.2)
    (sizes,) = asked
    assert sizes.shape == (3, len(SCALES) * (WARM_UP + REPEATS))
    assert sizes[:, :3].tolist() == [[5, 10, 30], [20, 40, 120], [10, 20, 60]]


def test_the_judge_counts_steps_as_they_were_measured() -> None:
    """Twelve steps of ten samples: every node pays its own start of a step, all the exchange."""
    found = Speeds(EACH_S, STEP_S, 0.2, np.array([1.0, 2.0, 1.0]))
    measured = found.of(PROBLEM, 10)
    own_s = EACH_S * [60, 20, 40] + 12 * STEP_S
    assert judge(measured, nothing()).value == pytest.approx(own_s.max() + 12 * 0.2)
    assert measured.send_s[1, 0] == 2 * PROBLEM.send_s[1, 0]
    assert measured.receive_s[0, 1] == PROBLEM.receive_s[0, 1]
