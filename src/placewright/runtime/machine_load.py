"""CPU time of a machine that processes other than a session's own take."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.measurement.measurement import MachineLoad
from placewright.runtime.host import PROCESSES, Host, busy_seconds, process_seconds

if TYPE_CHECKING:
    from placewright.runtime.session import Session

SHORTEST_S, SHORTEST_ROUND_S = 0.1, 0.3
"""Shorter measurements and rounds are left out: the system counts hundredths of a second."""

EMULATOR = b"placewright.testbed.emulator"

Reading = tuple[float, float, float | None]
"""Clock, CPU seconds of a process and of all on its cores, ``None`` where unknown."""


def cpu_reading(cores: Collection[int]) -> Reading:
    """What the calling process, and all processes on these cores, have used so far."""
    return time.perf_counter(), time.process_time(), busy_seconds(cores)


@dataclass(slots=True)
class LoadMeter:
    """Adds up what others did while rounds of steps were measured.

    `other_s`, `wall_s`: by machine, over all rounds.
    `peak`: by machine, CPUs in the worst round.
    """

    session: Session
    other_s: dict[str, float] = field(default_factory=dict)
    wall_s: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Count what happens inside."""
        before, own = self._readings(), self._ours()
        yield
        after, here = self._readings(), Host.here().boot
        spent = self._ours() - own
        hosts = self.session.group.hosts
        for boot in {host.boot for host in hosts[: len(after)]}:
            # Workers of one machine see the same total, each its own part of it.
            ranks = [r for r in range(len(after)) if hosts[r].boot == boot]
            self._add(boot, [(before[r], after[r]) for r in ranks], spent if boot == here else 0.0)

    def load(self) -> MachineLoad | None:
        """The machine with the highest load by others; ``None`` where unknown or too brief."""
        if max(self.wall_s.values(), default=0.0) < SHORTEST_S:
            return None
        boot = max(self.wall_s, key=lambda b: self.other_s[b] / self.wall_s[b])
        hosts, devices = self.session.group.hosts, self.session.cluster.devices
        processes = self.session.layout.processes
        on = [d for d, p in zip(devices, processes, strict=True) if hosts[p].boot == boot]
        host = next(h for h in hosts if h.boot == boot)
        mean = self.other_s[boot] / self.wall_s[boot]
        return MachineLoad(
            host=host.name,
            cpus=len(host.cores),
            cores=min(len(host.cores), sum(d.cores for d in on if d.kind == "cpu")),
            other_cpus=mean,
            peak_cpus=max(mean, self.peak.get(boot, 0.0)),
        )

    def _add(self, boot: str, pairs: Sequence[tuple[Reading, Reading]], ours: float) -> None:
        # Any worker's reading of the whole machine; all of its own are subtracted.
        (start, _, first), (end, _, last) = pairs[0]
        if first is None or last is None:
            return
        own = sum(b[1] - a[1] for a, b in pairs) + ours
        other, wall = max(0.0, last - first - own), end - start
        self.other_s[boot] = self.other_s.get(boot, 0.0) + other
        self.wall_s[boot] = self.wall_s.get(boot, 0.0) + wall
        if wall >= SHORTEST_ROUND_S:
            self.peak[boot] = max(self.peak.get(boot, 0.0), other / wall)

    def _ours(self) -> float:
        """CPU seconds of the process that gives orders, and of a testbed's link emulators."""
        emulators = _emulators() if self.session.engine.name == "testbed" else []
        return time.process_time() + sum(map(process_seconds, emulators))

    def _readings(self) -> list[Reading]:
        """By rank; a worker may have been pinned, so its machine's cores are named."""
        group = self.session.group
        cores = [(group.hosts[rank].cores,) for rank in range(len(group.specs))]
        return group.order("cpu_reading", cores)


def _emulators() -> list[int]:
    """Processes that emulate links on this machine."""
    found = []
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            if EMULATOR in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
