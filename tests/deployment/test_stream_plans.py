"""Plans for a stream are chosen by its predicted period, in which transfers overlap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.deployment.planning import judged, planned
from placewright.deployment.stream_plans import _kept, _Stream
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.streaming.copies import DEALT, copied_devices, predicted, whole_copies
from placewright.operators.streaming.prediction import predict
from placewright.operators.streaming.trials import CLOSE, MOST_TRIED
from placewright.planning.contract import Listener
from placewright.planning.fixed_plan import FixedPlan
from placewright.planning.result import Result
from placewright.planning.solving import solve

CHAIN = tiny([[1.0, 9.0], [0.5, 1.0]], [(0, 0.6, [1])], latency_s=0.0, objective="throughput")
"""One device does a sample in 1.5 s. Two do it in 1.0 s, and the transfer of 0.6 s meanwhile: the
value, which adds it to both, is 1.6 s."""


def best(planner: str) -> Result:
    """What would be executed."""
    known = InterferenceProfile.alike(CHAIN)
    return planned(known, planner, time_limit_s=2.0, seed=0, monitor=Listener())[0]


def test_auto_takes_the_plan_whose_stream_is_fastest() -> None:
    """The split, although its value is worse; its gap is that of its value."""
    found = best("auto")
    assert found.plan.placement.tolist() == [0, 1]
    assert predict(judge(CHAIN, found.plan)).period_s == pytest.approx(1.0)
    assert found.value == pytest.approx(1.6)
    assert found.lower_bound <= 1.5


def test_the_chosen_plan_has_one_row_with_its_value() -> None:
    """Also where the planner of that name had refused the problem without copies."""
    even = tiny([[1.0, 1.0], [1.0, 1.0]], [(0, 9.0, [1])], objective="throughput")
    found = planned(
        InterferenceProfile.alike(even),
        "auto",
        time_limit_s=2.0,
        seed=0,
        monitor=Listener(),
        copies=True,
    )[0]
    assert found.planner == "whole-copies"
    (row,) = [c for c in found.candidates if c.planner == found.planner]
    assert row.value == found.value == pytest.approx(1.0)


def test_a_planner_that_was_named_is_obeyed() -> None:
    """Its plan is the best one by value."""
    assert best("exact").value == pytest.approx(1.5)


def test_a_saved_plan_with_copies_is_judged_as_one(tmp_path: Path) -> None:
    """Its file says so, and no option has to."""
    found = solve(CHAIN.replace(pipeline=DEALT), FixedPlan(next(whole_copies(CHAIN)), name="both"))
    path = found.save(tmp_path / "plan.json")
    known = InterferenceProfile.alike(CHAIN)
    again = judged(known, path)
    assert copied_devices(again.plan) == copied_devices(found.plan) == [0, 1]
    assert again.value == found.value
    other = solve(CHAIN, FixedPlan(best("exact").plan, name="one")).save(tmp_path / "other.json")
    assert judged(known, other).problem is known.of(judged(known, other).plan)


def test_auto_copies_a_stage_where_not_every_device_can_have_the_model() -> None:
    """Two boards share the long first half, the third one has the rest; none holds all of it."""
    problem = tiny(
        [[2.0, 2.0, 9.0], [9.0, 9.0, 1.0]], [(0, 0.1, [1])], latency_s=0.0, objective="throughput"
    ).replace(resident_bytes=np.array([5.0, 5.0]), memory_bytes=np.full(3, 9.0))
    known = InterferenceProfile.alike(problem)
    found = planned(known, "auto", time_limit_s=2.0, seed=0, monitor=Listener(), copies=True)[0]
    assert found.planner == "copied-stages"
    assert copied_devices(found.plan) == [0, 1]
    assert found.plan.placement.tolist() == [0, 2]
    assert predicted(found.problem, found.plan).period_s == pytest.approx(1.0, rel=0.03)


def test_plans_of_every_kind_that_may_be_the_fastest_are_kept() -> None:
    """Best first: the best of each kind, then others, none that is far behind."""
    rows = [(1.0, "copies"), (1.01, "copies"), (1.05, "copies"), (1.1, "contiguous"), (1.2, "one")]
    streams = [_Stream(f"{s}", CHAIN, best("exact").plan, s, kind) for s, kind in rows]
    kept = _kept([*streams, replace(streams[0], period_s=1.0 + 2 * CLOSE, kind="far")])
    assert [stream.period_s for stream in kept] == [1.0, 1.01, 1.1, 1.2]
    assert len(kept) == MOST_TRIED


def test_results_of_several_kinds_come_best_first() -> None:
    """The split, copies on both devices and one device alone are within a quarter of each other."""
    problem = tiny([[1.0, 3.2], [1.0, 1.2]], [(0, 0.1, [1])], latency_s=0.0, objective="throughput")
    known = InterferenceProfile.alike(problem)
    found = planned(known, "auto", time_limit_s=2.0, seed=0, monitor=Listener(), copies=True)
    periods = [predicted(result.problem, result.plan).period_s for result in found]
    assert periods[0] == min(periods) == pytest.approx(1.2)
    assert "whole-copies" in [result.planner for result in found]
    assert len({result.plan.placement.tobytes() for result in found}) > 1
