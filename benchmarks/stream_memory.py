"""Measure the memory of a stream of 10,000 batches through split and copied models.

    python benchmarks/stream_memory.py --batches 10000

Six linear layers on three local workers, one process each. The resident memory of every process is
read after a tenth of the batches and at the end; every batch is compared with eager PyTorch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import placewright
from placewright import Cluster, Device, Link, OperatorPlan

DIFFERENT = 16
"""Batches that differ; they come again and again."""


def trio() -> Cluster:
    """Three devices of one machine."""
    links = tuple(Link(a, b, 1e9, 1e-4) for a in "abc" for b in "abc" if a != b)
    return Cluster(tuple(Device(name, node=name) for name in "abc"), links, "trio")


def plans(count: int) -> Iterator[tuple[str, OperatorPlan]]:
    """For a chain of so many operators."""
    third, half = np.arange(count) * 3 // count, np.arange(count) * 2 // count
    yield "split over three", OperatorPlan(third)
    whole = np.zeros(count, dtype=np.int64)
    yield "copies of the model", OperatorPlan(whole, replica_of=np.array([0, 0, 0]))
    yield "copies of the first half", OperatorPlan(2 * half, replica_of=np.array([0, 0, 2]))


def resident_bytes(pid: int) -> int:
    """Of one process, without pages that it shares with others by a file."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def measured(
    plan: OperatorPlan, batches: int, model: nn.Module, data: list[torch.Tensor]
) -> tuple[int, list[int], list[int]]:
    """Batches that were wrong; bytes of each process early and at the end."""
    wanted, wrong, early = [model(x) for x in data], 0, list[int]()
    inputs = (data[k % DIFFERENT] for k in range(batches))
    with placewright.place(
        model, data[0], trio(), plan=plan, method="analytic", objective="throughput", emulate=False
    ) as placed:
        pids = [os.getpid()]
        for k, output in enumerate(placed.stream(inputs)):
            wrong += not torch.equal(output, wanted[k % DIFFERENT])
            if k == batches // 10:
                session = placed.workers.up
                assert session is not None
                pids += [process.pid for process in session.group.processes]  # type: ignore[attr-defined]
                early = [resident_bytes(pid) for pid in pids]
        return wrong + abs(batches - 1 - k), early, [resident_bytes(pid) for pid in pids]


def main() -> None:
    """Print a line for every plan."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=10_000)
    batches = parser.parse_args().batches
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).eval()
    data = [torch.randn(16, 256) for _ in range(DIFFERENT)]
    count = len(placewright.capture(model, data[0]).operators)
    print(
        "| plan | batches | wrong, lost or doubled | growth after a tenth, launcher | a | b | c |"
    )
    print("|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for name, plan in plans(count):
            wrong, early, late = measured(plan, batches, model, data)
            grown = [f"{(b - a) / 1e6:+.1f} MB" for a, b in zip(early, late, strict=True)]
            print(f"| {name} | {batches} | {wrong} | {' | '.join(grown)} |", flush=True)


if __name__ == "__main__":
    main()
