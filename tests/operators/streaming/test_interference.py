"""What a stream through several devices shows about how they slow each other."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.operators.instances import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.operators.streaming.copies import DEALT, whole_copies
from placewright.operators.streaming.interference import _factors, stream_interference
from placewright.planning.fixed_plan import judged_plan
from placewright.profiling.build import profile
from placewright.runtime.session import Session
from placewright.testing.small_zoo import small
from tests.operators.test_run import DUO


def test_factors_are_of_the_quieter_turn_and_of_others_where_nothing_ran() -> None:
    """Device 0 takes 3 s where 2 were predicted, its copy 8 for 4, and device 2 is unused."""
    problem = tiny([[2.0, 4.0, 4.0]], [], objective="throughput", pipeline=DEALT)
    plan = OperatorPlan(np.zeros(1, dtype=np.int64), replica_of=np.array([0, 0, 2]))
    busy = [{0: np.array([9.0, 9.0]), 1: np.array([8.0])}, {0: np.array([3.0]), 1: np.array([9.0])}]
    assert _factors(problem, plan, busy) == pytest.approx([1.5, 2.0, 1.75])


def test_both_problems_follow_real_streams() -> None:
    """No device is faster beside others; a profile that is wrong by 100 is corrected."""
    source = small("alexnet")
    graph = capture_source(source)
    right = profile(graph, DUO).replace(objective="throughput")
    wrong = right.replace(compute_s=100.0 * right.compute_s)
    dealt = wrong.replace(pipeline=DEALT)
    copies = judged_plan(dealt, next(whole_copies(dealt)))
    single = best_single(wrong)
    assert single is not None
    with Session(graph, DUO, initial_state(source, graph.program)) as session:
        known = stream_interference(InterferenceProfile.alike(wrong), session, [copies], single)
    assert (known.factors >= 1.0).all()
    assert (known.together.compute_s >= known.alone.compute_s).all()
    assert known.copied is not None
    assert (known.of(copies.plan).compute_s == known.copied.compute_s).all()
    assert known.of(single.plan) is known.alone
    assert known.alone.compute_s.sum() < 0.5 * wrong.compute_s.sum()
