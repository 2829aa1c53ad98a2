"""Small problems of device maps, for the conformance kit and for tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device, Link
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.model import LanguageModel, Layer
from placewright.layers.devicemap.plan import MapPlan
from placewright.layers.devicemap.problem import MapProblem

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def random_problem(seed: int) -> MapProblem:
    """Up to five layers, tied or not, on up to four devices, alike or not, some with disks."""
    r = random.Random(seed)
    first = r.randint(30, 100)
    layers = [Layer("embed", ("e",), first, workspace=2)]
    for k in range(r.randint(1, 3)):
        size = r.randint(20, 100)
        block: dict[str, Any] = {"matrices": size, "multiplied": size}
        block |= {"cache_width": r.randint(0, 8), "window": r.choice([0, 5])}
        block |= {"workspace": r.randint(1, 9), "attention_width": 8}
        layers.append(Layer(f"block {k}", (f"b{k}",), size, **block))
    tied = r.choice(["", "embed"])
    layers.append(
        Layer("head", ("h",), first, multiplied=first, workspace=9, prompt_share=0.0, tied=tied)
    )
    m, alike = r.randint(2, 4), r.random() < 0.4
    return MapProblem(
        LanguageModel("m", "none", tuple(layers), 8),
        _cluster(r, m, alike=alike),
        context=10,
        users=r.randint(1, 5),
        prompt=5,
        memory_share=1.0,
        objective="latency" if r.random() < 0.5 else "throughput",
    )


def _cluster(r: random.Random, m: int, *, alike: bool) -> Cluster:
    most, some = (450, (50.0, 90.0)) if r.random() < 0.5 else (900, (None,))

    def device(name: str) -> Device:
        return Device(
            name,
            node=f"node-{name}",
            launch_overhead_s=0.0,
            memory_bytes=r.randint(most // 2, most),
            peak_flops=r.uniform(1e3, 1e4),
            memory_bandwidth=r.uniform(1e2, 1e3),
            disk_bandwidth=r.choice(some),
        )

    names = [f"d{d}" for d in range(m)]
    one = device("one")
    devices = tuple(replace(one, name=n, node=n) if alike else device(n) for n in names)
    links = tuple(
        Link(a, b, 30.0, 0.1) if alike else Link(a, b, r.uniform(10, 100), r.uniform(0, 0.5))
        for a, b in itertools.permutations(names, 2)
        if alike or r.random() < 0.9
    )
    return Cluster(devices, links)


def tiny_instances() -> Mapping[str, MapProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    found = {f"random-{seed}": random_problem(seed) for seed in (0, 2, 5, 8, 9, 10)}
    one = random_problem(0)
    alone = Cluster((Device("d0", memory_bandwidth=1e3, peak_flops=1e4),))
    return found | {
        "one-device": one.replace(cluster=alone),
        "too-large": one.replace(context=100_000, memory_share=0.01),
    }


def random_problems() -> SearchStrategy[MapProblem]:
    """Models and devices with every option."""
    from hypothesis import strategies

    return strategies.builds(random_problem, strategies.integers(0, 2**32 - 1))


def check_plan(problem: MapProblem, plan: MapPlan) -> None:
    """Raise where the plan is none of this problem."""
    judge(problem, plan)


def same_plan(plan: MapPlan, other: MapPlan) -> bool:
    """Whether two plans are equal."""
    return plan == other
