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

from itertools import pairwise, permutations

from accelerate_maps import ETHERNET, PCIE, Size, cluster, device, llama
from harness import Table, run
from placewright import Cluster, Link, OperatorProblem, profile, solve
from placewright.operators.placement_summary import placement_summary
from placewright.operators.planners.deployable import Complexity, Deployable, complexity


def machines(name: str, kinds: str, bandwidth: float = ETHERNET, *, line: bool = False) -> Cluster:
    """One device a machine; every pair has a link, or with `line` only neighbours."""
    names = [f"{kind}-{k}" for k, kind in enumerate(kinds.split())]
    devices = tuple(device(n, n.partition("-")[0], node=n) for n in names)
    pairs = [p for a, b in pairwise(names) for p in ((a, b), (b, a))] if line else None
    ends = pairs or permutations(names, 2)
    return Cluster(devices, tuple(Link(a, b, bandwidth, 200e-6) for a, b in ends), name)


BOARDS = "desktop desktop board board laptop"
PROBLEMS: dict[Size, tuple[Cluster, ...]] = {
    "8b": (
        machines("2 desktops, 2 boards, laptop; 1 Gbit/s", BOARDS),
        machines("the same; 10 Gbit/s", BOARDS, 10 * ETHERNET),
        machines("desktop, 3 boards, laptop; 1 Gbit/s", "desktop board board board laptop"),
        machines("4 boards in a line, laptop", "board board laptop board board", line=True),
        machines("workstation, 2 desktops, 2 laptops", "workstation desktop desktop laptop laptop"),
        cluster("2 GPUs of 80 GiB", "a100 " * 2, PCIE),
        cluster("4 GPUs of 24 GiB", "a100-24 " * 4, PCIE),
    ),
    "70b": (
        cluster("8 GPUs of 80 GiB", "a100 " * 8, PCIE),
        cluster("8 GPUs of 24 GiB", "a100-24 " * 8, PCIE),
    ),
}


def row(problem: OperatorProblem, seconds: float) -> tuple[list[str], bool]:
    """Cells of the table, and whether the plan is as it must be."""
    result = solve(problem, time_limit_s=seconds)
    best = min((c for c in result.candidates if c.fits), key=lambda c: c.value)
    before, found = complexity(problem, best.plan), complexity(problem, result.plan)
    share = result.value / best.value - 1
    words = placement_summary(result.judgement, result.plan).module_map
    simple = found.cuts <= max(found.pairs, found.devices - 1)
    cells = [*_cells(before), f"{best.value:.4f}", *_cells(found), f"{result.value:.4f}"]
    near = share <= Deployable().tolerance(problem, best.plan)
    return [*cells, f"{100 * share:+.2f} %", result.planner, words], simple and near


def _cells(found: Complexity) -> list[str]:
    return [str(found.devices), str(found.cuts), str(found.transfers)]


def main(*, seconds: float = 30.0, tokens: int = 512) -> int:
    """The table; 1 where a plan is not as simple as it must be."""
    counts = ("cuts", "transfers", "s")
    head = ("best: devices", *counts, "**chosen: devices**", *counts, "to the best", "by", "")
    table, bad = Table("model", "cluster", *head, left=2), 0
    for size, clusters in PROBLEMS.items():
        _, graph = llama(size, tokens)
        for on in clusters:
            cells, good = row(profile(graph, on, method="analytic"), seconds)
            bad += not good
            table.row(size, on.name, *cells)
    return int(bad > 0)


if __name__ == "__main__":
    run(main)
