"""Challengers are close, different and affordable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.adapt.timeline import Kind
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.operators.adaptive.adaptation import AdaptationPolicy
from placewright.operators.adaptive.run import CLOSE, MOST, AdaptiveRun, affordable, challengers
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import LEARNED
from placewright.planning.solving import solve
from tests.operators.adaptive.jobs import job
from tests.operators.adaptive.test_run import equal_to_eager


def test_challengers_are_judged_nearly_as_good_and_differ() -> None:
    """All are within `CLOSE` of the best, no placement comes twice, the best come first."""
    _, training_job = job()
    plan = solve(training_job.problem, "round-robin").plan
    others = challengers(InterferenceProfile.alike(training_job.problem), plan, float("inf"))
    values = [judge(training_job.problem, other).value for other in others]
    assert values == sorted(values)
    assert 1 <= len(others) < MOST
    assert values[-1] <= (1 + CLOSE) * values[0]
    assert len({p.placement.tobytes() for p in (plan, *others)}) == len(others) + 1


def test_no_planner_learns_for_a_challenger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learned planners and their baselines take seconds: they run only by name."""

    def ran(self: object, *_: object) -> None:
        raise AssertionError(f"{self} ran")

    for planner in LEARNED:
        monkeypatch.setattr(type(planner), "__call__", ran)
    _, training_job = job()
    plan = solve(training_job.problem, "round-robin").plan
    assert challengers(InterferenceProfile.alike(training_job.problem), plan, float("inf"))


def test_known_challengers_come_first() -> None:
    """Eight equal devices, links too slow to split: a known plan comes before as good ones."""
    names = "abcdefgh"
    links = tuple(Link(a, b, 1e3, 1e-2) for a in names for b in names if a != b)
    _, training_job = job(Cluster(tuple(Device(n, node=n) for n in names), links, name="equal"))
    plan, known = (solve(training_job.problem, f"only:{name}").plan for name in "ah")
    assert (
        len(challengers(InterferenceProfile.alike(training_job.problem), plan, float("inf")))
        == MOST - 1
    )
    others = challengers(
        InterferenceProfile.alike(training_job.problem), plan, float("inf"), at_hand=[known]
    )
    assert len(others) == MOST - 1
    assert known.placement.tolist() in [other.placement.tolist() for other in others]


def test_a_short_run_tries_nothing_and_an_endless_one_everything() -> None:
    """The allowed cost of trials grows with the steps that are left."""
    _, training_job = job()
    plan = solve(training_job.problem, "only:a").plan
    plans = [
        plan,
        solve(training_job.problem, "only:b").plan,
        solve(training_job.problem, "only:c").plan,
    ]
    tried = [
        len(affordable(InterferenceProfile.alike(training_job.problem), plans, steps))
        for steps in (0.0, 40.0, 1e5, float("inf"))
    ]
    assert tried == sorted(tried)
    assert tried[:2] == [1, 1]
    assert tried[-1] == 3
    assert challengers(InterferenceProfile.alike(training_job.problem), plan, 50) == ()


def test_each_kind_of_plan_is_judged_at_its_own_pace() -> None:
    """A split at 4 s that interference makes 5.6 s leaves one device of 6 s a challenger."""
    split = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 0.0, []), (1, 0.0, [])])
    together = split.replace(compute_s=1.4 * split.compute_s)
    plan, single = OperatorPlan(np.array([0, 1])), OperatorPlan(np.array([0, 0]))
    for interference, tried in (
        (InterferenceProfile(split, together, np.full(2, 1.4)), True),
        (InterferenceProfile.alike(split), False),
    ):
        others = challengers(interference, plan, 1e6, at_hand=[single])
        assert ([0, 0] in [o.placement.tolist() for o in others]) == tried
        assert len(affordable(interference, (plan, single), 1e6)) == 1 + tried


def test_a_run_tries_its_challengers_and_trains_as_if_it_had_not(tmp_path: Path) -> None:
    """Migrations from plan to plan, one verdict, and eager's parameters bit for bit."""
    source, training_job = job()
    plans = [solve(training_job.problem, f"only:{name}").plan for name in ("a", "b")]
    policy = AdaptationPolicy(sample_every=1000, tolerance=100.0)
    with AdaptiveRun(
        training_job, tmp_path, plan=plans[0], challengers=plans[1:], policy=policy
    ) as run:
        run.step()
        while run.adaptation is None or run.adaptation.trials is not None:
            run.step()
        assert run.timeline.count(Kind.TRY) == 1
        assert run.timeline.plans >= 2
        assert run.plan is run.adaptation.plan
        equal_to_eager(run, source, training_job, run.done)
