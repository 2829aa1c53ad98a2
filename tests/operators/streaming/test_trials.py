"""Trials of streams: the plan that is taken, and the corrected costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.errors import WorkerError
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.operators.streaming import trials
from placewright.operators.streaming.prediction import (
    DEALT,
    copied_devices,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.run import StreamRounds
from placewright.operators.streaming.trials import (
    TriedStreams,
    apart,
    busy_factors,
    ends_s,
    stage_period_s,
    stream_interference,
    try_streams,
)
from placewright.planning.result import Result
from placewright.planning.solving import judged_plan
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from small_zoo import small
from tests.operators.test_run import DUO


def tried() -> TriedStreams:
    """Trials of a model with costs of a hundredth: a split, copies and one device."""
    source = small("alexnet")
    graph = capture_source(source)
    problem = profile(graph, DUO, method="analytic").replace(objective="throughput")
    problem = problem.replace(compute_s=0.01 * problem.compute_s)
    half = (np.arange(problem.n) >= problem.n // 2).astype(np.int64)
    dealt = problem.replace(pipeline=DEALT)
    results = [
        judged_plan(problem, OperatorPlan(half)),
        judged_plan(dealt, next(whole_copies(dealt))),
        judged_plan(problem, OperatorPlan(np.zeros(problem.n, dtype=np.int64))),
    ]
    with Session(graph, DUO, initial_state(source, graph.program)) as session:
        found = try_streams(session, results)
        assert not session.streaming
    return found


def test_the_stream_that_is_taken_is_predicted_as_it_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the profile's costs were."""
    monkeypatch.setattr(trials, "TURN_S", 0.02)
    monkeypatch.setattr(trials, "CLOSE", 9.0)
    monkeypatch.setattr(trials.StreamTrials, "budget_s", 0.3)
    found = tried()
    assert len(found.predictions) == 3
    outcome, problem = found.outcome, found.measured_problem()
    assert not outcome.ended
    assert max(outcome.step_s) < np.inf
    assert all(turns and all(len(s) for s in turns[0].values()) for turns in found.busy)
    assert len(found.busy[1][0]) == len(copied_devices(outcome.plans[1].plan)) == 2
    expected = predicted(problem, outcome.plan.plan)
    assert expected.period_s == pytest.approx(outcome.step_s[outcome.best], rel=0.05)
    assert expected.period_s > found.predictions[outcome.best].period_s


def test_a_stream_that_loses_a_worker_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the others does not change."""

    def lost(rounds: StreamRounds, k: int, **options: Any) -> None:
        raise WorkerError("died", where="device 'a'")

    monkeypatch.setattr(StreamRounds, "open", lost)
    found = tried()
    assert found.outcome.best == 1
    assert "died" in found.outcome.ended
    assert found.measured_problem() is found.outcome.plan.problem


def test_streams_that_are_predicted_far_behind_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One device takes longer than both together by more than is in doubt."""
    monkeypatch.setattr(trials, "CLOSE", -1.0)
    assert len(tried().outcome.step_s) == 1


def test_streams_that_take_too_long_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is taken without a turn."""
    monkeypatch.setattr(trials, "LONGEST_S", 0.0)
    assert tried().outcome.step_s == (float("inf"),)


def result(placement: list[int], replica_of: list[int] | None = None) -> Result:
    """Of two operators on three devices."""
    copied = None if replica_of is None else np.array(replica_of)
    problem = tiny([[1.0] * 3] * 2, [(0, 0.0, [1])], objective="throughput", pipeline=DEALT)
    return judged_plan(problem, OperatorPlan(np.array(placement), replica_of=copied))


def test_a_period_is_that_of_the_slowest_stage() -> None:
    """Devices of one stage add their rates; one that has done nothing leaves it open."""
    split, copies, parts = result([0, 1]), result([0, 0], [0, 0, 2]), result([0, 2], [0, 0, 2])
    assert stage_period_s(split, {0: 2.0, 1: 3.0}) == 3.0
    assert stage_period_s(copies, {0: 2.0, 1: 4.0}) == pytest.approx(4 / 3)
    assert stage_period_s(parts, {0: 2.0, 1: 2.0, 2: 0.5}) == pytest.approx(1.0)
    assert stage_period_s(copies, {0: 2.0, 1: 0.0}) == 0.0
    assert stage_period_s(copies, {0: 2.0}) == 0.0


def test_copies_that_wait_for_a_slow_one_count_as_fast_as_they_are() -> None:
    """Dealt by measured costs they no longer wait; stages of a split wait in every sample."""
    ends = [0.0, 0.5, 1.0, 1.5, 3.5, 4.0, 4.5]
    assert apart(ends, 4, copies=True) == pytest.approx(0.5)
    assert apart(ends, 4) == pytest.approx(1.0)
    assert apart([0.0, 3.0, 6.5], 3, copies=True) == pytest.approx(3.25)  # none in this turn
    assert apart([0.0, 3.0, 6.5], 3) == 0.0
    assert apart([2.0], 0, copies=True) == 0.0


def test_samples_end_on_a_device_with_its_last_segment() -> None:
    """Device 0 does the first and the third part of every sample, the first ones far ahead."""
    first = [(0, 0, n, n + 0.0, n + 0.4) for n in range(9)]
    third = [(0, 1, n, n + 4.4, n + 4.9) for n in range(5)]
    second = [(1, 0, n, n + 2.0, n + 2.8) for n in range(7)]
    cut = SimpleNamespace(lengths=((1, 2), (1,)))
    stream: Any = SimpleNamespace(cut=cut, spans=[first + third, second])
    assert ends_s(stream) == {
        0: [n + 4.9 for n in range(5)],
        1: [n + 2.8 for n in range(7)],
    }


def test_factors_are_of_the_quieter_turn_and_of_others_where_nothing_ran() -> None:
    """Device 0 takes 3 s where 2 were predicted, its copy 8 for 4, and device 2 is unused."""
    problem = tiny([[2.0, 4.0, 4.0]], [], objective="throughput", pipeline=DEALT)
    plan = OperatorPlan(np.zeros(1, dtype=np.int64), replica_of=np.array([0, 0, 2]))
    busy = [{0: np.array([9.0, 9.0]), 1: np.array([8.0])}, {0: np.array([3.0]), 1: np.array([9.0])}]
    assert busy_factors(problem, plan, busy) == pytest.approx([1.5, 2.0, 1.75])


@pytest.mark.parametrize("fits", [True, False])
def test_both_problems_follow_real_streams(fits: bool) -> None:
    """A profile that is wrong by 100 is corrected, also where no device has the whole model."""
    source = small("alexnet")
    graph = capture_source(source)
    right = profile(graph, DUO).replace(objective="throughput")
    wrong = right.replace(compute_s=100.0 * right.compute_s)
    dealt = wrong.replace(pipeline=DEALT)
    half = OperatorPlan((np.arange(wrong.n) >= wrong.n // 2).astype(np.int64))
    split, copies = judged_plan(wrong, half), judged_plan(dealt, next(whole_copies(dealt)))
    single = best_single(wrong) if fits else None
    several = [split, copies] if fits else [split]
    with Session(graph, DUO, initial_state(source, graph.program)) as session:
        known = stream_interference(InterferenceProfile.alike(wrong), session, several, single)
    ratio = known.together.compute_s / known.alone.compute_s
    assert ratio == pytest.approx(np.broadcast_to(known.factors, ratio.shape))
    assert known.alone.compute_s.sum() < 0.5 * wrong.compute_s.sum()
    if single is None:
        assert known.factors.tolist() == [1.0, 1.0]
        return
    assert (known.factors > 0.1).all()  # as measured: below 1 where caches help
    assert (known.factors < 50).all()  # others may use a CPU; the profile is wrong by 100
    assert known.copied is not None
    assert (known.of(copies.plan).compute_s == known.copied.compute_s).all()
    assert known.of(single.plan) is known.alone
