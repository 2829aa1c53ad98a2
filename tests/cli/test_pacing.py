"""Plans for workers that are slower side by side than alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from placewright.cli.console import Console
from placewright.cli.operators.pacing import judged, planned, tried
from placewright.planning.result import Result, Status
from placewright.planning.solving import solve
from placewright.profiling.interference import InterferenceProfile
from placewright.runtime import session
from placewright.runtime.step_record import StepRecord
from placewright.testing.instances import tiny

SPLIT = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 0.0, []), (1, 0.0, [])])
"""Alone 6 s on the first device; side by side 4 s, if company cost nothing."""


def slowed(times: float) -> InterferenceProfile:
    """Company makes everything so many times slower."""
    together = SPLIT.replace(compute_s=times * SPLIT.compute_s)
    return InterferenceProfile(SPLIT, together, np.full(SPLIT.m, times))


def asked(known: InterferenceProfile, planner: str) -> Result:
    """In silence."""
    return planned(Console("table", None, True, 0), known, planner, time_limit_s=5.0, seed=0)[0]


@pytest.mark.parametrize(("times", "value", "devices"), [(1.2, 4.8, 2), (2.0, 6.0, 1)])
def test_auto_weighs_company_against_one_device(times: float, value: float, devices: int) -> None:
    """A split is worth what it takes in company, one device what it takes alone."""
    found = asked(slowed(times), "auto")
    assert found.value == pytest.approx(value)
    assert len(set(found.plan.placement.tolist())) == devices


def test_a_proof_at_one_pace_is_none_at_the_other() -> None:
    """The best plan in company is one device: alone it is worth less than what was proved there."""
    one = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 9.0, [1])], latency_s=9.0)
    found = asked(
        InterferenceProfile(one, one.replace(compute_s=2 * one.compute_s), np.full(2, 2.0)), "exact"
    )
    assert found.value == pytest.approx(6.0)
    assert found.lower_bound <= 6.0


def test_a_plan_from_a_file_is_judged_by_its_kind(tmp_path: Path) -> None:
    """Whatever it was made for."""
    for planner, value in (("only:dev0", 6.0), ("exact", 8.0)):
        path = solve(SPLIT, planner).save(tmp_path / f"{value}.json")
        found = judged(slowed(2.0), path)
        assert found.value == pytest.approx(value)
        assert found.status in (Status.OPTIMAL, Status.FEASIBLE)


class Workers:
    """A session whose steps take 5 s on one device and 7 s on both, whatever was said."""

    def __init__(self, *given: Any) -> None:
        self.placement: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def load(self, placement: list[int], order: list[int], *, serial: bool = False) -> None:
        """Take in the plan."""
        self.placement = placement

    def run(self, steps: int) -> list[StepRecord]:
        """As many records."""
        return [StepRecord(0.0, 5.0 if len(set(self.placement)) == 1 else 7.0, ())] * steps


@pytest.mark.parametrize(("engine", "devices"), [("testbed", 1), ("local", 2)])
def test_the_closest_plans_of_auto_are_tried_on_real_workers(
    engine: str,
    devices: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The split is said to take 5.6 s, one device 6 s: it is the other way round for real."""
    monkeypatch.setattr(session, "Session", Workers)
    console, known = Console("table", None, False, 0), slowed(1.4)
    results = planned(console, known, "auto", time_limit_s=5.0, seed=0)
    assert [r.value for r in results] == pytest.approx([5.6, 6.0])
    loaded: Any = SimpleNamespace(graph=1, cluster=1, state={})
    named: Any = SimpleNamespace(name=engine)
    found = tried(console, loaded, known, results, named)
    assert len(set(found.plan.placement.tolist())) == devices
    told = capsys.readouterr().err
    assert ("only:dev0 5" in told) == (engine == "testbed")
    singles = [c.value for c in results[0].candidates if c.planner == "only:dev0"]
    assert singles == pytest.approx([6.0])  # what it takes alone, on the page too


def test_after_ctrl_c_nothing_is_tried_and_the_best_plan_said_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it came while planning or while the workers were being started."""

    def pressed(*given: Any) -> None:
        raise KeyboardInterrupt

    console, known = Console("table", None, True, 0), slowed(1.4)
    results = planned(console, known, "auto", time_limit_s=5.0, seed=0)
    loaded: Any = SimpleNamespace(graph=1, cluster=1, state={})
    named: Any = SimpleNamespace(name="testbed")
    monkeypatch.setattr(session, "Session", pressed)
    assert tried(console, loaded, known, results, named) is results[0]
    second = replace(results[1], status=Status.INTERRUPTED)
    monkeypatch.delattr(session, "Session")
    assert tried(console, loaded, known, (results[0], second), named) is results[0]
