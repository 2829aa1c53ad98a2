"""Plans for workers that are slower side by side than alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.cli.face import Face
from placewright.cli.operators.pacing import judged, planned
from placewright.profile.together import Paces
from placewright.result import Result, Status
from placewright.solve import solve
from placewright.testing.instances import tiny

SPLIT = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 0.0, []), (1, 0.0, [])])
"""Alone 6 s on the first device; side by side 4 s, if company cost nothing."""


def slowed(times: float) -> Paces:
    """Company makes everything so many times slower."""
    together = SPLIT.asked(compute_s=times * SPLIT.compute_s)
    return Paces(SPLIT, together, np.full(SPLIT.m, times))


def asked(known: Paces, planner: str) -> Result:
    """In silence."""
    return planned(Face("table", None, True, 0), known, planner, time_limit_s=5.0, seed=0)[0]


@pytest.mark.parametrize(("times", "value", "devices"), [(1.2, 4.8, 2), (2.0, 6.0, 1)])
def test_auto_weighs_company_against_one_device(times: float, value: float, devices: int) -> None:
    """A split is worth what it takes in company, one device what it takes alone."""
    found = asked(slowed(times), "auto")
    assert found.value == pytest.approx(value)
    assert len(set(found.plan.placement.tolist())) == devices


def test_a_proof_at_one_pace_is_none_at_the_other() -> None:
    """The best plan in company is one device: alone it is worth less than what was proved there."""
    one = tiny([[3.0, 4.0], [3.0, 4.0]], [(0, 9.0, [1])], latency_s=9.0)
    found = asked(Paces(one, one.asked(compute_s=2 * one.compute_s), np.full(2, 2.0)), "exact")
    assert found.value == pytest.approx(6.0)
    assert found.lower_bound <= 6.0


def test_a_plan_from_a_file_is_judged_by_its_kind(tmp_path: Path) -> None:
    """Whatever it was made for."""
    for planner, value in (("only:dev0", 6.0), ("exact", 8.0)):
        path = solve(SPLIT, planner).save(tmp_path / f"{value}.json")
        found = judged(slowed(2.0), path)
        assert found.value == pytest.approx(value)
        assert found.status in (Status.OPTIMAL, Status.FEASIBLE)
