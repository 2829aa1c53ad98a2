"""The online profile tells a slow device from a wrongly measured operator."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.adapt.online_profile import RECENT, OnlineProfile
from placewright.adapt.survivors import cluster_of, problem_of
from placewright.errors import InfeasibleError
from placewright.runtime.device_group import StepLog
from placewright.runtime.step_record import StepRecord
from tests.adapt.jobs import TRIO, job


def record(watch: OnlineProfile, placement: np.ndarray, factors: np.ndarray) -> StepRecord:
    """A step in which every operator takes its base time, its device's factor and more."""
    logs = []
    for device in range(watch.base.m):
        mine = np.flatnonzero(placement == device)
        took = watch.base.compute_s[mine, device] * factors[device]
        ends = np.cumsum(took)
        spans = np.stack([ends - took, ends], axis=1).ravel()
        logs.append(StepLog(0.0, float(took.sum()), tuple(mine), tuple(spans)))
    return StepRecord(0.0, max(log.end_s for log in logs), tuple(logs))


def test_factors_of_devices_are_found() -> None:
    """Three devices at 1, 3 and 0.5 times their profiled seconds."""
    watch = OnlineProfile(job()[1].problem)
    placement = np.arange(watch.base.n) % 3
    factors = np.array([1.0, 3.0, 0.5])
    watch.saw_steps([record(watch, placement, factors)] * RECENT)
    assert np.allclose(watch.factors(), factors)
    refreshed = watch.problem()
    assert np.allclose(refreshed.compute_s / watch.base.compute_s, factors)


def test_one_odd_sample_changes_no_factor() -> None:
    """The median of three."""
    watch = OnlineProfile(job()[1].problem)
    placement = np.arange(watch.base.n) % 3
    for factor in (1.0, 9.0, 1.0):
        watch.saw_steps([record(watch, placement, np.full(3, factor))])
    assert np.allclose(watch.factors(), 1.0)


def test_probes_count_where_nothing_runs() -> None:
    """A probed device and a measured link are in the refreshed problem."""
    watch = OnlineProfile(job()[1].problem)
    watch.saw_probe(2, 4.0, idle=True)
    watch.saw_link(0, 1, 0.5, 1e-3)
    refreshed = watch.problem()
    assert np.allclose(refreshed.compute_s[:, 2], 4 * watch.base.compute_s[:, 2])
    assert (refreshed.latency_s[0, 1], refreshed.seconds_per_byte[0, 1]) == (0.5, 1e-3)


def test_the_profile_is_as_wrong_about_idle_devices() -> None:
    """The first device takes 1.5 times its profile from the start, then three times."""
    watch = OnlineProfile(job()[1].problem)
    here = np.zeros(watch.base.n, dtype=int)
    for _ in range(RECENT):
        assert not watch.knows_usual
        watch.saw_steps([record(watch, here, np.full(3, 1.5))])
        watch.saw_calm()
    assert watch.knows_usual
    assert np.allclose(watch.factors(), 1.5)
    watch.saw_probe(0, 2.0, idle=False)
    watch.saw_probe(2, 4.0, idle=True)
    watch.saw_steps([record(watch, here, np.full(3, 3.0))] * RECENT)
    watch.saw_calm()  # has been seen often enough
    assert np.allclose(watch.factors(), [3.0, 1.5, 6.0])


def test_what_was_seen_outlives_the_workers() -> None:
    """By name: of three devices one is lost and comes back, and all are known as they were."""
    whole = job()[1].problem
    first = OnlineProfile(whole)
    first.saw_steps([record(first, np.arange(whole.n) % 3, np.array([1.0, 3.0, 0.5]))] * RECENT)
    first.saw_link(0, 2, 0.5, 1e-3)
    two = OnlineProfile(problem_of(whole, {"a", "c"}), first.observed)
    assert np.allclose(two.factors(), [1.0, 0.5])
    assert (two.problem().latency_s[0, 1], two.problem().seconds_per_byte[0, 1]) == (0.5, 1e-3)
    two.saw_probe(1, 2.0, idle=True)
    again = OnlineProfile(whole, first.observed)
    assert np.allclose(again.factors(), [1.0, 3.0, 2.0])
    assert again.problem().latency_s[0, 2] == 0.5


def test_survivors_keep_their_costs_and_links() -> None:
    """Without the middle one the problem is the profile of the smaller cluster."""
    given = job()[1]
    cluster, problem = cluster_of(TRIO, {"a", "c"}), problem_of(given.problem, {"a", "c"})
    assert problem.device_names == cluster.device_names == ("a", "c")
    assert np.array_equal(problem.compute_s, given.problem.compute_s[:, [0, 2]])
    latency, per_byte, *_ = cluster.link_arrays()
    assert np.array_equal(problem.latency_s, latency)
    assert np.array_equal(problem.seconds_per_byte, per_byte)


def test_an_operator_pinned_to_a_lost_device_is_named() -> None:
    """Nothing can be done about it, and the error says which."""
    problem = job()[1].problem
    pinned = problem.replace(pinned=np.where(np.arange(problem.n) == 0, 1, -1))
    with pytest.raises(InfeasibleError, match=r"pinned to 'b', which is gone"):
        problem_of(pinned, {"a", "c"})
