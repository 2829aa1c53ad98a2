"""Count devices, cuts and transfers in the plans of `auto` and in the simplest plans near them.

    python benchmarks/deployable_plans.py [--seconds S]

Llama 8B from its configuration, without weights (one prefill, analytic profile), over clusters of
five machines of three kinds, on Ethernet; 8B and 70B on equal GPUs of one machine. For each
cluster: devices, cuts along the layers and transfers of the best plan found and of the simplest
within its known error, and both values by the judge.

Ends with 1 where a plan has more than one cut per pair of neighbouring machines used (machines are
neighbours where consecutive layers are on them), or a value further above the best.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import torch

from accelerate_maps import GIB, llama
from placewright import Cluster, Device, Link, OperatorProblem, capture, profile, solve
from placewright.operators.placement_summary import placement_summary
from placewright.operators.planners.deployable import Complexity, Deployable, complexity

KINDS: Mapping[str, tuple[str, float, float, float]] = {
    "workstation": ("gpu", 24, 82e12, 1.0e12),
    "desktop": ("gpu", 12, 51e12, 0.36e12),
    "board": ("gpu", 8, 17e12, 0.1e12),
    "laptop": ("cpu", 32, 0.4e12, 0.06e12),
}
"""Kind of device, GiB, FLOP/s of bfloat16, bytes/s."""

GIGABIT = 125e6
"""Bytes per second."""


def cluster(name: str, kinds: str, bandwidth: float, *, line: bool = False) -> Cluster:
    """One device a machine; every pair has a link, or with `line` only neighbours."""
    devices = [
        Device(
            f"{kind}-{k}",
            kind=KINDS[kind][0],
            node=f"{kind}-{k}",
            memory_bytes=KINDS[kind][1] * GIB,
            peak_flops=KINDS[kind][2],
            memory_bandwidth=KINDS[kind][3],
        )
        for k, kind in enumerate(kinds.split())
    ]
    links = [
        Link(a.name, b.name, bandwidth, 200e-6)
        for i, a in enumerate(devices)
        for j, b in enumerate(devices)
        if i != j and (not line or abs(i - j) == 1)
    ]
    return Cluster(tuple(devices), tuple(links), name)


CLUSTERS = (
    cluster(
        "2 desktops, 2 boards, laptop; 1 Gbit/s", "desktop desktop board board laptop", GIGABIT
    ),
    cluster("the same; 10 Gbit/s", "desktop desktop board board laptop", 10 * GIGABIT),
    cluster("desktop, 3 boards, laptop; 1 Gbit/s", "desktop board board board laptop", GIGABIT),
    cluster("4 boards in a line, laptop", "board board laptop board board", GIGABIT, line=True),
    cluster(
        "workstation, 2 desktops, 2 laptops", "workstation desktop desktop laptop laptop", GIGABIT
    ),
)


def equal_gpus(count: int, memory_gib: float) -> Cluster:
    """GPUs of one machine, 25 GB/s between any two."""
    names = [f"gpu{k}" for k in range(count)]
    devices = [
        Device(
            name,
            kind="gpu",
            node="server",
            memory_bytes=memory_gib * GIB,
            peak_flops=312e12,
            memory_bandwidth=2e12,
        )
        for name in names
    ]
    links = [Link(a, b, 25e9, 10e-6) for a in names for b in names if a != b]
    return Cluster(tuple(devices), tuple(links), f"{count} GPUs of {memory_gib:g} GiB")


def row(problem: OperatorProblem, seconds: float) -> tuple[str, bool]:
    """A line of the table, and whether it is as it must be."""
    result = solve(problem, time_limit_s=seconds)
    best = min((c for c in result.candidates if c.fits), key=lambda c: c.value)
    before, found = complexity(problem, best.plan), complexity(problem, result.plan)
    share = result.value / best.value - 1
    words = placement_summary(result.judgement, result.plan).module_map
    ok = found.cuts <= max(found.pairs, found.devices - 1) and share <= Deployable().tolerance(
        problem, best.plan
    )
    cells = [*_cells(before), f"{best.value:.4f}", *_cells(found), f"{result.value:.4f}"]
    return f"{' | '.join(cells)} | {100 * share:+.2f} % | {result.planner} | {words}", ok


def _cells(found: Complexity) -> list[str]:
    return [str(found.devices), str(found.cuts), str(found.transfers)]


def main() -> int:
    """The table; 1 where a plan is not as simple as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    ids = torch.zeros(1, args.tokens, dtype=torch.long)
    print(
        "| model | cluster | best: devices | cuts | transfers | s | **chosen: devices** | cuts "
        "| transfers | s | to the best | by | |\n|---|---|" + "---:|" * 9 + "---|---|"
    )
    asked = {
        "8b": (*CLUSTERS, equal_gpus(2, 80), equal_gpus(4, 24)),
        "70b": (equal_gpus(8, 80), equal_gpus(8, 24)),
    }
    bad = 0
    for size, clusters in asked.items():
        graph = capture(llama(size), {"input_ids": ids}, name=f"llama-{size}")
        for machines in clusters:
            line, ok = row(profile(graph, machines, method="analytic"), args.seconds)
            bad += not ok
            print(f"| {size} | {machines.name} | {line} |", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
