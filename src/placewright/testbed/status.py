"""Status and self-test of a testbed: current limits, packets so far, and measured links and quotas.

A link's rate is that of a TCP transfer; its delay is the median time from before a datagram is sent
until the kernel records its arrival at the other interface. Probes of links run in the namespaces
with all of the machine's CPU time; a quota is measured by itself, as CPU time over wall time of a
busy loop.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import sub
from pathlib import Path
from statistics import median
from typing import Any, Final

from placewright.errors import RunError
from placewright.interpreter import python_command, python_environment
from placewright.io.units import BYTES, SECONDS
from placewright.io.units import show as quantity
from placewright.report.text import plain_table, size
from placewright.testbed.record import NodeHandle, emulator_pid
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


RATE_TOLERANCE: Final = 0.03
SHARE_TOLERANCE: Final = 0.03
DELAY_TOLERANCE_S: Final = 0.5e-3

_TRANSFER_S: Final = 0.6
_LEAST_BYTES, _MOST_BYTES = 100_000, 400_000_000
_SPIN_S: Final = 2.0
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured quantity of a testbed.

    Attributes
    ----------
    what
        ``rate`` (bytes per second), ``delay`` (seconds, one way) or ``cpu`` (cores).
    where
        The link or device.
    tolerance
        Relative for rates and shares, seconds for delays.
    """

    what: str
    where: str
    asked: float
    got: float
    tolerance: float

    @property
    def off(self) -> float:
        """Got against asked: relative, for delays in seconds."""
        difference = self.got - self.asked
        return difference if self.what == "delay" else difference / self.asked

    @property
    def ok(self) -> bool:
        """Whether it is within its tolerance."""
        return abs(self.off) <= self.tolerance


def selftest(bed: Testbed) -> Iterator[Finding]:
    """Measure all links and quotas of `bed`, one at a time.

    A probe that fails (a link that is cut, for example) raises `RunError` with its message.
    """
    for way in bed.plan.ways:
        if way.given:
            yield from _link(bed, way.source, way.target)
    for device in bed.cluster.device_names:
        yield _cpu(bed, device)


def _link(bed: Testbed, i: int, j: int) -> tuple[Finding, Finding]:
    names = bed.cluster.device_names
    rate, delay_s = bed.links.get("rate", i, j), bed.links.get("delay_s", i, j)
    size = int(min(_MOST_BYTES, max(_LEAST_BYTES, rate * _TRANSFER_S)))
    got_rate, got_s = _transfer(_outside(bed, names[i]), _outside(bed, names[j]), size)
    where = f"{names[i]} -> {names[j]}"
    return (
        Finding("rate", where, rate, got_rate, RATE_TOLERANCE),
        Finding("delay", where, delay_s, got_s, DELAY_TOLERANCE_S),
    )


def _outside(bed: Testbed, device: str) -> NodeHandle:
    """A handle in the namespace of `device`, with all of the machine's CPU time."""
    return replace(bed.handle(device), groups=(), cpus=bed.record.cpus)


def _transfer(source: NodeHandle, target: NodeHandle, size: int) -> tuple[float, float]:
    """Bytes per second and the delay in seconds."""
    server = _start("serve", target)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    client = _start("call", source, target.address, port, str(size))
    try:
        there, here = _answer(server), _answer(client)
    finally:
        for process in (server, client):
            process.kill()
            process.communicate()
    late_ns = median(map(sub, there["arrived_ns"], here["sent_ns"]))
    return there["rate"], late_ns * 1e-9


def _cpu(bed: Testbed, device: str) -> Finding:
    """Measure one busy loop per core of the device, together."""
    asked = bed.cpu_share(device)
    handle = bed.handle(device)
    spins = [_start("spin", handle, str(_SPIN_S)) for _ in handle.cpus]
    got = sum(_answer(process)["share"] for process in spins)
    return Finding("cpu", device, asked, got, SHARE_TOLERANCE)


def _start(role: str, handle: NodeHandle, *rest: str) -> subprocess.Popen[str]:
    program = ("-m", "placewright.testbed.probe")
    return subprocess.Popen(
        python_command(*program, role, json.dumps(asdict(handle)), *rest),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )


def _answer(probe: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON that a probe printed last."""
    try:
        out, message = probe.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        probe.kill()
        out, message = probe.communicate()
        message = message or f"no answer in {_TIMEOUT_S:g} s"
    if probe.returncode:
        lines = message.strip().splitlines() or [f"it ended with code {probe.returncode}"]
        raise RunError("a probe failed", where="selftest", by=lines[-1])
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer
