"""Self-test: measures every link and CPU quota of a testbed against what was asked for.

A link's rate is that of a TCP transfer; its delay is the median time from before a datagram is sent
until the kernel records its arrival at the other interface. Probes of links run in the namespaces
with all of the machine's CPU time; a quota is measured by itself, as CPU time over wall time of a
busy loop.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from operator import sub
from statistics import median
from typing import Any, Final

from placewright.errors import RunError
from placewright.interpreter import python_command, python_environment
from placewright.testbed.node_handle import NodeHandle
from placewright.testbed.testbed import Testbed

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
