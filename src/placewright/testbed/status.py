"""Status of a testbed: current limits of devices and links, and packets so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placewright.testbed.teardown import emulator_pid
from placewright.testbed.testbed import Testbed


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device now.

    `cpu_share`: cores' worth of CPU time.
    `processes`: number of processes inside.
    """

    name: str
    address: str
    namespace: str
    cpus: tuple[int, ...]
    cpu_share: float
    memory_bytes: float
    processes: int


@dataclass(frozen=True, slots=True)
class WayStatus:
    """One direction of a link now, and its packets so far.

    Attributes
    ----------
    bandwidth
        Bytes per second.
    bytes
        What applications sent, without headers.
    dropped, marked
        Packets that were lost (no link, a cut, a full queue), and packets with a congestion mark
        (ECN).
    """

    source: str
    target: str
    bandwidth: float
    latency_s: float
    cut: bool
    packets: int
    bytes: int
    dropped: int
    marked: int


@dataclass(frozen=True, slots=True)
class Status:
    """One testbed now.

    Attributes
    ----------
    alive
        All namespaces exist and the emulator runs.
    emulator_pid
        0 where it does not.
    owner_pids
        The processes with the last of which it ends; none where it stays until ``down``.
    """

    name: str
    id: str
    alive: bool
    emulator_pid: int
    owner_pids: tuple[int, ...]
    devices: tuple[DeviceStatus, ...]
    ways: tuple[WayStatus, ...]
    notes: tuple[str, ...]


def status(bed: Testbed) -> Status:
    """The status of `bed`."""
    return Status(
        bed.cluster.name,
        bed.record.id,
        bed.alive,
        emulator_pid(bed.record),
        tuple(owner.pid for owner in bed.record.owners),
        tuple(_device(bed, name) for name in bed.cluster.device_names),
        tuple(_way(bed, way.source, way.target) for way in bed.plan.ways if way.given),
        bed.plan.notes,
    )


def _device(bed: Testbed, name: str) -> DeviceStatus:
    handle, slot = bed.handle(name), bed.plan.slots[bed.cluster.index(name)]
    return DeviceStatus(
        name,
        handle.address,
        handle.namespace,
        handle.cpus,
        bed.cpu_share(name),
        bed.trees.memory_limit(slot.group),
        _processes(Path(handle.groups[0])),
    )


def _processes(group: Path) -> int:
    try:
        return len((group / "cgroup.procs").read_text().split())
    except OSError:
        return 0


def _way(bed: Testbed, i: int, j: int) -> WayStatus:
    names, links = bed.cluster.device_names, bed.links
    counts = (int(links.get(field, i, j)) for field in ("packets", "bytes", "dropped", "marked"))
    return WayStatus(
        names[i],
        names[j],
        links.get("rate", i, j),
        links.get("delay_s", i, j),
        bool(links.get("cut", i, j)),
        *counts,
    )
