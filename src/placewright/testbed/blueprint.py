"""Blueprint: namespaces, groups and links to make for a cluster; a pure function."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError

PREFIX = "placewright"


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Namespace, control group and limits of one device.

    Attributes
    ----------
    namespace, group
        Names to be made.
    cpus
        CPU numbers that its processes run on.
    cpu_share
        Cores' worth of time, ``inf`` where its CPUs are its limit.
    """

    device: str
    namespace: str
    group: str
    cpus: tuple[int, ...]
    cpu_share: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Way:
    """One direction between two devices, by their positions.

    Attributes
    ----------
    rate
        Bytes per second.
    channel
        Ways of one channel share its rate.
    given
        Whether the cluster has this link. The others are copies within a node, ways through other
        devices, and the ways back of one-way links, which TCP needs.
    """

    source: int
    target: int
    rate: float
    delay_s: float
    channel: int
    given: bool = True


FULL = 0.9
"""Of a CPU that devices share: the rest is for links and for the process that plans."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All that is made for one cluster.

    Attributes
    ----------
    id
        The prefix of every name, from the cluster's name.
    links_cpu
        The CPU number with the most time to spare: the emulator runs there.
    notes
        Limits that cannot all be kept at once, as text.
    """

    id: str
    slots: tuple[DeviceSlot, ...]
    ways: tuple[Way, ...]
    links_cpu: int
    notes: tuple[str, ...]

    def reachable(self, position: int) -> tuple[int, ...]:
        """The devices that the one at `position` can send to."""
        return tuple(way.target for way in self.ways if way.source == position)


def id_of(name: str) -> str:
    """The prefix of the testbed of the cluster called `name`: readable, and its own."""
    return f"{PREFIX}-{_slug(name, 16)}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def blueprint(cluster: Cluster, cpus: Sequence[int]) -> Blueprint:
    """The blueprint of `cluster` on a machine with these CPU numbers.

    Every device becomes a namespace of its own, also where several share a node: the links of
    the file are between devices, which need an address each.
    """
    for device in cluster.devices:
        refuse_impossible(device, len(cpus))
    name = id_of(cluster.name)
    pinned, load = _pinning(cluster.devices, cpus)
    slots = tuple(_slot(name, k, d, pinned[k]) for k, d in enumerate(cluster.devices))
    least = min(reversed(cpus), key=lambda cpu: load[cpu])
    return Blueprint(name, slots, _ways(cluster), least, tuple(_notes(cluster, cpus)))


def fitted(cluster: Cluster, cpus: Sequence[int]) -> tuple[Cluster, float]:
    """The cluster as this machine can emulate it when all of its devices are busy at once.

    Where devices that share a CPU ask for more than `FULL` of it, everything is slower by one
    factor: devices, bandwidths, and latencies longer. Plans compare on it as on the cluster itself.

    Returns
    -------
    The cluster, or a slower one of the same name; and how many times slower it is.
    """
    chosen, load = _pinning(cluster.devices, cpus)
    shared = [cpu for cpu in cpus if sum(cpu in own for own in chosen) > 1]
    factor = max((load[cpu] / FULL for cpu in shared), default=1.0)
    if factor <= 1.0:
        return cluster, 1.0

    def slower(value: float | None) -> float | None:
        return None if value is None else value / factor

    devices = tuple(
        replace(
            d,
            speed=d.speed / factor,
            peak_flops=slower(d.peak_flops),
            memory_bandwidth=slower(d.memory_bandwidth),
        )
        for d in cluster.devices
    )
    links = tuple(
        replace(k, bandwidth=k.bandwidth / factor, latency_s=k.latency_s * factor)
        for k in cluster.links
    )
    return replace(cluster, devices=devices, links=links), factor


def cpu_share(device: Device) -> float:
    """Cores' worth of CPU time; ``inf`` where its CPUs are its limit."""
    return device.cores * device.speed if device.speed < 1 else float("inf")


def refuse_impossible(device: Device, cores: int) -> None:
    """Raise `InputError` where a machine of `cores` cores cannot be as fast as `device`."""
    where = f"device {device.name!r}"
    if device.speed > 1:
        raise InputError(
            "a testbed cannot be faster than its machine",
            where=where,
            by=f"speed {device.speed:g}",
            hint="divide all speeds by the highest",
        )
    if device.cores > cores:
        raise InputError(
            "the device has more cores than this machine",
            where=where,
            by=f"{device.cores} of {cores}",
            hint=f"give it cores: {cores} or fewer",
        )


def _pinning(
    devices: Sequence[Device], cpus: Sequence[int]
) -> tuple[list[tuple[int, ...]], dict[int, float]]:
    """CPUs of each device, the largest first, each on the least loaded; the load of each CPU."""
    load = dict.fromkeys(cpus, 0.0)
    chosen: list[tuple[int, ...]] = [()] * len(devices)
    by_size = sorted(range(len(devices)), key=lambda k: (-_demand(devices[k]), k))
    for k in by_size:
        least = sorted(load, key=lambda cpu: (load[cpu], cpu))[: devices[k].cores]
        for cpu in least:
            load[cpu] += devices[k].speed
        chosen[k] = tuple(sorted(least))
    return chosen, load


def _demand(device: Device) -> float:
    return device.cores * device.speed


def _slot(name: str, position: int, device: Device, cpus: tuple[int, ...]) -> DeviceSlot:
    own = f"{position}-{_slug(device.name, 24)}"
    return DeviceSlot(
        device.name, f"{name}-{own}", f"{name}/{own}", cpus, cpu_share(device), device.memory_bytes
    )


def _ways(cluster: Cluster) -> tuple[Way, ...]:
    given = [(link, True) for link in cluster.links]
    pairs = {(link.source, link.target) for link in cluster.links}
    back = [_back(link) for link in cluster.links if (link.target, link.source) not in pairs]
    pairs |= {(link.source, link.target) for link in back}
    routed = [k for k in cluster.routed_links() if (k.source, k.target) not in pairs]
    others = (*back, *cluster.local_links(), *routed)
    channels: dict[str, int] = {}
    position = cluster.positions()
    return tuple(
        Way(
            position[link.source],
            position[link.target],
            link.bandwidth,
            link.latency_s,
            channels.setdefault(link.channel, len(channels)),
            own,
        )
        for link, own in (*given, *((link, False) for link in others))
    )


def _back(link: Link) -> Link:
    """The way back of a one-way link, on a channel of its own."""
    return replace(link, source=link.target, target=link.source, channel="")


def _notes(cluster: Cluster, cpus: Sequence[int]) -> list[str]:
    demand = sum(_demand(device) for device in cluster.devices)
    if demand <= len(cpus):
        return []
    return [
        f"{cluster.name}: the devices ask for {demand:g} cores of {len(cpus)}: "
        "when all are busy at once they are slower than they should be"
    ]


def _slug(name: str, length: int) -> str:
    """Lower-case letters and digits of `name`, for names that files and groups can have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:length].strip("-") or "x"
