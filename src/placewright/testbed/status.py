"""Status of a testbed: current limits of devices and links, and packets so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.io.units import BYTES, SECONDS
from placewright.io.units import show as quantity
from placewright.report.text import plain_table, size
from placewright.testbed.teardown import emulator_pid
from placewright.testbed.testbed import Testbed

if TYPE_CHECKING:
    from placewright.testbed.selftest import Finding


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
class TestbedStatus:
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


def status(bed: Testbed) -> TestbedStatus:
    """The status of `bed`."""
    return TestbedStatus(
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


def testbed_table(state: TestbedStatus) -> str:
    """One line about the whole, then devices, then links."""
    life = f"emulator {state.emulator_pid}" if state.alive else "NOT WORKING: `up` restarts it"
    parts = [f"testbed {state.name} ({state.id}): {life}, {_stays(state)}", _devices(state)]
    return "\n".join(parts + ([_links(state)] if state.ways else []))


testbed_table.__test__ = False  # type: ignore[attr-defined]  # pytest would collect the name


def _stays(state: TestbedStatus) -> str:
    pids = ", ".join(map(str, state.owner_pids))
    if len(state.owner_pids) > 1:
        return f"with the last of processes {pids}"
    return f"with process {pids}" if pids else "until `down`"


def _devices(state: TestbedStatus) -> str:
    rows = [
        (
            device.name,
            device.address,
            ",".join(map(str, device.cpus)),
            f"{device.cpu_share:g}",
            size(device.memory_bytes),
            str(device.processes),
        )
        for device in state.devices
    ]
    header = ("device", "address", "on CPUs", "cores", "memory", "processes")
    return plain_table(header, rows, "  rrrr")


def _links(state: TestbedStatus) -> str:
    rows = [
        (
            f"{way.source} -> {way.target}",
            "cut" if way.cut else rate(way.bandwidth),
            quantity(way.latency_s, SECONDS, digits=4),
            str(way.packets),
            quantity(way.bytes, BYTES),
            str(way.dropped),
        )
        for way in state.ways
    ]
    header = ("link", "bandwidth", "latency", "packets", "carried", "lost")
    return plain_table(header, rows, " rrrrr")


def findings_table(findings: Sequence[Finding]) -> str:
    """Asked, got, how far off, and whether that is within the tolerance."""
    rows = [
        (f.what, f.where, _value(f, f.asked), _value(f, f.got), _off(f), "ok" if f.ok else "OFF")
        for f in findings
    ]
    return plain_table(("what", "where", "asked", "got", "off", ""), rows, "  rrr")


def rate(bytes_per_second: float) -> str:
    """``100 Mbit/s``: networks are spoken of in bits."""
    return f"{bytes_per_second * 8e-6:.4g} Mbit/s"


def _value(finding: Finding, value: float) -> str:
    if finding.what == "rate":
        return rate(value)
    return f"{value * 1e3:.3f} ms" if finding.what == "delay" else f"{value:.3f}"


def _off(finding: Finding) -> str:
    if finding.what == "delay":
        return f"{finding.off * 1e3:+.3f} ms"
    return f"{finding.off * 100:+.2f} %"
