"""A machine as one of its processes sees it: names, cores, GPUs, CPU time, load by others."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError
from placewright.measurement import MachineLoad

if TYPE_CHECKING:
    from placewright.runtime.session import Session


NODE_VARIABLE = "PLACEWRIGHT_NODE"

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of CUDA's driver, of that under Windows, and of ROCm's: without them there is no GPU."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a process knows of the machine it is on.

    Attributes
    ----------
    name
        ``$PLACEWRIGHT_NODE``, else the host's name: matched with a cluster's nodes.
    boot
        Alike in all processes of one running kernel: they share a clock and its cores.
    cores
        CPU numbers that the process may use.
    gpus
        Names of the GPUs that the process may use.
    """

    name: str
    boot: str
    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Host:
        """The calling process's machine."""
        return cls(name_here(), _boot(), tuple(sorted(os.sched_getaffinity(0))), _gpus())


def name_here() -> str:
    """``$PLACEWRIGHT_NODE``, else the host's name."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname()


def loopback() -> str:
    """The network interface that only processes of this machine can use; empty if there is none."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _gpus() -> tuple[str, ...]:
    """By the launcher's names where it hands out GPUs, so that two processes never share one."""
    if "torch" not in sys.modules and not any(map(os.path.exists, _DRIVERS)):
        return ()  # without PyTorch's 200 MB
    import torch

    if not torch.cuda.is_available():
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return tuple(visible.split(",")[:count]) if visible else tuple(map(str, range(count)))


def assign_ranks(cluster: Cluster, hosts: Sequence[Host]) -> dict[str, int]:
    """Device name -> rank of the process that serves it.

    By node where processes are on hosts named as the cluster's nodes, else in order: the first
    process serves the first device.

    `hosts`: by rank, as many as there are devices.
    Raises `InputError`: some hosts have the names of nodes, and a node has more or fewer processes
    than devices.
    """
    wanted = Counter(device.node for device in cluster.devices)
    there = Counter(host.name for host in hosts)
    if not set(wanted) & set(there):
        return {name: rank for rank, name in enumerate(cluster.device_names)}
    for node, count in wanted.items():
        if there[node] != count:
            raise InputError(
                f"node {node!r} has {count} devices and {there[node]} processes",
                where=cluster.name,
                by="processes are on " + ", ".join(f"{n} ({c})" for n, c in there.items()),
                hint=f"start one process per device there; {NODE_VARIABLE}={node} in its "
                "environment names the node that a machine is",
            )
    free = {n: [r for r, host in enumerate(hosts) if host.name == n] for n in wanted}
    return {device.name: free[device.node].pop(0) for device in cluster.devices}


STAT = Path("/proc/stat")
PROCESSES = Path("/proc")

IDLE = (3, 4)
"""Columns of a line of `STAT` in which nothing is done: idle, and waiting for a disk."""

GUEST = 8
"""From this column on, what other columns have already."""


def busy_seconds(cores: Collection[int] | None = None) -> float | None:
    """CPU seconds spent on these cores since the system started; ``None`` where unknown.

    Of all CPUs where no cores are named. What a hypervisor took away counts too.
    """
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    wanted, total = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}, 0
    for line in lines:
        name, *columns = line.split()
        if name in wanted:
            ticks = [int(column) for column in columns[:GUEST]]
            total += sum(ticks) - sum(ticks[k] for k in IDLE)
    return total / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU seconds of a process, 0 once it is gone."""
    columns = _stat(pid)
    if not columns:
        return 0.0
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; one that a debugger holds was not."""
    return _stat(pid)[:1] == ["T"]


def children_of(pid: int) -> list[int]:
    """Child processes, of all threads."""
    found: list[int] = []
    for file in (PROCESSES / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _stat(pid: int) -> list[str]:
    """Columns after the name, which may hold anything; none once the process is gone."""
    try:
        stat = (PROCESSES / str(pid) / "stat").read_bytes()
    except OSError:
        return []
    return stat.rpartition(b")")[2].decode("ascii").split()


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
