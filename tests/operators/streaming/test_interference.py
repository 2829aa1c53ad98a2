"""What a stream through several devices shows about how they slow each other."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.operators.interference import InterferenceProfile
from placewright.operators.run import best_single
from placewright.operators.streaming.copies import DEALT, whole_copies
from placewright.operators.streaming.interference import stream_interference
from placewright.planning.fixed_plan import judged_plan
from placewright.profiling.build import profile
from placewright.runtime.session import Session
from placewright.testing.small_zoo import small
from tests.operators.test_run import DUO


def test_both_problems_follow_real_streams() -> None:
    """A profile that is wrong by 100 is corrected; copies and one device are calibrated apart."""
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
    ratio = known.together.compute_s / known.alone.compute_s
    assert ratio == pytest.approx(np.broadcast_to(known.factors, ratio.shape))
    assert (known.factors > 0.1).all()  # as measured: below 1 where caches help
    assert (known.factors < 10).all()
    assert known.copied is not None
    assert (known.of(copies.plan).compute_s == known.copied.compute_s).all()
    assert known.of(single.plan) is known.alone
    assert known.alone.compute_s.sum() < 0.5 * wrong.compute_s.sum()
