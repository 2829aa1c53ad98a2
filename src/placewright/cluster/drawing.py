"""A cluster as a drawing: hosts around an ellipse, devices in them, links between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.io.units import BANDWIDTH, FLOPS, show
from placewright.report.page import device_class, drawing, label, tag, text
from placewright.report.text import seconds, size

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster, Node
    from placewright.cluster.devices import Device, Link

MOST_HOSTS, MOST_DEVICES = 24, 1000
"""That are drawn."""

MOST_LABELS = 40
"""Links between hosts that are labelled in the drawing."""

MOST_BUSES = 12
"""Links and channels within a host that are drawn."""

BOX, ROW, HEAD, RAIL = 220.0, 46.0, 30.0, 12.0
"""Pixels: width of a host, height of a device and of a host's name, room for a bus."""

Point = tuple[float, float]


def cluster_drawing(cluster: Cluster) -> str | None:
    """A cluster as SVG; ``None`` where it has too many hosts or devices for a drawing."""
    if len(cluster.nodes) > MOST_HOSTS or len(cluster.devices) > MOST_DEVICES:
        return None
    host_of = {device.name: device.node for device in cluster.devices}
    inner: dict[str, list[_Group]] = {node.name: [] for node in cluster.nodes}
    outer: list[_Group] = []
    for group in _groups(cluster.links):
        touched = {host_of[name] for name in group.devices}
        (inner[touched.pop()] if len(touched) == 1 else outer).append(group)
    hosts = {node.name: _Host(node, inner[node.name][:MOST_BUSES]) for node in cluster.nodes}
    _place([*hosts.values()])
    drawn = [_wire(group, host_of, hosts, len(outer) <= MOST_LABELS) for group in outer]
    kinds = list(dict.fromkeys(device.kind for device in cluster.devices))
    width = max(host.x + host.width for host in hosts.values()) + 10
    height = max(host.y + host.height for host in hosts.values()) + 10
    # Of attributes with capitals `tag` has no spelling.
    marker = (
        '<marker id="way" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="arrow" d="M0 0L8 4L0 8z"/></marker>'
    )
    title = f"{cluster.name}: {len(cluster.devices)} devices on {len(hosts)} hosts"
    inside = (
        tag("defs", marker),
        *(wire for wire, _ in drawn),
        *(host.drawn(kinds) for host in hosts.values()),
        *(words for _, words in drawn),
    )
    return drawing(width, height, *inside, title=title, class_="cluster")


@dataclass(frozen=True, slots=True)
class _Group:
    """Links that are drawn as one: both ways of a pair, or all of a shared channel."""

    links: Sequence[Link]
    shared: bool

    @property
    def label(self) -> str:
        """Bandwidth and latency; of links that differ, the first two."""
        texts = [f"{show(k.bandwidth, BANDWIDTH)}, {seconds(k.latency_s)}" for k in self.links]
        each = [*dict.fromkeys(texts)]
        return " / ".join(each if len(each) < 3 else [*each[:2], "..."])

    @property
    def channel(self) -> str:
        """The channel that more than one direction of a link uses; empty for others."""
        first = self.links[0]
        return first.channel if first.channel != f"{first.source}->{first.target}" else ""

    @property
    def devices(self) -> list[str]:
        """What it joins."""
        return list(dict.fromkeys(end for k in self.links for end in (k.source, k.target)))

    @property
    def line_class(self) -> str:
        return "wire shared" if self.shared else "wire"


def _groups(links: Sequence[Link]) -> Iterator[_Group]:
    """Channels that several pairs share; other links, both ways together."""
    channels: dict[str, list[Link]] = {}
    for link in links:
        channels.setdefault(link.channel, []).append(link)
    pairs: dict[frozenset[str], list[Link]] = {}
    for found in channels.values():
        if len({frozenset((k.source, k.target)) for k in found}) > 1:
            yield _Group(found, shared=True)
        else:
            pairs.setdefault(frozenset((found[0].source, found[0].target)), []).extend(found)
    yield from (_Group(found, shared=False) for found in pairs.values())


@dataclass(slots=True)
class _Host:
    """The box of a host: its devices one below the other, buses at their right."""

    node: Node
    buses: Sequence[_Group]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return BOX + RAIL * len(self.buses) + (8 if self.buses else 0)

    @property
    def height(self) -> float:
        return HEAD + ROW * len(self.node.devices) + 18 * len(self.buses) + 6

    @property
    def centre(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2

    def middles(self) -> dict[str, Point]:
        """The middle of each device, by its name."""
        x = self.x + BOX / 2
        names = (device.name for device in self.node.devices)
        return {name: (x, self.y + HEAD + ROW * k + ROW / 2 - 4) for k, name in enumerate(names)}

    def drawn(self, kinds: Sequence[str]) -> str:
        """The box, its devices in the colours of their `kinds`, its buses."""
        inside = [
            tag("rect", class_="host", width=self.width, height=self.height, rx=12),
            label(12.0, 20.0, _cut(self.node.name, 29), "tick"),
        ]
        for k, device in enumerate(self.node.devices):
            x, y = 10.0, HEAD + ROW * k
            parts = (
                tag("rect", x=x, y=y, width=BOX - 20, height=38, rx=8),
                tag("rect", class_="mark", x=x, y=y, width=5, height=38, rx=2),
                label(x + 14, y + 16, _cut(device.name, 27)),
                label(x + 14, y + 31, _cut(_abilities(device), 32), "tick"),
            )
            inside.append(
                tag("g", *parts, class_=f"device {device_class(kinds.index(device.kind))}")
            )
        for k in range(len(self.buses)):
            inside += self._bus(k)
        return tag("g", *inside, transform=f"translate({self.x:.1f} {self.y:.1f})")

    def _bus(self, k: int) -> tuple[str, str]:
        """A link within the host: a rail beside its devices, and its label below them."""
        group, middle = self.buses[k], self.middles()
        taps = [middle[name][1] - self.y for name in group.devices]
        x, y = BOX + RAIL * k + 4, HEAD + ROW * len(self.node.devices) + 18 * k + 12
        path = f"M{x:g} {min(taps):g}V{y - 4:g}H{x - 4:g}"
        path += "".join(f"M{BOX - 10:g} {tap:g}H{x:g}" for tap in taps)
        joined = group.links[0].channel if group.shared else " - ".join(group.devices[:2])
        words = label(x - 8, y, _cut(f"{joined}: {group.label}", 36), "tick", "end")
        return tag("path", class_=group.line_class, d=path), words


def _abilities(device: Device) -> str:
    """The second line of a device: what it can do."""
    peak = device.peak_flops
    speed = f"speed {device.speed:g}" if peak is None else show(peak, FLOPS)
    memory = [] if math.isinf(device.memory_bytes) else [size(device.memory_bytes)]
    return ", ".join([device.kind, speed, *memory])


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 3] + "..."


def _place(hosts: Sequence[_Host]) -> None:
    """Put hosts around an ellipse, none over another; two are beside each other."""
    count, wide = len(hosts), max(host.width for host in hosts)
    high = max(host.height for host in hosts)
    across = 0.0 if count == 1 else max(wide / 2 + 120, count * (wide + 40) / 5.6)
    down = 0.0 if count < 3 else max(high / 2 + 60, count * (high + 30) / 5.6)
    first = math.pi if count == 2 else -math.pi / 2 - (math.pi / count if count % 2 == 0 else 0)
    for k, host in enumerate(hosts):
        angle = first + 2 * math.pi * k / count
        stretch = math.sqrt(2) if count == 4 else 1.0  # corners of a rectangle
        host.x = across * stretch * math.cos(angle) - host.width / 2
        host.y = down * stretch * math.sin(angle) - host.height / 2
    left, top = min(host.x for host in hosts) - 10, min(host.y for host in hosts) - 10
    for host in hosts:
        host.x, host.y = host.x - left, host.y - top


def _wire(
    group: _Group, host_of: Mapping[str, str], hosts: Mapping[str, _Host], labelled: bool
) -> tuple[str, str]:
    """A line between devices, of a shared channel between hosts by way of its name; its label."""
    if group.shared:
        ends = [hosts[name].centre for name in dict.fromkeys(host_of[d] for d in group.devices)]
    else:
        ends = [hosts[host_of[name]].middles()[name] for name in group.devices]
    # Where all cross in the middle, labels stand nearer to one end.
    middle = _mean(host.centre for host in hosts.values())
    beside = math.dist(middle, _mean(ends)) > 60
    near = len(ends) == 2 and len(hosts) > 3 and not beside
    at = _between(ends, 0.34) if near else _mean(ends)
    if len(ends) > 2:
        path = "".join(f"M{_point(end)}L{_point(at)}" for end in ends)
        return tag("path", class_=group.line_class, d=path), _wire_label(group, at, labelled)
    one_way = not group.shared and len(group.links) == 1
    arrow = f"L{_point(_between(ends, 0.7))}" if one_way else ""
    line = tag(
        "path",
        class_=group.line_class,
        d=f"M{_point(ends[0])}{arrow}L{_point(ends[1])}",
        marker_mid="url(#way)" if one_way else None,
    )
    return line, _wire_label(group, at, labelled)


def _wire_label(group: _Group, at: Point, labelled: bool) -> str:
    """The name of a shared channel, bandwidth and latency."""
    if not labelled:
        return ""
    x, y = at
    if not group.channel:
        return label(x, y, group.label, "label", "middle")
    name = tag("tspan", text(group.channel), class_="channel")
    below = tag("tspan", text(group.label), x=x, dy=15)
    return tag("text", name, below, class_="label", x=x, y=y, text_anchor="middle")


def _mean(points: Iterable[Point]) -> Point:
    across, down = zip(*points, strict=True)
    return sum(across) / len(across), sum(down) / len(down)


def _between(ends: Sequence[Point], share: float) -> Point:
    a, b = ends
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _point(at: Point) -> str:
    return f"{at[0]:.1f} {at[1]:.1f}"
