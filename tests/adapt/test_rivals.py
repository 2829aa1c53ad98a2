"""Rivals are close, different and affordable."""

from __future__ import annotations

from pathlib import Path

from placewright.adapt.decide import Policy
from placewright.adapt.rivals import CLOSE, MOST, rivals, worth_trying
from placewright.adapt.run import AdaptiveRun
from placewright.adapt.timeline import Kind
from placewright.adapt.tryout import STEPS_EACH
from placewright.operators.judge import judge
from placewright.solve import solve
from tests.adapt.jobs import job
from tests.adapt.test_run import equal_to_eager

STEPS = 2 * STEPS_EACH


def test_rivals_are_judged_nearly_as_good_and_differ() -> None:
    """Every rival is within `CLOSE` of the plan, no placement comes twice, the best come first."""
    _, given = job()
    plan = solve(given.problem, "heft").plan
    others = rivals(given.problem, plan, float("inf"), 0.05)
    values = [judge(given.problem, other).value for other in others]
    assert values == sorted(values)
    assert len(others) < MOST
    assert all(v <= (1 + CLOSE) * judge(given.problem, plan).value for v in values)
    assert len({p.placement.tobytes() for p in (plan, *others)}) == len(others) + 1


def test_a_short_run_tries_nothing_and_an_endless_one_everything() -> None:
    """What a tryout may cost grows with the steps that are left."""
    _, given = job()
    plan = solve(given.problem, "only:a").plan
    plans = [plan, solve(given.problem, "only:b").plan, solve(given.problem, "only:c").plan]
    counts = [
        worth_trying(given.problem, plans, steps, likely_gain=0.05)
        for steps in (0.0, 50.0, 1e5, float("inf"))
    ]
    assert counts == sorted(counts)
    assert counts[:2] == [1, 1]
    assert counts[-1] == 3
    assert rivals(given.problem, plan, 50, 0.05) == ()


def test_a_run_tries_its_rivals_and_trains_as_if_it_had_not(tmp_path: Path) -> None:
    """Migrations from plan to plan, one verdict, and eager's parameters bit for bit."""
    source, given = job()
    plans = [solve(given.problem, f"only:{name}").plan for name in ("a", "b")]
    policy = Policy(sample_every=1000, tolerance=100.0)
    with AdaptiveRun(given, tmp_path, plan=plans[0], rivals=plans[1:], policy=policy) as run:
        for _ in range(STEPS):
            run.step()
        assert run.timeline.count(Kind.TRY) == 1
        assert run.timeline.plans >= 2
        assert run.adaptation is not None
        assert run.plan is run.adaptation.plan
        equal_to_eager(run, source, given, STEPS)
