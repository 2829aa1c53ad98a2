"""Speeds fitted to steps and files of known speeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import WorkerError
from placewright.samples.judge import judge
from placewright.samples.nodes import NodeWorkers
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import SampleProblem
from placewright.samples.run import (
    FILES,
    REPEATS,
    SCALES,
    WARM_UP,
    Speeds,
    files_moved,
    measure,
    slowed,
    take_steps,
)
from placewright.samples.training.node_training import NodeStepTimes, Recipe
from tests.samples.jobs import digits_job
from tests.samples.tiny import tiny

PROBLEM = tiny([60, 20, 40], seconds_per_sample=np.array([0.4, 0.1, 0.2]))
EACH_S = np.array([0.03, 0.007, 0.02])
STEP_S = np.array([0.01, 0.05, 0.0])


def made_up(sizes: np.ndarray) -> list[NodeStepTimes]:
    """Steps of `EACH_S` and `STEP_S`; all wait for the slowest, and an exchange takes 0.2 s."""
    own_s = STEP_S[:, None] + EACH_S[:, None] * sizes
    own_s[:, : WARM_UP * len(SCALES)] *= 7  # the first steps are cold
    wait_s = own_s.max(axis=0) - own_s + 0.2
    return [NodeStepTimes(a, b) for a, b in zip(own_s, wait_s, strict=True)]


def test_lines_through_steps_are_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes whose shares are balanced by the file; the exchange is what is left."""
    requested = []

    def steps(
        problem: object, recipe: Recipe, job: object, workers: object, sizes: np.ndarray
    ) -> list[NodeStepTimes]:
        requested.append(sizes)
        return made_up(sizes)

    monkeypatch.setattr("placewright.samples.run.take_steps", steps)
    monkeypatch.setattr("placewright.samples.run.slowed", lambda *_: np.array([1.0, 2.0, 1.5]))
    found = measure(PROBLEM, Recipe(batch=70), digits_job(), NodeWorkers())
    np.testing.assert_allclose(found.seconds_per_sample, EACH_S, rtol=1e-9)
    np.testing.assert_allclose(found.step_s, STEP_S, atol=1e-9)
    assert found.exchange_s == pytest.approx(0.2)
    (sizes,) = requested
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


@pytest.mark.parametrize("n", [2, 3, 4])
def test_each_node_is_held_against_its_own_link(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sends twice in a turn; a node without a link to the next counts as fast as it."""
    rng = np.random.default_rng(n)
    pair = rng.uniform(0.01, 0.1, (n, n))
    np.fill_diagonal(pair, np.inf)
    pair[1, 2 % n] = np.inf
    times = rng.uniform(0.5, 3.0, (n, n))
    turns: list[list[int]] = []

    def moved(
        problem: SampleProblem, plan: SamplePlan, job: object, workers: object, folder: Path
    ) -> np.ndarray:
        turns.append(plan.source.tolist())
        assert plan.target.tolist() == [(i + 1) % n for i in turns[-1]]
        assert set(plan.count.tolist()) == {FILES}
        return np.where(np.isfinite(pair), pair * times, np.nan)

    monkeypatch.setattr("placewright.samples.run.files_moved", moved)
    found = slowed(tiny([1] * n, send_s=pair), digits_job(), None, tmp_path)
    expected = [1.0 if i == 1 else max(1.0, times[i, (i + 1) % n]) for i in range(n)]
    np.testing.assert_allclose(found, expected)
    assert sorted(i for turn in turns for i in turn) == [i for i in range(n) if i != 1]
    assert all(len({i % 2 for i in turn}) == 1 for turn in turns)


def test_link_probes_send_files_that_no_node_keeps(tmp_path: Path) -> None:
    """Four files over one link, whatever the nodes hold and may store; none on the other links."""
    problem = tiny([3, 3], keep=np.array([[3], [0]]), storage=np.array([3.0, 4.0]))
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([4]))
    each_s = files_moved(problem, plan, digits_job(), None, tmp_path)
    assert each_s[0, 1] >= problem.send_s[0, 1]
    assert np.isnan(each_s).tolist() == [[True, False], [True, True]]
    assert problem.held.tolist() == [3, 3]


def test_every_step_of_every_node_is_timed_in_two_parts() -> None:
    """As many as were asked for, of the sizes that were asked for, own work and exchange."""
    trials = take_steps(
        tiny([5, 5]), Recipe(batch=4), digits_job(), None, np.array([[2, 1, 3], [1, 2, 1]])
    )
    assert len(trials) == 2
    for trial in trials:
        assert trial.compute_s.shape == trial.exchange_s.shape == (3,)
        assert (trial.compute_s > 0).all()
        assert (trial.exchange_s > 0).all()


def test_nodes_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ones, and how long they were waited for."""
    monkeypatch.setattr("placewright.samples.run.LONGEST_S", 0.001)
    with pytest.raises(WorkerError, match=r"nodes 'n0', 'n1': no answer in time while timing"):
        take_steps(tiny([5, 5]), Recipe(batch=4), digits_job(), None, np.array([[2], [1]]))
