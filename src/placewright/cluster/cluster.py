"""Node and Cluster: what a model runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewright.cluster.devices import Device, Link, detected_devices, machine_name
from placewright.errors import InputError, check_known
from placewright.io.arguments import checked
from placewright.io.units import BANDWIDTH, FLOPS, show
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.report.text import counted, plain_table, seconds, size

__all__ = [
    "LOCAL_BANDWIDTH",
    "LOCAL_LATENCY_S",
    "ROUTED_BYTES",
    "Cluster",
    "Device",
    "Link",
    "Node",
]


@checked
@dataclass(frozen=True, slots=True)
class Node:
    """A host and the devices it holds."""

    name: str
    devices: tuple[Device, ...]


@checked
@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the links between them.

    Devices on one node that no link joins, either way, copy through host memory at
    `LOCAL_BANDWIDTH`. Devices on different nodes without a link send over the fastest way through
    other devices (`routed_links`), and cannot send where there is none.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    name: str = "cluster"

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError("a cluster needs at least one device", where=self.name)
        names = Counter(d.name for d in self.devices)
        twice = [n for n, count in names.items() if count > 1]
        if twice:
            raise InputError(f"device name {twice[0]!r} is used twice", where=self.name)
        seen: set[tuple[str, str]] = set()
        for link in self.links:
            for end in (link.source, link.target):
                check_known("device", end, names, where=f"{self.name}: links")
            if (link.source, link.target) in seen:
                raise InputError(
                    f"two links from {link.source!r} to {link.target!r}",
                    where=f"{self.name}: links",
                    hint="keep one, or set `duplex: false` on both directions",
                )
            seen.add((link.source, link.target))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The hosts, in order of their first device."""
        held: dict[str, list[Device]] = {}
        for device in self.devices:
            held.setdefault(device.node, []).append(device)
        return tuple(Node(name, tuple(devices)) for name, devices in held.items())

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(d.name for d in self.devices)

    @checked
    def part(self, names: Collection[str]) -> Cluster:
        """The devices called `names`, in this order, and the links between them."""
        return replace(
            self,
            devices=tuple(d for d in self.devices if d.name in names),
            links=tuple(k for k in self.links if k.source in names and k.target in names),
        )

    @checked
    def index(self, name: str) -> int:
        """Position of the device called `name`."""
        check_known("device", name, self.device_names, where=self.name)
        return self.device_names.index(name)

    def positions(self) -> dict[str, int]:
        """Position of every device by name, for those who look up many."""
        return {name: k for k, name in enumerate(self.device_names)}

    def link_arrays(self) -> tuple[FloatArray, FloatArray, IntArray, tuple[str, ...]]:
        """Latency, seconds per byte and channel of every ordered pair of devices.

        Returns
        -------
        latency_s, seconds_per_byte
            Shape (devices, devices); zero on the diagonal, ``inf`` without a link or a route.
        channel
            Shape (devices, devices); index into the channel names, -1 without one.
        names
            Channel names.
        """
        m = len(self.devices)
        latency, per_byte = np.full((m, m), np.inf), np.full((m, m), np.inf)
        channel = np.full((m, m), -1, dtype=np.int64)
        names: dict[str, int] = {}
        position = self.positions()
        for link in (*self.links, *self.local_links(), *self.routed_links()):
            i, j = position[link.source], position[link.target]
            latency[i, j], per_byte[i, j] = link.latency_s, 1.0 / link.bandwidth
            channel[i, j] = names.setdefault(link.channel, len(names))
        np.fill_diagonal(latency, 0.0)
        np.fill_diagonal(per_byte, 0.0)
        return latency, per_byte, channel, tuple(names)

    def local_links(self) -> list[Link]:
        """The host-memory copies between devices of one node that no given link joins.

        A one-way link replaces the copies of both directions: there is no way back.
        """
        joined = {frozenset((link.source, link.target)) for link in self.links}
        return [
            Link(a.name, b.name, LOCAL_BANDWIDTH, LOCAL_LATENCY_S)
            for a in self.devices
            for b in self.devices
            if a.name != b.name and a.node == b.node and {a.name, b.name} not in joined
        ]

    def routed_links(self) -> list[Link]:
        """What the network makes of links one after another, for nodes' devices that none joins.

        Packets are forwarded as they come: latencies add up, the slowest link sets the bandwidth,
        and a transfer holds that link's channel. Of several ways the one on which a message of
        `ROUTED_BYTES` is fastest, link by link.
        """
        direct = [*self.links, *self.local_links()]
        position = self.positions()
        of_pair = {(position[k.source], position[k.target]): k for k in direct}
        m, names = len(self.devices), self.device_names
        cost = np.full((m, m), np.inf)
        for (i, j), link in of_pair.items():
            cost[i, j] = link.latency_s + ROUTED_BYTES / link.bandwidth
        following = np.tile(np.arange(m), (m, 1))
        for k in range(m):
            way = cost[:, k, None] + cost[None, k, :]
            shorter = way < cost
            cost[shorter] = way[shorter]
            following[shorter] = np.broadcast_to(following[:, k, None], (m, m))[shorter]
        found = []
        for i, j in np.argwhere(np.isfinite(cost)).tolist():
            if (i, j) in of_pair or self.devices[i].node == self.devices[j].node:
                continue
            hops, at = [], i
            while at != j:
                step = int(following[at, j])
                hops.append(of_pair[at, step])
                at = step
            slowest = min(hops, key=lambda link: link.bandwidth)
            latency_s = sum(link.latency_s for link in hops)
            found.append(Link(names[i], names[j], slowest.bandwidth, latency_s, slowest.channel))
        return found

    @staticmethod
    @checked
    def from_file(path: str | Path) -> Cluster:
        """Read a cluster.yaml."""
        from placewright.io.boundary import read_text

        return Cluster.from_text(read_text(path), where=str(path), name=Path(path).stem)

    @staticmethod
    @checked
    def from_text(text: str, *, where: str, name: str = "cluster") -> Cluster:
        """A cluster from YAML text; an `InputError` names `where`, the line and the field."""
        from placewright.cluster.schema import parse_cluster
        from placewright.io.boundary import errors_in

        entry = parse_cluster(text, where)
        with errors_in(where):
            return Cluster(entry.made_devices(), entry.made_links(), entry.name or name)

    @staticmethod
    @checked
    def preset(name: str) -> Cluster:
        """A cluster that ships with Placewright, for example ``edge-duo``."""
        from placewright.cluster.schema import preset_text

        return Cluster.from_text(preset_text(name), where=f"preset {name}", name=name)

    @staticmethod
    def detect() -> Cluster:
        """The devices of this machine."""
        return Cluster(detected_devices(), name=machine_name())

    def _repr_html_(self) -> str:
        """What notebooks show: the drawing, of very many hosts the table."""
        from placewright.cluster.drawing import cluster_drawing  # which few programs need
        from placewright.report.page import html_fragment, scroll, tag, text

        drawn = cluster_drawing(self)
        return html_fragment(scroll(drawn) if drawn else tag("pre", text(repr(self))))

    def __repr__(self) -> str:
        return _cluster_table(self)


LOCAL_BANDWIDTH = 8e9
"""Bytes per second between devices of one node that no link joins (host memory copy)."""

LOCAL_LATENCY_S = 30e-6
"""Seconds for the same."""


ROUTED_BYTES = 1e6
"""A message of this size decides which of several ways is the fastest."""


def device_cells(device: Device) -> tuple[str, ...]:
    """Name, kind, node, cores, speed, memory, peak and memory bandwidth as text."""
    return (
        device.name,
        device.kind,
        device.node,
        str(device.cores),
        f"{device.speed:g}",
        size(device.memory_bytes),
        "-" if device.peak_flops is None else show(device.peak_flops, FLOPS),
        "-" if device.memory_bandwidth is None else show(device.memory_bandwidth, BANDWIDTH),
    )


def link_cells(link: Link) -> tuple[str, ...]:
    """Source, target, bandwidth, latency and channel as text."""
    own = link.channel == f"{link.source}->{link.target}"
    numbers = (show(link.bandwidth, BANDWIDTH), seconds(link.latency_s))
    return (link.source, link.target, *numbers, "own" if own else link.channel)


def _cluster_table(cluster: Cluster) -> str:
    """Devices, then links."""
    header = ("device", "kind", "node", "cores", "speed", "memory", "peak", "bandwidth")
    rows = [device_cells(each) for each in cluster.devices]
    parts = [
        f"cluster {cluster.name}: {counted(cluster.devices, 'device')} on "
        f"{counted(cluster.nodes, 'node')}, {counted(cluster.links, 'link')}",
        plain_table(header, rows, "   rrrrr"),
    ]
    return "\n".join(parts + ([_link_table(cluster)] if cluster.links else []))


MOST_LINKS = 16
"""That `repr` lists."""


def _link_table(cluster: Cluster) -> str:
    header = ("link", "bandwidth", "latency", "channel")
    cells = map(link_cells, cluster.links[:MOST_LINKS])
    rows = [(f"{source} -> {target}", *numbers) for source, target, *numbers in cells]
    more = len(cluster.links) - len(rows)
    return plain_table(header, rows, " rr") + (f"\n... and {more} more links" if more else "")
