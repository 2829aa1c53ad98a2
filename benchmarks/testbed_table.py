"""Measure the rates, delays and CPU quotas of testbeds of 2 to 6 nodes against the requested ones.

    python benchmarks/testbed_table.py [--nodes 2 3 4 5 6]

As root. For each number of nodes a cluster of heterogeneous devices and links (every pair is
joined) is made real, every link and quota is measured by `testbed selftest`, and the worst is
printed; then the delay of one link while every core computes, the emulator's own use of the CPU,
and the rate of a link without a limit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, cycle
from pathlib import Path

from harness import Table, run
from placewright import Cluster, Device, Link, Testbed
from placewright.testbed.record import emulator_pid
from placewright.testbed.status import Finding, findings_table, selftest

RATES = (125e6, 12.5e6, 1.25e6, 62.5e6, 2.5e6)
DELAYS_S = (0.2e-3, 1e-3, 5e-3, 0.0, 20e-3)
SPEEDS = (1.0, 0.5, 0.25, 0.1, 0.75, 0.33)
SPIN = "while True: pass"


def full_cluster(nodes: int) -> Cluster:
    """`nodes` heterogeneous devices, every pair joined by a link of its own."""
    devices = tuple(Device(f"n{k}", node=f"n{k}", speed=SPEEDS[k]) for k in range(nodes))
    shapes = cycle(zip(RATES, DELAYS_S, strict=True))
    links: list[Link] = []
    for (a, b), (rate, delay_s) in zip(combinations(range(nodes), 2), shapes, strict=False):
        there = Link(f"n{a}", f"n{b}", rate, delay_s)
        links += [there, replace(there, source=f"n{b}", target=f"n{a}", channel="")]
    return Cluster(devices, tuple(links), name=f"benchmark-{nodes}")


def worst(findings: list[Finding]) -> list[str]:
    """Cells of a row: how many of each, and the worst of each."""
    cells = []
    for what in ("rate", "delay", "cpu"):
        off = [abs(f.off) for f in findings if f.what == what]
        text = f"{max(off) * 1e3:.2f} ms" if what == "delay" else f"{max(off) * 100:.2f} %"
        cells += [str(len(off)), text]
    return [*cells, "yes" if all(f.ok for f in findings) else "no"]


def with_busy_cores(bed: Testbed) -> list[Finding]:
    """The first link, measured while every core computes."""
    spins = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in bed.record.cpus]
    try:
        findings: Iterator[Finding] = selftest(bed)
        return [next(findings), next(findings)]
    finally:
        for process in spins:
            process.kill()
            process.wait()


def emulator_s(bed: Testbed) -> float:
    """CPU seconds of the emulator so far."""
    stat = Path(f"/proc/{emulator_pid(bed.record)}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / 100


def price() -> None:
    """What the emulator costs, and how fast it can be."""
    pair = (Device("a", node="a"), Device("b", node="b"))
    cluster = Cluster(pair, (Link("a", "b", 125e6, 0.2e-3),), name="benchmark-price")
    with Testbed.up(cluster) as bed:
        print("\nOne link of 1 Gbit/s and 0.2 ms while every core computes:\n")
        print(findings_table(with_busy_cores(bed)))
        before = emulator_s(bed)
        finding = next(iter(selftest(bed)))
        carried = max(125e6 * 0.6, 1.0)
        used = emulator_s(bed) - before
        print(f"\nemulator: {used / (carried / finding.got):.2f} of a core at 1 Gbit/s")
        bed.set_link("a", "b", bandwidth=125e9)
        fastest = next(iter(selftest(bed)))
        print(f"without a limit: {fastest.got * 8e-9:.1f} Gbit/s")


def main(*, nodes: tuple[int, ...] = (2, 3, 4, 5, 6), all_: bool = False) -> None:
    """Print the table; `all_`: every finding, not only the worst."""
    head = ("worst rate", "delays", "worst delay", "quotas", "worst quota", "all ok")
    table, every = Table("nodes", "links", *head), list[Finding]()
    for count in nodes:
        with Testbed.up(full_cluster(count)) as bed:
            findings = list(selftest(bed))
        table.row(count, *worst(findings))
        every += [f for f in findings if all_ or not f.ok]
    if every:
        print(findings_table(every))
    price()


if __name__ == "__main__":
    run(main)
