"""Measure the memory of a stream of 10,000 batches through split and copied models.

    python benchmarks/stream_memory.py --batches 10000

Six linear layers on three local workers, one process each. The resident memory of every process is
read after a tenth of the batches and at the end; every batch is compared with eager PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import placewright
from harness import Table, joined, run
from placewright import OperatorPlan

DIFFERENT = 16
"""Batches that differ; they come again and again."""


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
) -> list[Any]:
    """Batches that were wrong; by how much each process has grown."""
    wanted, wrong, early = [model(x) for x in data], 0, list[int]()
    inputs, trio = (data[k % DIFFERENT] for k in range(batches)), dict.fromkeys("abc", 1.0)
    how: Any = {"method": "analytic", "objective": "throughput", "emulate": False}
    with placewright.place(model, data[0], joined("trio", trio, 1e9), plan=plan, **how) as placed:
        pids = [os.getpid()]
        for k, output in enumerate(placed.stream(inputs)):
            wrong += not torch.equal(output, wanted[k % DIFFERENT])
            if k == batches // 10:
                session = placed.workers.up
                assert session is not None
                pids += [process.pid for process in session.group.processes]  # type: ignore[attr-defined]
                early = [resident_bytes(pid) for pid in pids]
        late = [resident_bytes(pid) for pid in pids]
    grown = [f"{(b - a) / 1e6:+.1f} MB" for a, b in zip(early, late, strict=True)]
    return [wrong + abs(batches - 1 - k), *grown]


def main(*, batches: int = 10_000) -> None:
    """Print a line for every plan."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).eval()
    data = [torch.randn(16, 256) for _ in range(DIFFERENT)]
    grown = "growth after a tenth, launcher"
    table = Table("plan", "batches", "wrong, lost or doubled", grown, "a", "b", "c")
    with torch.no_grad():
        for name, plan in plans(len(placewright.capture(model, data[0]).operators)):
            table.row(name, batches, *measured(plan, batches, model, data))


if __name__ == "__main__":
    run(main)
