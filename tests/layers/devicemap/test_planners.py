"""Device maps against enumeration, and the lower bound under them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.layers.conformance import random_map
from placewright.layers.devicemap import planners
from placewright.layers.devicemap.judge import judge, lower_bound_s, period_s
from placewright.layers.devicemap.model import LanguageModel, Layer
from placewright.layers.devicemap.planners import Tables, plan_map
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem
from placewright.layers.generation.times import LayerTimes, StepTimes
from tests.layers.devicemap.models import tiny


def every_plan(problem: MapProblem) -> Any:
    """All orders of devices, all cuts, all numbers of layers from disk."""
    n, m = problem.n, problem.m
    for k in range(1, m + 1):
        for order in itertools.permutations(range(m), k):
            for cuts in itertools.combinations(range(1, n), k - 1):
                ends = (0, *cuts, n)
                lengths = [b - a for a, b in itertools.pairwise(ends)]
                disks = [
                    range(length + 1) if np.isfinite(problem.disk_s_per_byte[d]) else (0,)
                    for d, length in zip(order, lengths, strict=True)
                ]
                for spilled in itertools.product(*disks):
                    yield MapPlan(
                        tuple(
                            LayerRange(order[i], ends[i], ends[i + 1], spilled[i]) for i in range(k)
                        )
                    )


@pytest.mark.parametrize("seed", range(24))
def test_the_plan_is_the_best_of_all(seed: int) -> None:
    """Its value is the least of all plans that fit; the relaxation is below it."""
    problem = random_map(seed)
    values = [j.value for plan in every_plan(problem) if (j := judge(problem, plan)).feasible]
    found = plan_map(problem)
    assert found.proved
    if not values:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.value == pytest.approx(min(values), rel=1e-9)
    assert 0 <= lower_bound_s(problem) <= min(values) * (1 + 1e-9)


def hard_map(*links: tuple[str, str, float, float], decodes: bool = True) -> MapProblem:
    """Four layers, the second one perhaps an encoder's, on devices that only links distinguish."""
    layers = (
        Layer("embed", ("e",), 80),
        Layer("block 0", ("b0",), 78, multiplied=78, cache_width=5, window=5, decodes=decodes),
        Layer("block 1", ("b1",), 50, matrices=50, multiplied=50, cache_width=3, attention_width=8),
        Layer("head", ("h",), 114, multiplied=114, prompt_share=0.0),
    )
    devices = tuple(
        Device(f"d{d}", node=f"n{d}", memory_bytes=1260, peak_flops=1e9, memory_bandwidth=100.0)
        for d in range(3)
    )
    cluster = Cluster(devices, tuple(Link(*each) for each in links))
    return MapProblem(
        LanguageModel("m", "none", layers, 8),
        cluster,
        context=10,
        users=4,
        prompt=5,
        dtype="int4",
        objective="throughput",
    )


def test_a_longest_part_below_the_bound_may_be_the_best() -> None:
    """The passage decides there: longer parts make it shorter, and the period longer."""
    problem = hard_map(
        ("d0", "d1", 60.0, 0.1),
        ("d0", "d2", 60.0, 0.0),
        ("d1", "d0", 30.0, 0.0),
        ("d1", "d2", 60.0, 0.0),
        ("d2", "d0", 30.0, 0.0),
        ("d2", "d1", 30.0, 0.4),
    )
    values = [j.value for plan in every_plan(problem) if (j := judge(problem, plan)).feasible]
    found = plan_map(problem).best
    assert found is not None
    assert found.value == pytest.approx(min(values), rel=1e-9)


def test_prompts_need_links_where_generated_tokens_pass_none() -> None:
    """Between the embedding and an encoder, which no generated token passes."""
    plan = MapPlan((LayerRange(0, 0, 1), LayerRange(1, 1, 4)))
    back = ("d1", "d0", 60.0, 0.1)  # for the next token
    made = judge(hard_map(back, decodes=False), plan)
    assert not made.feasible
    assert made.violation == "devices without a link between them"
    assert judge(hard_map(back, ("d0", "d1", 60.0, 0.1), decodes=False), plan).feasible


@pytest.mark.parametrize("seed", range(12))
def test_with_measured_times_the_plan_is_the_best_that_workers_execute(seed: int) -> None:
    """With constants of visits above and below zero; every range has a block.

    Steps of several users are measured in every second problem.
    """
    problem = random_map(seed)
    draw, m = np.random.default_rng(seed), problem.m
    latency_s, per_byte = problem.links
    times = LayerTimes(
        problem.context,
        *draw.uniform(0.1, 1.0, (4, m)).tolist(),
        visit_s=draw.uniform(-0.4, 0.4, m).tolist(),
        answer_s=draw.uniform(0.0, 0.3, m).tolist(),
        latency_s=latency_s.tolist(),
        seconds_per_byte=per_byte.tolist(),
        busy=[step_times(draw, m, users) for users in (1, 3)] if seed % 2 else (),
    )
    problem = problem.replace(times=times)
    blocks = set(problem.model.blocks)
    plans = [
        plan
        for plan in every_plan(problem)
        if all(blocks.intersection(range(x.start, x.end)) for x in plan.ranges)
    ]
    values = [j.value for plan in plans if (j := judge(problem, plan)).feasible]
    found = plan_map(problem)
    if not values:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.value == pytest.approx(min(values), rel=1e-9)
    assert 0 <= lower_bound_s(problem) <= min(values) * (1 + 1e-9)


def step_times(draw: np.random.Generator, m: int, users: int) -> StepTimes:
    """Random ones; now and then the answer takes longest."""
    block_s, head_s = (users * draw.uniform(0.1, 1.0, (2, m))).tolist()
    visit_s = draw.uniform(-0.4, 0.4, m).tolist()
    return StepTimes(users, block_s, head_s, visit_s, draw.uniform(0.0, 9.0, m).tolist())


def test_steps_of_several_users_cost_what_was_measured() -> None:
    """While all devices are busy: linear between numbers of users; one stream has its own price."""
    problem = random_map(5)
    m, count = problem.m, len(problem.model.blocks)
    links = [[0.0] * m] * m
    busy = [
        StepTimes(users, *([seconds] * m for seconds in row))
        for users, row in ((1, (2.0, 4.0, 0.5, 1.0)), (3, (4.0, 4.0, 0.5, 5.0)))
    ]
    alone = [[seconds] * m for seconds in (1.0, 4.0, 2.0, 1.0, 0.0, 0.5)]
    times = LayerTimes(10, *alone, links, links, busy)
    problem = problem.replace(times=times, context=10, objective="throughput")
    plan = MapPlan((LayerRange(0, 0, 2), LayerRange(1, 2, problem.n)))
    crowd = judge(problem.replace(users=4), plan)
    assert crowd.token_s == pytest.approx(count + 4.5)
    # Two groups of two: blocks of 3 s, 4 s behind them, two visits and the answer.
    passage = 3 * count + 4 + 1 + 3
    longest = max(3 * (count - 1) + 4.5, 3.0)
    assert period_s(problem.replace(users=4), plan, 2) == pytest.approx(max(passage, 2 * longest))
    # Beyond three users a step takes no less; tokens for all are chosen in one process.
    answers = LayerTimes(10, *alone, links, links, [StepTimes(1, *[[0.1] * m] * 3, [50.0] * m)])
    slow = problem.replace(users=2, times=answers)
    assert period_s(slow, plan, 2) == pytest.approx(100.0)


def test_measured_times_are_the_costs() -> None:
    """At the context that was measured: blocks, what is behind them, visits, hops, the answer."""
    problem = random_map(5).replace(users=1, objective="latency")
    m = problem.m
    links = [[0.125] * m] * m
    rows = [[seconds] * m for seconds in (1.0, 4.0, 2.0, 1.0, -0.25, 0.5)]
    times = LayerTimes(10, *rows, links, links)
    problem = problem.replace(times=times)
    count, hop_s = len(problem.model.blocks), 0.125 + 0.125 * 16
    found = judge(problem, MapPlan((LayerRange(0, 0, 2), LayerRange(1, 2, problem.n))))
    assert found.token_s == pytest.approx(count + 4 - 2 * 0.25 + hop_s + 0.5)
    assert found.first_token_s > 0.5


def test_random_problems_are_of_every_kind() -> None:
    """Some have no plan, some need several devices, some read from disk."""
    found = [(p, plan_map(p).best) for p in map(random_map, range(24))]
    ranges = [best.plan.ranges for _, best in found if best is not None]
    assert 2 <= len(ranges) < 24
    assert any(len(each) > 1 for each in ranges)
    assert any(x.from_disk for each in ranges for x in each)
    assert {problem.objective for problem, best in found if best} == {"latency", "throughput"}


def test_too_many_devices_are_searched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of them; nothing is claimed to be proved."""
    problem = next(p for p in map(random_map, range(99)) if p.m == 4 and plan_map(p).best)
    best = plan_map(problem).best
    monkeypatch.setattr(planners, "LARGEST_WORK", {"latency": 1.0, "throughput": 1.0})
    found = plan_map(problem)
    assert not found.proved
    assert best is not None
    assert found.best is None or found.best.value >= best.value * (1 - 1e-9)


def equal(count: int, **changes: Any) -> Cluster:
    """Devices alike, each linked with each."""
    one: dict[str, Any] = {"memory_bandwidth": 1e3, "peak_flops": 1e6, "launch_overhead_s": 0.0}
    names = [f"d{k}" for k in range(count)]
    devices = tuple(Device(name, node=name, **(one | changes)) for name in names)
    links = tuple(Link(a, b, 1e6, 1e-6) for a, b in itertools.permutations(names, 2))
    return Cluster(devices, links)


def test_equal_devices_are_used_in_order() -> None:
    """Sets of devices that are alike are looked at once: eight devices make eight sets."""
    problem = MapProblem(tiny(14), equal(8, memory_bytes=60.0), 1, memory_share=1.0)
    found = plan_map(problem)
    assert found.best is not None
    assert [each.device for each in found.best.plan.ranges] == list(range(8))
    assert len(found.by_devices) <= 8


@pytest.mark.parametrize("memory_bytes", [1e6, math.inf])
def test_a_stream_on_one_device_has_no_hops(memory_bytes: float) -> None:
    """What fits on one is not cut for one stream, and is for many; memory may have no limit."""
    cluster = equal(2, memory_bytes=memory_bytes)
    one = plan_map(MapProblem(tiny(6), cluster, 1)).best
    many = plan_map(MapProblem(tiny(6), cluster, 1, users=64, objective="throughput")).best
    assert one is not None
    assert many is not None
    assert len(one.plan.ranges) == 1
    assert len(many.plan.ranges) == 2
    assert many.groups == 2


def test_tables_are_what_the_judge_computes() -> None:
    """Seconds and memory of every range, by prefix sums and one by one."""
    for seed in range(6):
        problem = random_map(seed)
        tables = Tables.of(problem)
        seconds = tables.seconds(1)
        for d in range(problem.m):
            for s, e in itertools.combinations(range(problem.n + 1), 2):
                fits = problem.need_bytes(s, e) <= problem.capacity[d]
                assert (tables.from_disk[d, s, e] == 0) == fits
                if fits:
                    own = problem.decode_s(1)[d, s:e].sum()
                    assert seconds[d, s, e] == pytest.approx(own, rel=1e-12)
                else:
                    spilled = tables.from_disk[d, s, e]
                    assert spilled != 0
                    assert math.isinf(seconds[d, s, e]) == (spilled < 0)
