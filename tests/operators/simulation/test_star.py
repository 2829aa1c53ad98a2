"""Latency of calls through host memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.conformance import random_placement, tiny
from placewright.operators.costs import groups_of
from placewright.operators.explain import critical_operators
from placewright.operators.files import read_proposal
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.judgement import HOST
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import first_calls, star_scores
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from tests.operators.star_cases import star
from tests.operators.star_instances import star_problem


def test_a_call_takes_in_computes_and_brings_out() -> None:
    """One tensor in, two operators, one tensor out, once for two consumers."""
    p = tiny(
        [[9.0, 1.0], [2.0, 9.0], [3.0, 9.0], [9.0, 1.0], [9.0, 5.0]],
        [(0, 4.0, [1, 2]), (1, 7.0, [2]), (2, 1.5, [3, 4])],
    ).replace(communication="star", host_seconds_per_byte=[1.0, 0.0])
    judgement = judge(p, OperatorPlan([1, 0, 0, 1, 1]))
    assert judgement.value == 1 + 4 + 2 + 3 + 1.5 + 5
    assert judgement.op_start_s.tolist() == [0.0, 5.0, 7.0, 11.5, 11.5]
    assert judgement.op_end_s.tolist() == [1.0, 7.0, 10.0, 12.5, 16.5]
    moves = judgement.transfers
    assert list(zip(moves.tensor, moves.source, moves.target, strict=True)) == [
        (0, HOST, 0),
        (2, 0, HOST),
    ]
    assert moves.start_s.tolist() == [1.0, 10.0]
    assert moves.end_s.tolist() == [5.0, 11.5]
    assert critical_operators(judgement).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("calls", [1, 2])
def test_a_call_is_busy_from_its_first_transfer_to_its_last(calls: int) -> None:
    """Transfers and operators of an accelerator never overlap, and add up to the last bit's eps."""
    for seed in range(100):
        p = star_problem(seed, operators=9, accelerators=3, calls=calls)
        plan = OperatorPlan(random_placement(p, np.random.default_rng(seed)))
        try:
            judgement = judge(p, plan)
        except InfeasibleError:
            continue
        trace, moves = judgement.trace(), judgement.transfers
        device = np.where(moves.source == HOST, moves.target, moves.source)
        took = p.tensor_bytes[moves.tensor] * p.host_seconds_per_byte[device]
        assert moves.end_s - moves.start_s == pytest.approx(took, abs=1e-12)
        assert trace.duration_s == pytest.approx(judgement.value)
        for d in np.flatnonzero(p.host_seconds_per_byte > 0).tolist():
            mine = np.flatnonzero(trace.track % p.m == d)
            by = mine[np.lexsort((trace.end_s[mine], trace.start_s[mine]))]
            assert (trace.start_s[by][1:] >= trace.end_s[by][:-1] - 1e-9).all()
        for k, j in zip(
            np.repeat(np.arange(p.t), np.diff(p.consumer_offsets)), p.consumers, strict=True
        ):
            i, d = p.tensor_producer[k], plan.placement[j]
            if d != plan.placement[i] and p.host_seconds_per_byte[d] > 0:
                arrived = moves.end_s[(moves.tensor == k) & (moves.target == d)]
                assert (arrived <= judgement.op_start_s[j] + 1e-9).any()


def test_memory_counts_over_all_calls() -> None:
    """Two calls of one accelerator share its memory."""
    p = tiny([[1.0, 9.0]] * 3, [(0, 1.0, [1]), (1, 1.0, [2])], resident_bytes=[5.0] * 3).replace(
        communication="star",
        host_seconds_per_byte=[1.0, 0.0],
        memory_bytes=[9.0, np.inf],
        calls=2,
    )
    judgement = judge(p, OperatorPlan([0, 1, 0]))
    assert not judgement.feasible
    assert judgement.violation_bytes == 1


def test_a_path_that_comes_back_comes_back_to_a_later_call() -> None:
    """Where the plan does not say, calls follow the graph; with one call it cannot be."""
    p = tiny([[1.0, 9.0]] * 3, [(0, 1.0, [1]), (1, 1.0, [2])]).replace(
        communication="star", host_seconds_per_byte=[1.0, 0.0], calls=2
    )
    assert first_calls(p, np.array([0, 1, 0])).tolist() == [0, 0, 1]
    assert judge(p, OperatorPlan([0, 1, 0])).value == 2 + 9 + 2
    with pytest.raises(InfeasibleError, match="wait for its own outcome"):
        judge(p.replace(calls=1), OperatorPlan([0, 1, 0]))


class ThereAndBack:
    """A planner that answers with two calls of the accelerator."""

    name = "there-and-back"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Every problem of the test below."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The last operator comes back to the accelerator."""
        return OperatorPlan([0, 1, 0], call=[0, 0, 1])


def test_calls_survive_a_plan_file(tmp_path: Path) -> None:
    """Written and read by name."""
    p = tiny([[1.0, 9.0]] * 3, [(0, 1.0, [1]), (1, 1.0, [2])]).replace(
        communication="star", host_seconds_per_byte=[1.0, 0.0], calls=2
    )
    result = solve(p, ThereAndBack())
    again = read_proposal(result.save(tmp_path / "plan.json"), p).plan
    assert again.call is not None
    assert again.call.tolist() == [0, 0, 1]
    assert judge(p, again).value == result.value


@pytest.mark.parametrize("call", [[0, 0], [0, 0, 2], [0, -1, 0]])
def test_calls_that_do_not_exist_are_refused(call: list[int]) -> None:
    """Length and range."""
    p = tiny([[1.0, 9.0]] * 3).replace(
        communication="star", host_seconds_per_byte=[1.0, 0.0], calls=2
    )
    with pytest.raises(InputError, match="call"):
        judge(p, OperatorPlan([0, 1, 0], call=call))


def test_calls_between_which_nothing_is_called_take_nothing() -> None:
    """Of 1e9 calls only those with operators are simulated."""
    p = tiny([[1.0, 9.0]] * 3, [(0, 1.0, [1]), (1, 1.0, [2])]).replace(
        communication="star", host_seconds_per_byte=[1.0, 0.0], calls=10**9
    )
    assert judge(p, OperatorPlan([0, 1, 0])).value == 2 + 9 + 2


def judged(problem: OperatorProblem, plan: OperatorPlan) -> tuple[float, int]:
    """Value and bytes over; ``inf`` where the judge refuses the plan."""
    try:
        found = judge(problem, plan)
    except InfeasibleError:
        return np.inf, 0
    return found.value, found.violation_bytes


def drawn(problem: OperatorProblem, rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows of devices that groups can use."""
    groups = groups_of(problem)
    chance = rng.random((count, *groups.allowed.shape)) * groups.allowed
    return chance.argmax(axis=2)[:, groups.group]


def test_latencies_are_the_judges() -> None:
    """Of random placements with the earliest calls and with given ones; some cannot be made."""
    stuck = made = 0
    for seed in range(40):
        problem = star_problem(seed, calls=1 + seed % 3)
        rng = np.random.default_rng(seed)
        rows = drawn(problem, rng, 4)
        values, over = evaluate_many(problem, rows)
        for row, value, bytes_over in zip(rows, values, over, strict=True):
            expected = judged(problem, OperatorPlan(row))
            assert value == expected[0]
            assert not np.isfinite(value) or bytes_over == expected[1]
        calls = rng.integers(0, min(problem.calls, 2), rows.shape)
        values, _ = star_scores(problem, rows, calls)
        for row, call, value in zip(rows, calls, values, strict=True):
            assert value == judged(problem, OperatorPlan(row, call=call))[0]
            stuck, made = stuck + (value == np.inf), made + (value < np.inf)
    assert stuck > 5
    assert made > 50


def test_throughputs_are_the_judges() -> None:
    """The largest loads of random placements."""
    for seed in range(20):
        problem = star(seed)
        rows = drawn(problem, np.random.default_rng(seed), 3)
        values, over = evaluate_many(problem, rows)
        for row, value, bytes_over in zip(rows, values, over, strict=True):
            assert (value, bytes_over) == judged(problem, OperatorPlan(row))
