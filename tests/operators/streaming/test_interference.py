"""Interference of devices, estimated from a stream through several of them."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.operators.streaming.copies import DEALT, whole_copies
from placewright.operators.streaming.interference import stream_interference
from placewright.planning.fixed_plan import judged_plan
from placewright.profiling.build import profile
from placewright.runtime.session import Session
from placewright.testing.small_zoo import small
from tests.operators.test_run import DUO


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
    assert (known.factors < 10).all()
    assert known.copied is not None
    assert (known.of(copies.plan).compute_s == known.copied.compute_s).all()
    assert known.of(single.plan) is known.alone
