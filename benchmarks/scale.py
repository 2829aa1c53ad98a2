"""Measure time and memory of planning by HEFT against the size of the graph.

    python benchmarks/scale.py [LARGEST]

Layered random instances of growing size on 4 heterogeneous devices, planned by HEFT. Prints a
markdown table: seconds to make and validate the problem, seconds of HEFT (second call, so that
nothing is compiled), seconds per operator, and the process's peak memory.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from harness import Table, run
from placewright import Context, OperatorProblem, judge
from placewright.operators.planners.lists.planners import HEFT

SPEEDS = (1.0, 1.5, 2.5, 4.0)


def instance(n: int, devices: int = len(SPEEDS), seed: int = 0) -> OperatorProblem:
    """Each operator reads one or two of the hundred before it; free links."""
    rng = np.random.default_rng(seed)
    reader = np.concatenate([np.arange(1, n), np.flatnonzero(rng.random(n) < 0.5)])
    reader = reader[reader > 0]
    producer = np.maximum(0, reader - 1 - rng.integers(0, 100, len(reader)))
    by = np.lexsort((reader, producer))
    pairs = np.unique(np.stack([producer[by], reader[by]], axis=1), axis=0)
    made, uses = np.unique(pairs[:, 0], return_counts=True)
    off = 1.0 - np.eye(devices)
    channel = np.full((devices, devices), -1)
    channel[off > 0] = np.arange(devices * (devices - 1))
    return OperatorProblem(
        operator_names=tuple(f"op{i}" for i in range(n)),
        device_names=tuple(f"dev{d}" for d in range(devices)),
        compute_s=rng.uniform(1, 10, (n, 1)) / np.resize(SPEEDS, devices),
        tensor_names=tuple(f"t{k}" for k in range(len(made))),
        tensor_producer=made,
        tensor_bytes=rng.uniform(1, 10, len(made)),
        consumer_offsets=np.concatenate([[0], np.cumsum(uses)]),
        consumers=pairs[:, 1],
        latency_s=0.01 * off,
        seconds_per_byte=0.1 * off,
        channel=channel,
        channel_names=tuple(f"c{x}" for x in range(devices * (devices - 1))),
        resident_bytes=np.zeros(n),
        memory_bytes=np.full(devices, np.inf),
        colocation=np.arange(n),
        pinned=np.full(n, -1),
        links="free",  # type: ignore[arg-type]
        name=f"scale-{n}",
    )


def main(largest: int = 1_000_000) -> None:
    """Print the table, one size a row."""
    table = Table("operators", "make s", "HEFT s", "us per operator", "judge s", "peak GiB", left=0)
    HEFT(instance(100), Context())
    n = 1000
    while n <= largest:
        times_s = [time.perf_counter()]
        problem = instance(n)
        times_s.append(time.perf_counter())
        plan = HEFT(problem, Context())
        times_s.append(time.perf_counter())
        judge(problem, plan)
        made_s, took_s, judged_s = np.diff([*times_s, time.perf_counter()])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        each_us, ends = f"{1e6 * took_s / n:.2f}", (f"{judged_s:.2f}", f"{peak:.2f}")
        table.row(f"{n:,}", f"{made_s:.2f}", f"{took_s:.3f}", each_us, *ends)
        n *= 10


if __name__ == "__main__":
    run(main)
