"""Files that go once around, and how much longer than their links say that takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.samples.measuring import moves
from placewright.samples.measuring.moves import FILES, files_moved, slowed
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from tests.samples.tiny import tiny


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
        problem: SampleProblem, plan: SamplePlan, handles: object, folder: Path
    ) -> np.ndarray:
        turns.append(plan.source.tolist())
        assert plan.target.tolist() == [(i + 1) % n for i in turns[-1]]
        assert set(plan.count.tolist()) == {FILES}
        return np.where(np.isfinite(pair), pair * times, np.nan)

    monkeypatch.setattr(moves, "files_moved", moved)
    found = slowed(tiny([1] * n, send_s=pair), (), tmp_path)
    expected = [1.0 if i == 1 else max(1.0, times[i, (i + 1) % n]) for i in range(n)]
    np.testing.assert_allclose(found, expected)
    assert sorted(i for turn in turns for i in turn) == [i for i in range(n) if i != 1]
    assert all(len({i % 2 for i in turn}) == 1 for turn in turns)


def test_files_really_go_and_nobody_keeps_them(tmp_path: Path) -> None:
    """Four files over one link, whatever the nodes hold and may store; none on the other links."""
    problem = tiny([3, 3], keep=np.array([[3], [0]]), storage=np.array([3.0, 4.0]))
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([4]))
    each_s = files_moved(problem, plan, (), tmp_path)
    assert each_s[0, 1] >= problem.send_s[0, 1]
    assert np.isnan(each_s).tolist() == [[True, False], [True, True]]
    assert problem.held.tolist() == [3, 3]
