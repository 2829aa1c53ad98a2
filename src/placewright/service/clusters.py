"""Pages of clusters: drawings of hosts, devices and links; YAML, checked while it is written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Body, FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from placewright.cluster.cluster import Cluster, Node, device_cells, link_cells
from placewright.cluster.devices import Device, Link
from placewright.cluster.files import error_line
from placewright.cluster.schema import preset_names, preset_text
from placewright.errors import PlacewrightError, UnknownNameError
from placewright.io.boundary import read_text
from placewright.io.units import BANDWIDTH, FLOPS, show
from placewright.report.text import seconds, size
from placewright.service.app import ErrorParts, Service, clusters
from placewright.service.pages import Pages

LONGEST_TEXT = 100_000
"""Characters of a cluster that is checked."""


class ClusterCheck(BaseModel):
    """What was found in a cluster's YAML.

    `line`: where the error is. `drawing`: the cluster as SVG, where there is no error.
    """

    name: str = ""
    devices: int = 0
    links: int = 0
    error: ErrorParts | None = None
    line: int | None = None
    drawing: str = ""


def add_clusters(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add pages of clusters, and the route that checks one."""

    @app.post("/api/v1/clusters/check")
    def check_cluster(
        text: Annotated[str, Body(embed=True, max_length=LONGEST_TEXT)],
    ) -> ClusterCheck:
        """Check a cluster's YAML and draw it; nothing is stored."""
        try:
            cluster = Cluster.from_text(text, where="cluster")
        except PlacewrightError as error:
            found = ErrorParts(**error.parts)
            return ClusterCheck(error=found, line=error_line(error, text))
        svg = pages.filled("drawing.html", drawing=drawn(cluster))
        devices, links = len(cluster.devices), len(cluster.links)
        return ClusterCheck(name=cluster.name, devices=devices, links=links, drawing=svg)

    @app.get("/clusters", include_in_schema=False)
    def every() -> HTMLResponse:
        return pages.page("clusters.html", clusters=clusters(service))

    @app.get("/clusters/{name}", include_in_schema=False)
    def one(name: str) -> HTMLResponse:
        return pages.page("cluster.html", **_page(service, name))


def _page(service: Service, name: str) -> dict[str, Any]:
    """What the page of a cluster shows; a stored file that is none any more has its text alone."""
    text = cluster_text(service, name)
    page = {"name": name, "text": text, "preset": name in preset_names(), "uses": _uses(service)}
    try:
        cluster = Cluster.from_text(text, where=name, name=name)
    except PlacewrightError as error:
        return page | {"cluster": None, "error": error.parts, "drawing": None}
    rows = {
        "devices": list(map(device_cells, cluster.devices)),
        "links": list(map(link_cells, cluster.links)),
    }
    return page | rows | {"cluster": cluster, "error": None, "drawing": drawn(cluster)}


def cluster_text(service: Service, name: str) -> str:
    """The YAML of a preset or of a stored file; `UnknownNameError` where there is none."""
    if name in preset_names():
        return preset_text(name)
    file = service.store.file(name)
    if file is None or file.kind != "cluster":
        raise UnknownNameError("cluster", name, [each.name for each in clusters(service)])
    return read_text(service.files.path(file))


def _uses(service: Service) -> list[tuple[str, str]]:
    """Address and text of every verb that plans or runs on a cluster."""
    found = []
    for operation in service.operations.values():
        option = next((each for each in operation.chosen if each.kind == "cluster"), None)
        if option is not None and operation.path[-1] in ("plan", "compare"):
            found.append((f"/new/{operation.name}?{option.name}=", " ".join(operation.path)))
    return found


MOST_HOSTS = 24
"""That are drawn."""

MOST_LABELS = 40
"""Links between hosts that are labelled in the drawing."""

MOST_BUSES = 12
"""Links and channels within a host that are drawn."""

BOX, ROW, HEAD, RAIL = 220.0, 46.0, 30.0, 12.0
"""Pixels: width of a host, height of a device and of a host's name, room for a bus."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device in the box of its host; `kind`: number of its kind, for the colour."""

    x: float
    y: float
    width: float
    name: str
    text: str
    kind: int


@dataclass(frozen=True, slots=True)
class Bus:
    """A link within a host, or a channel that several share: a rail beside its devices."""

    x: float
    top: float
    bottom: float
    taps: Sequence[float]
    label: str
    label_y: float
    shared: bool


@dataclass(slots=True)
class HostBox:
    """The box of a host."""

    name: str
    x: float
    y: float
    width: float
    height: float
    rows: list[DeviceRow] = field(default_factory=list)
    buses: list[Bus] = field(default_factory=list)

    @property
    def centre(self) -> tuple[float, float]:
        """Its middle."""
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Wire:
    """Lines from hosts to where they meet, and what stands there.

    `name`: of a channel that is shared.
    """

    ends: Sequence[tuple[float, float]]
    x: float
    y: float
    label: str
    name: str
    one_way: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A cluster in the plane."""

    width: float
    height: float
    hosts: Sequence[HostBox]
    wires: Sequence[Wire]
    title: str


@dataclass(frozen=True, slots=True)
class Group:
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
    def devices(self) -> list[str]:
        """What it joins."""
        return list(dict.fromkeys(end for k in self.links for end in (k.source, k.target)))


def drawn(cluster: Cluster) -> Drawing | None:
    """A cluster as a drawing; ``None`` where it has too many hosts for one."""
    nodes = cluster.nodes
    if len(nodes) > MOST_HOSTS:
        return None
    host_of = {device.name: device.node for device in cluster.devices}
    inner: dict[str, list[Group]] = {node.name: [] for node in nodes}
    outer = []
    for group in _groups(cluster.links):
        touched = {host_of[name] for name in group.devices}
        if len(touched) == 1:
            inner[touched.pop()].append(group)
        else:
            outer.append(group)
    kinds = list(dict.fromkeys(device.kind for device in cluster.devices))
    boxes = [_host(node, inner[node.name], kinds) for node in nodes]
    _place(boxes)
    where = {box.name: box.centre for box in boxes}
    devices = {row.name: _middle(row, box) for box in boxes for row in box.rows}
    labels = len(outer) <= MOST_LABELS
    wires = [_wire(group, host_of, where, devices, labels, len(boxes)) for group in outer]
    width = max(box.x + box.width for box in boxes) + 10
    height = max(box.y + box.height for box in boxes) + 10
    title = f"{cluster.name}: {len(cluster.devices)} devices on {len(nodes)} hosts"
    return Drawing(width, height, boxes, wires, title)


def _groups(links: Sequence[Link]) -> Iterator[Group]:
    """Channels that several pairs share; other links, both ways together."""
    channels: dict[str, list[Link]] = {}
    for link in links:
        channels.setdefault(link.channel, []).append(link)
    pairs: dict[frozenset[str], list[Link]] = {}
    for found in channels.values():
        if len({frozenset((k.source, k.target)) for k in found}) > 1:
            yield Group(found, shared=True)
        else:
            pairs.setdefault(frozenset((found[0].source, found[0].target)), []).extend(found)
    yield from (Group(found, shared=False) for found in pairs.values())


def _host(node: Node, groups: Sequence[Group], kinds: Sequence[str]) -> HostBox:
    """A box at the origin: its devices one below the other, buses at their right."""
    groups = groups[:MOST_BUSES]
    width = BOX + RAIL * len(groups) + (8 if groups else 0)
    bottom = HEAD + ROW * len(node.devices)
    height = bottom + 18 * len(groups) + 6
    host = HostBox(node.name, 0.0, 0.0, width, height)
    for k, device in enumerate(node.devices):
        text = _short(device)
        kind = kinds.index(device.kind) % 8
        host.rows.append(DeviceRow(10, HEAD + ROW * k, BOX - 20, device.name, text, kind))
    middle = {row.name: row.y + ROW / 2 - 4 for row in host.rows}
    for k, group in enumerate(groups):
        taps = [middle[name] for name in group.devices]
        joined = group.links[0].channel if group.shared else " - ".join(group.devices[:2])
        label_y = bottom + 18 * k + 12
        x = BOX + RAIL * k + 4
        text = f"{joined}: {group.label}"
        host.buses.append(Bus(x, min(taps), label_y, taps, text, label_y, group.shared))
    return host


def _short(device: Device) -> str:
    """The second line of a device: what it can do."""
    speed = (
        f"speed {device.speed:g}" if device.peak_flops is None else show(device.peak_flops, FLOPS)
    )
    memory = [] if math.isinf(device.memory_bytes) else [size(device.memory_bytes)]
    return ", ".join([device.kind, speed, *memory])


def _place(boxes: Sequence[HostBox]) -> None:
    """Put hosts around an ellipse, none over another; two are beside each other."""
    count, wide = len(boxes), max(box.width for box in boxes)
    high = max(box.height for box in boxes)
    across = 0.0 if count == 1 else max(wide / 2 + 120, count * (wide + 40) / 5.6)
    down = 0.0 if count < 3 else max(high / 2 + 60, count * (high + 30) / 5.6)
    first = math.pi if count == 2 else -math.pi / 2 - (math.pi / count if count % 2 == 0 else 0)
    for k, box in enumerate(boxes):
        angle = first + 2 * math.pi * k / count
        stretch = math.sqrt(2) if count == 4 else 1.0  # corners of a rectangle
        box.x = across * stretch * math.cos(angle) - box.width / 2
        box.y = down * stretch * math.sin(angle) - box.height / 2
    left, top = min(box.x for box in boxes) - 10, min(box.y for box in boxes) - 10
    for box in boxes:
        box.x, box.y = box.x - left, box.y - top


def _middle(row: DeviceRow, box: HostBox) -> tuple[float, float]:
    return box.x + row.x + row.width / 2, box.y + row.y + ROW / 2 - 4


def _wire(
    group: Group,
    host_of: Mapping[str, str],
    hosts: Mapping[str, tuple[float, float]],
    devices: Mapping[str, tuple[float, float]],
    labelled: bool,
    count: int,
) -> Wire:
    """A line between two devices; of a shared channel, between hosts by way of its name."""
    if group.shared:
        ends = [hosts[name] for name in dict.fromkeys(host_of[d] for d in group.devices)]
    else:
        ends = [devices[name] for name in group.devices]
    # Where all cross in the middle, labels stand nearer to one end.
    share = 0.5 if count < 4 or len(ends) > 2 or _is_beside(ends, hosts) else 0.34
    if len(ends) == 2:
        x, y = (a + (b - a) * share for a, b in zip(*ends, strict=True))
    else:
        x, y = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    label = group.label if labelled else ""
    one_way = not group.shared and len(group.links) == 1
    return Wire(ends, x, y, label, _channel_name(group), one_way)


def _channel_name(group: Group) -> str:
    """Of a channel that more than one direction of a link uses; empty for others."""
    first = group.links[0]
    return first.channel if first.channel != f"{first.source}->{first.target}" else ""


def _is_beside(
    ends: Sequence[tuple[float, float]], hosts: Mapping[str, tuple[float, float]]
) -> bool:
    """Whether a line does not pass the middle of the drawing."""
    middle = [sum(v) / len(hosts) for v in zip(*hosts.values(), strict=True)]
    half = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
    return math.dist(middle, half) > 60
