"""A device really slows down, and the run migrates from it without losing a bit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewright.adapt.timeline import Kind
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.graph.graph import Program
from placewright.operators.adaptive.adaptation import AdaptationPolicy, RecoveryProbe, Replanner
from placewright.operators.adaptive.online_profile import OnlineProfile
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun, problem_of
from placewright.operators.check import run_eager
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.profiling.profiler import profile
from tests.operators.adaptive.jobs import job

DUO = Cluster(
    (Device("a", node="a"), Device("b", node="b", speed=0.5)),
    (Link("a", "b", 1e9, 5e-5), Link("b", "a", 1e9, 5e-5)),
    name="duo",
)


def heavy() -> tuple[ModelSource, AdaptiveJob]:
    """Some ten milliseconds of matrix products, measured costs."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(4)]
    source = ModelSource(
        torch.nn.Sequential(*layers), (torch.randn(96, 384),), default_loss, None, "heavy"
    )
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    return source, AdaptiveJob(graph, DUO, profile(graph, DUO, state=state), state)


def work_on(device: int, job: AdaptiveJob, run: AdaptiveRun) -> float:
    """Share of a step's computation that the plan in force places on a device.

    Weighted, for most operators cost nearly nothing and may stay wherever they are.
    """
    assert run.adaptation is not None
    seconds = job.problem.compute_s[:, 0]
    return float(seconds[run.adaptation.plan.placement == device].sum() / seconds.sum())


def test_a_run_leaves_a_device_that_has_become_slow_and_returns(tmp_path: Path) -> None:
    """Eight times slower after step 10: the next steps see it, plan again and migrate. Fast again
    it changes no step, for nothing runs there; it is looked after, and gets its work back.
    """
    source, job = heavy()
    policy = AdaptationPolicy(sample_every=10, trial_steps=3, look_share=0.5)
    with AdaptiveRun(job, tmp_path, policy=policy, snapshot_every=1000) as run:
        while run.done < 10:
            run.step()
        assert run.session is not None
        assert run.adaptation is not None
        assert run.adaptation.online.knows_usual  # from its first calm steps
        run.session.disturb([8.0, 2.0])
        before = run.timeline.count(Kind.MIGRATE)  # on a busy machine not always none
        while run.done < 150 and work_on(1, job, run) < 0.5:
            run.step()
        assert run.timeline.count(Kind.MIGRATE) > before
        assert work_on(1, job, run) > 0.5
        run.adaptation._switch(OperatorPlan(np.ones(job.problem.n, dtype=np.int64)), 0.0)
        run.session.disturb([1.0, 2.0])
        while run.done < 300 and work_on(0, job, run) < 0.5:
            run.step()
        assert work_on(0, job, run) > 0.5
        steps, state = run.done, run.state()
    assert isinstance(job.graph.program, Program)
    expected = run_eager(source, training=True, steps=steps).state
    for item in job.graph.program.inputs:
        if item.role == "parameter":
            assert torch.equal(state[item.name], expected[item.key])


def all_on(problem: OperatorProblem, device: int) -> OperatorPlan:
    """Every operator on one device."""
    return OperatorPlan([device] * problem.n)


def test_offers_go_on_while_devices_leave_and_return() -> None:
    """Three, two of them, two others, three: each offer is one for the devices that are there."""
    whole, replanner = job()[1].problem, Replanner()
    for names in ("abc", "ab", "bc", "abc"):
        problem = problem_of(whole, set(names))
        current = all_on(problem, 1)
        offer = replanner.offer(problem, current)
        assert judge(problem, offer.plan).feasible
        assert offer.plan.placement.max() < problem.m
        assert offer.new_s <= offer.current_s == judge(problem, current).value


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
