"""A testbed as text: what its devices and links get, and what was requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from placewright.io.units import BYTES, SECONDS
from placewright.io.units import show as quantity
from placewright.report.text import plain_table, size

if TYPE_CHECKING:
    from placewright.testbed.selftest import Finding
    from placewright.testbed.status import Status


def testbed_table(state: Status) -> str:
    """One line about the whole, then devices, then links."""
    life = f"emulator {state.emulator_pid}" if state.alive else "NOT WORKING: `up` restarts it"
    parts = [f"testbed {state.name} ({state.id}): {life}, {_stays(state)}", _devices(state)]
    return "\n".join(parts + ([_links(state)] if state.ways else []))


testbed_table.__test__ = False  # type: ignore[attr-defined]  # pytest would collect the name


def _stays(state: Status) -> str:
    pids = ", ".join(map(str, state.owner_pids))
    if len(state.owner_pids) > 1:
        return f"with the last of processes {pids}"
    return f"with process {pids}" if pids else "until `down`"


def _devices(state: Status) -> str:
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


def _links(state: Status) -> str:
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
