"""Probes of devices and links that the steps do not use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from placewright.operators.adaptive.online_profile import OnlineProfile
from placewright.operators.adaptive.recovery_probe import RecoveryProbe
from placewright.operators.plan import OperatorPlan
from tests.operators.adaptive.jobs import job

LINE = (5e-5, 1e-9)
"""Latency and seconds per byte that the links of the probes have."""


class Probes:
    """A session of three devices and all their links, which are only probed."""

    def __init__(self) -> None:
        self.seconds = [1.0, 1.0, 1.0]
        self.calls: list[object] = []

    def probe_speeds(self) -> list[float]:
        """As they are set."""
        self.calls.append("speeds")
        return self.seconds

    def probe_links(
        self, among: Collection[tuple[int, int]] | None = None
    ) -> list[tuple[int, int, float, float]]:
        """All of `LINE`."""
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        pairs = pairs if among is None else list(among)
        self.calls.append(pairs)
        return [(*pair, *LINE) for pair in pairs]


@pytest.fixture
def probes() -> Probes:
    """Nothing of it was asked yet."""
    return Probes()


def recovery_probe(probes: Any, share: float = 1e9) -> RecoveryProbe:
    """Over the three devices of the small job."""
    found = RecoveryProbe(probes, OnlineProfile(job()[1].problem), share)
    found.baseline()
    probes.calls.clear()
    return found


def on(look: RecoveryProbe, *devices: int) -> OperatorPlan:
    """Operators in turns on these devices, those that belong together on one."""
    problem = look.online.base
    return OperatorPlan(np.resize(devices, problem.n)[problem.colocation])


def test_where_nothing_has_become_slow_nothing_is_probed(probes: Probes) -> None:
    """Whatever the plan leaves alone; nor is a slow device probed that works."""
    look = recovery_probe(probes)
    assert look.recovered(on(look, 0)) == []
    probes.seconds = [3.0, 1.2, 1.0]
    look.all_round(on(look, 0))
    probes.calls.clear()
    look.online.observed.factors["b"] = [3.0]  # as steps say, which is no reason to probe
    assert look.recovered(on(look, 0)) == []
    assert probes.calls == []


def test_a_device_that_was_left_is_seen_to_be_fast_again(probes: Probes) -> None:
    """At the first probe, and once; one that is still slow stays so."""
    look = recovery_probe(probes)
    probes.seconds = [1.0, 1.0, 8.0]
    look.all_round(on(look, 0, 1))
    probes.calls.clear()
    probes.seconds = [1.0, 1.0, 7.0]
    assert look.recovered(on(look, 0, 1)) == []
    assert probes.calls == ["speeds"]
    assert look.online.factors()[2] == 8.0
    probes.seconds = [1.0, 5.0, 1.0]
    assert look.recovered(on(look, 0, 1)) == ["c is 8.0 times faster than when it was left"]
    assert np.array_equal(look.online.factors(), [1.0, 1.0, 1.0])
    assert look.recovered(on(look, 0, 1)) == []
    assert len(probes.calls) == 2


def test_a_link_that_was_left_is_seen_to_be_fast_again(probes: Probes) -> None:
    """Those that carry tensors are not probed: the steps show them."""
    look = recovery_probe(probes)
    slow = (0.1, 1e-6)
    for pair in ((0, 1), (1, 0), (2, 0)):
        look.online.add_link(*pair, *slow)
    assert look.recovered(on(look, 0, 1)) == ["c -> a is 1276.1 times faster than when it was left"]
    assert probes.calls == [[(2, 0)]]
    problem = look.online.problem()
    assert (problem.latency_s[2, 0], problem.seconds_per_byte[2, 0]) == LINE
    assert (problem.latency_s[0, 1], problem.seconds_per_byte[0, 1]) == slow


def test_probes_stay_within_their_share_of_time(probes: Probes) -> None:
    """After one, the next comes when it has become a small part of the time."""
    look = recovery_probe(probes, share=1e-9)
    probes.seconds = [1.0, 1.0, 8.0]
    look.all_round(on(look, 0, 1))
    probes.calls.clear()
    look.recovered(on(look, 0, 1))
    assert probes.calls == []
    look.share = 1e9
    look.recovered(on(look, 0, 1))
    assert probes.calls == ["speeds"]


def test_the_first_baseline_of_a_device_stays(probes: Probes) -> None:
    """Workers that begin anew on a slow device do not take it for its profiled speed."""
    look = recovery_probe(probes)
    probes.seconds = [1.0, 4.0, 1.0]
    again = RecoveryProbe(look.session, OnlineProfile(look.online.base, look.online.observed), 1e9)
    again.baseline()
    assert probes.calls == []
    again.all_round(on(look, 0))
    assert np.array_equal(again.online.factors(), [1.0, 4.0, 1.0])
