"""First come, first served queues: equal to the slow reference, to the tick."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.explain import explain
from placewright.operators.files import read_problem, write_problem
from placewright.operators.instances import random_problem, tiny
from placewright.operators.judge import Judge, evaluate_many, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Queues
from placewright.planning.solving import solve
from tests.operators.simulation.queue_reference import placements, simulate_queues


def queued(seed: int, *, ticks: bool, n: int = 14) -> OperatorProblem:
    """A random problem with many ties; in ticks, of costs that float64 seconds would blur."""
    problem = random_problem(seed, most_operators=n, most_devices=4)
    free = problem.replace(
        memory_bytes=np.full(problem.m, np.inf),
        links="free",
        queues="first-come",
        compute_s=np.where(np.isfinite(problem.compute_s), problem.compute_s, 1.0),
        pinned=np.full(problem.n, -1),
        colocation=np.arange(problem.n),
    )
    if not ticks:
        return free
    size = 1e10
    grid = np.rint(free.compute_s * 3)
    return free.replace(
        compute_s=grid / size,
        tensor_bytes=np.rint(free.tensor_bytes * 3),
        latency_s=np.zeros((free.m, free.m)),
        seconds_per_byte=(1.0 - np.eye(free.m)) / size,
        ticks_per_s=size,
    )


@pytest.mark.parametrize("ticks", [True, False])
def test_the_judge_equals_the_reference(ticks: bool) -> None:
    """Every start, every end and every value, one by one and in batches."""
    for seed in range(60):
        problem = queued(seed, ticks=ticks)
        one = Judge(problem)
        rows = placements(problem, np.random.default_rng(seed), 4)
        values, over = evaluate_many(problem, rows)
        assert not over.any()
        for place, value in zip(rows, values, strict=True):
            expected, found = simulate_queues(problem, place), one(OperatorPlan(place))
            second = problem.ticks_per_s or 1.0
            assert (found.op_start_s * second).tolist() == pytest.approx(expected.start, rel=1e-15)
            assert found.op_end_s.tolist() == [x / second for x in expected.end]
            assert found.value == value == expected.value / second


def test_a_tie_at_the_end_of_a_task_goes_to_the_head_of_the_queue() -> None:
    """Operators that wait are served in the order in which they became ready, not by rank.

    0 and 1 occupy the device until 3. 2 (short tail) becomes ready at 1, 3 (long tail) at 2: by
    rank 3 would go first at time 3.
    """
    problem = tiny(
        [[3.0, 3.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [5.0, 5.0], [2.0, 2.0]],
        [(1, 0.0, [2]), (5, 0.0, [3]), (3, 0.0, [4])],
        seconds_per_byte=0.0,
        latency_s=0.0,
        links="free",
    )
    place = [0, 1, 0, 0, 1, 1]
    ranked = judge(problem, OperatorPlan(place))
    first = judge(problem.replace(queues="first-come"), OperatorPlan(place))
    assert first.op_start_s.tolist() == [0.0, 0.0, 3.0, 4.0, 5.0, 1.0]
    assert ranked.op_start_s[3] == 3.0
    assert first.value == 10.0 > ranked.value


def test_an_order_changes_nothing() -> None:
    """The queues alone order operators."""
    problem = queued(3, ticks=True)
    place = [i % problem.m for i in range(problem.n)]
    order = problem.topology.order[::-1]
    plain, ordered = judge(problem, OperatorPlan(place)), judge(problem, OperatorPlan(place, order))
    assert plain.op_start_s.tolist() == ordered.op_start_s.tolist()


def test_values_lie_at_or_above_the_bounds() -> None:
    """Every run of the queues is a schedule of the priority judge: its bounds carry over."""
    for seed in range(12):
        problem = queued(seed, ticks=seed % 2 == 0)
        result = solve(problem, time_limit_s=0.1)
        assert result.lower_bound <= result.value * (1 + 1e-12)
        single = min(c.value for c in result.candidates if c.planner.startswith("only:"))
        assert result.value <= single


def test_a_dependency_is_sent_to_every_reader() -> None:
    """Two readers on one device get a transfer each, at the same time."""
    problem = tiny([[1.0, 1.0]] * 3, [(0, 2.0, [1, 2])], links="free", queues="first-come")
    moves = judge(problem, OperatorPlan([0, 1, 1])).transfers
    assert moves.tensor.tolist() == [0, 0]
    assert moves.start_s.tolist() == [1.0, 1.0]
    assert moves.end_s[0] == moves.end_s[1]


def test_the_queues_are_kept_in_files(tmp_path: Path) -> None:
    """Queues and ticks are read back, and change the hash."""
    problem = queued(1, ticks=True)
    again = read_problem(write_problem(problem, tmp_path / "p.json"))
    assert again.queues is Queues.FIRST_COME
    assert again.ticks_per_s == 1e10
    assert again.hash() == problem.hash() != problem.replace(queues="priority").hash()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"links": "contended"}, "links that are contended"),
        ({"overlap": "serial"}, "overlap serial"),
        ({"objective": "throughput"}, "the objective throughput"),
        ({"memory_bytes": [4.0, np.inf]}, "memory limit of 'dev0'"),
        ({"ticks_per_s": -1.0}, "ticks_per_s"),
    ],
)
def test_what_the_queues_do_not_know_is_refused(change: dict[str, object], words: str) -> None:
    """Each option by name."""
    problem = tiny([[1.0, 2.0]] * 3, links="free", queues="first-come")
    with pytest.raises(InputError, match=words):
        problem.replace(**change)


def test_missing_links_are_refused_and_plans_explained() -> None:
    """An unlinked pair is an error by name, infinite in a batch; explain moves operators."""
    apart = np.array([[0.0, np.inf], [np.inf, 0.0]])
    problem = tiny([[1.0, 2.0]] * 2, [(0, 1.0, [1])], links="free", queues="first-come")
    unlinked = problem.replace(seconds_per_byte=apart, latency_s=apart, channel=np.full((2, 2), -1))
    with pytest.raises(InfeasibleError, match="no link from 'dev0' to 'dev1'"):
        judge(unlinked, OperatorPlan([0, 1]))
    assert evaluate_many(unlinked, [[0, 1], [0, 0]])[0].tolist() == [np.inf, 2.0]
    found = explain(problem, OperatorPlan([1, 1]), "op0")
    assert min(a.value_s for a in found.alternatives) == 4.0  # type: ignore[union-attr]
