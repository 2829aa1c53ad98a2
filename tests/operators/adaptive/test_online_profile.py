"""The online profile distinguishes slow devices from wrongly measured operators."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.adaptive.online_profile import RECENT, OnlineProfile
from placewright.operators.adaptive.run import problem_of
from placewright.runtime.step_record import StepLog, StepRecord
from tests.operators.adaptive.jobs import TRIO, job


def record(online: OnlineProfile, placement: np.ndarray, factors: np.ndarray) -> StepRecord:
    """A step in which every operator takes its base time, its device's factor and more."""
    logs = []
    for device in range(online.base.m):
        mine = np.flatnonzero(placement == device)
        took = online.base.compute_s[mine, device] * factors[device]
        ends = np.cumsum(took)
        spans = np.stack([ends - took, ends], axis=1).ravel()
        logs.append(StepLog(0.0, float(took.sum()), tuple(mine), tuple(spans)))
    return StepRecord(0.0, max(log.end_s for log in logs), tuple(logs))


def test_factors_of_devices_are_found() -> None:
    """Three devices at 1, 3 and 0.5 times their profiled seconds."""
    online = OnlineProfile(job()[1].problem)
    placement = np.arange(online.base.n) % 3
    factors = np.array([1.0, 3.0, 0.5])
    online.add_steps([record(online, placement, factors)] * RECENT)
    assert np.allclose(online.factors(), factors)
    refreshed = online.problem()
    assert np.allclose(refreshed.compute_s / online.base.compute_s, factors)


def test_one_odd_sample_changes_no_factor() -> None:
    """The median of three."""
    online = OnlineProfile(job()[1].problem)
    placement = np.arange(online.base.n) % 3
    for factor in (1.0, 9.0, 1.0):
        online.add_steps([record(online, placement, np.full(3, factor))])
    assert np.allclose(online.factors(), 1.0)


def test_probes_count_where_nothing_runs() -> None:
    """A probed device and a measured link are in the refreshed problem."""
    online = OnlineProfile(job()[1].problem)
    online.add_probe(2, 4.0, idle=True)
    online.add_link(0, 1, 0.5, 1e-3)
    refreshed = online.problem()
    assert np.allclose(refreshed.compute_s[:, 2], 4 * online.base.compute_s[:, 2])
    assert (refreshed.latency_s[0, 1], refreshed.seconds_per_byte[0, 1]) == (0.5, 1e-3)


def test_the_profile_is_as_wrong_about_idle_devices() -> None:
    """The first device takes 1.5 times its profile from the start, then three times."""
    online = OnlineProfile(job()[1].problem)
    here = np.zeros(online.base.n, dtype=int)
    for _ in range(RECENT):
        assert not online.knows_usual
        online.add_steps([record(online, here, np.full(3, 1.5))])
        online.add_calm()
    assert online.knows_usual
    assert np.allclose(online.factors(), 1.5)
    online.add_probe(0, 2.0, idle=False)
    online.add_probe(2, 4.0, idle=True)
    online.add_steps([record(online, here, np.full(3, 3.0))] * RECENT)
    online.add_calm()  # has been seen often enough
    assert np.allclose(online.factors(), [3.0, 1.5, 6.0])


def test_what_was_seen_outlives_the_workers() -> None:
    """By name: of three devices one is lost and comes back, and all are known as they were."""
    whole = job()[1].problem
    first = OnlineProfile(whole)
    first.add_steps([record(first, np.arange(whole.n) % 3, np.array([1.0, 3.0, 0.5]))] * RECENT)
    first.add_link(0, 2, 0.5, 1e-3)
    two = OnlineProfile(problem_of(whole, {"a", "c"}), first.observed)
    assert np.allclose(two.factors(), [1.0, 0.5])
    assert (two.problem().latency_s[0, 1], two.problem().seconds_per_byte[0, 1]) == (0.5, 1e-3)
    two.add_probe(1, 2.0, idle=True)
    again = OnlineProfile(whole, first.observed)
    assert np.allclose(again.factors(), [1.0, 3.0, 2.0])
    assert again.problem().latency_s[0, 2] == 0.5


def test_survivors_keep_their_costs_and_links() -> None:
    """Without the middle one the problem is the profile of the smaller cluster."""
    training_job = job()[1]
    cluster, problem = TRIO.part({"a", "c"}), problem_of(training_job.problem, {"a", "c"})
    assert problem.device_names == cluster.device_names == ("a", "c")
    assert np.array_equal(problem.compute_s, training_job.problem.compute_s[:, [0, 2]])
    latency, per_byte, *_ = cluster.link_arrays()
    assert np.array_equal(problem.latency_s, latency)
    assert np.array_equal(problem.seconds_per_byte, per_byte)


def test_an_operator_pinned_to_a_lost_device_is_named() -> None:
    """Nothing can be done about it, and the error says which."""
    problem = job()[1].problem
    pinned = problem.replace(pinned=np.where(np.arange(problem.n) == 0, 1, -1))
    with pytest.raises(InfeasibleError, match=r"pinned to 'b', which is gone"):
        problem_of(pinned, {"a", "c"})
