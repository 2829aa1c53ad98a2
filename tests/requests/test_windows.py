"""Exact windows against an enumeration of all schedules, and as a bound."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from placewright.planning.contract import Context
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import judge
from placewright.requests.planners import planners
from placewright.requests.problem import RequestProblem
from placewright.requests.stream import stream_of
from placewright.requests.windows import windows


def best(problem: RequestProblem) -> float:
    """The sum of accuracies of the best schedule: every batch on every server in every order."""
    p, s, n = problem, problem.service, len(problem.stream)
    arrival_s, due_s = p.stream.arrival_s, p.stream.due_s

    def rest(left: frozenset[int], free_s: tuple[float, ...]) -> float:
        value = 0.0
        for size in range(1, min(len(left), s.max_batch) + 1):
            for batch in combinations(sorted(left), size):
                if len({int(p.stream.family[i]) for i in batch}) > 1:
                    continue
                for k in range(s.servers):
                    start_s = max(free_s[k], *(arrival_s[i] for i in batch), 0.0)
                    for v in np.flatnonzero(s.family == p.stream.family[batch[0]]):
                        end_s = start_s + s.latency_s[k, v, size]
                        kept = [
                            i
                            for i in batch
                            if end_s <= due_s[i] + 1e-9
                            and s.accuracy[v] >= p.stream.min_accuracy[i]
                        ]
                        if not kept:
                            continue
                        after = (*free_s[:k], end_s, *free_s[k + 1 :])
                        later = rest(left - frozenset(batch), after)
                        value = max(value, len(kept) * float(s.accuracy[v]) + later)
        return value

    return rest(frozenset(range(n)), (0.0,) * s.servers)


@pytest.mark.parametrize("seed", range(6))
def test_one_window_is_the_optimum(seed: int) -> None:
    """Four requests in a tenth of a second, times in whole milliseconds."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.integers(0, 60, 4)) / 1000
    deadline_s = rng.integers(15, 130, 4) / 1000
    floor = rng.choice([0.0, 0.8], 4)
    stream = stream_of(arrival_s, deadline_s, min_accuracy=floor)
    problem = RequestProblem(two_servers(), stream, 0.1)
    assert windows(problem) == pytest.approx(best(problem) / 4, abs=1e-5)


def test_a_batch_that_is_faster_than_a_smaller_one() -> None:
    """Three late requests fill the batch that keeps the deadline of the fourth."""
    service = two_servers()
    latency_s = service.latency_s.copy()
    latency_s[:, :, 4] = 0.002
    stream = stream_of([0.0, 0.0, 0.0, 0.01], [0.001, 0.001, 0.001, 0.005])
    problem = RequestProblem(service.replace(latency_s=latency_s), stream, 0.1)
    assert windows(problem) == pytest.approx(0.9 / 4)


def test_no_policy_passes_the_windows() -> None:
    """Random problems, all planners, noise and loading included."""
    for seed in range(3):
        problem = random_problem(seed, 16)
        top = windows(problem)
        for planner in planners(problem).values():
            if planner.unsupported_reason(problem) is None:
                assert judge(problem, planner(problem, Context(seed))).value <= top + 1e-6


def test_accuracies_are_not_rounded_down() -> None:
    """One request that is answered: the bound is its accuracy, which has more digits than units."""
    service = two_servers()
    service = service.replace(accuracy=service.accuracy - 0.6e-6)
    problem = RequestProblem(service, stream_of([0.0], [10.0]), 1.0)
    assert windows(problem) >= service.accuracy.max()
