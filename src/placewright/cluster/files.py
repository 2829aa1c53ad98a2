"""Clusters as YAML: every field is optional and units are strings.

    devices:
      - {name: board-a, cores: 1, memory: 2GiB, speed: 1.0, node: a}
      - {name: board-b, cores: 1, memory: 1GiB, speed: 0.5, node: b}
    links:
      - {from: board-a, to: board-b, bandwidth: 1Gbps, latency: 200us}

A link goes both ways, each way on its own channel, unless ``duplex: false`` (this way only).
``channel: NAME`` puts it, both ways, on a channel that links of the same name share.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from placewright.cluster.cluster import WORK, Cluster, Device, Link
from placewright.errors import InputError, UnknownNameError
from placewright.io.boundary import FileModel, RefusedError, parse_yaml, placed, read_text, validate
from placewright.io.stored import write_file
from placewright.io.units import BANDWIDTH, BYTES, FLOPS, SECONDS, Quantity, parse, write

SCHEMA_VERSION = 1


def _unit(quantity: Quantity) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse(value, quantity)
        except InputError as error:
            raise RefusedError(error) from None

    return BeforeValidator(read, json_schema_input_type=str | float)


Bytes = Annotated[float, _unit(BYTES)]
Bandwidth = Annotated[float, _unit(BANDWIDTH)]
Seconds = Annotated[float, _unit(SECONDS)]
Flops = Annotated[float, _unit(FLOPS)]


class DeviceEntry(FileModel):
    """One device of a cluster file."""

    name: str = ""
    kind: str = "cpu"
    node: str = "local"
    cores: Annotated[int, Field(gt=0)] = 1
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    memory: Bytes | None = None
    peak_flops: Flops | None = None
    memory_bandwidth: Bandwidth | None = None
    launch_overhead: Seconds | None = None
    speed_by_kind: dict[str, float] = Field(default_factory=dict)
    efficiency: float | dict[str, float] = Field(default_factory=dict)
    precision: str = ""

    def device(self, position: int) -> Device:
        """The device; without a name it is called after its kind and position."""
        return Device(
            name=self.name or f"{self.kind}{position}",
            kind=self.kind,
            node=self.node,
            cores=self.cores,
            speed=self.speed,
            memory_bytes=float("inf") if self.memory is None else self.memory,
            peak_flops=self.peak_flops,
            memory_bandwidth=self.memory_bandwidth,
            launch_overhead_s=self.launch_overhead,
            speed_by_kind=dict(self.speed_by_kind),
            efficiency=self._efficiency(),
            precision=self.precision,
        )

    def _efficiency(self) -> dict[str, float]:
        """By kind of work; one number is for all of them."""
        given = self.efficiency
        return dict(given) if isinstance(given, dict) else dict.fromkeys(WORK, given)


class LinkEntry(FileModel):
    """One link of a cluster file; without a bandwidth it is Gigabit Ethernet."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    bandwidth: Bandwidth = 125e6
    latency: Seconds = 0.0
    channel: str = ""
    duplex: bool = True

    def links(self) -> list[Link]:
        """One link, or two where it goes both ways."""
        there = Link(self.source, self.target, self.bandwidth, self.latency, self.channel)
        if not self.duplex:
            return [there]
        return [there, Link(self.target, self.source, self.bandwidth, self.latency, self.channel)]


class ClusterFile(FileModel):
    """A cluster file."""

    schema_version: Literal[1] = 1
    name: str = ""
    devices: tuple[DeviceEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()


PRESETS = files("placewright.cluster").joinpath("presets")
"""Clusters that ship with Placewright, one YAML file each."""


def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    names = (entry.name for entry in PRESETS.iterdir())
    return tuple(sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml")))


def preset(name: str) -> Cluster:
    """The preset called `name`; `UnknownNameError` offers the nearest one."""
    if name not in preset_names():
        raise UnknownNameError("cluster preset", name, preset_names())
    text = PRESETS.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return cluster_from_text(text, where=f"preset {name}", name=name)


def load_cluster(spec: str) -> Cluster:
    """The cluster that `spec` names on the command line: a file, or a preset."""
    path = Path(spec)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return read_cluster(path)
    return preset(spec)


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file; an `InputError` names the file, the line and the field."""
    return cluster_from_text(read_text(path), where=str(path), name=Path(path).stem)


def cluster_from_text(text: str, *, where: str, name: str = "cluster") -> Cluster:
    """A cluster from YAML text; `where` is named in errors."""
    entry = validate(ClusterFile, parse_yaml(text, where=where), where=where, text=text)
    try:
        devices = tuple(d.device(i) for i, d in enumerate(entry.devices))
        links = tuple(link for e in entry.links for link in e.links())
        return Cluster(devices, links, entry.name or name)
    except InputError as error:
        raise placed(error, where) from None


def write_cluster(cluster: Cluster, path: str | Path) -> Path:
    """Write a cluster file that `read_cluster` reads back equal."""
    return write_file(path, cluster_to_text(cluster))


def cluster_to_text(cluster: Cluster) -> str:
    """A cluster as YAML text."""
    data = cluster_data(cluster)
    lines = [f"schema_version: {SCHEMA_VERSION}", f"name: {_one_line(cluster.name)}", "devices:"]
    lines += [f"  - {_one_line(device)}" for device in data["devices"]]
    if data["links"]:
        lines += ["links:", *(f"  - {_one_line(link)}" for link in data["links"])]
    return "\n".join(lines) + "\n"


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """A cluster as the data of its file."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": cluster.name,
        "devices": [_device_data(device) for device in cluster.devices],
        "links": _links_data(cluster.links),
    }


def _device_data(device: Device) -> dict[str, Any]:
    """The fields that differ from their default, in the order of the format."""
    data: dict[str, Any] = {"name": device.name, "kind": device.kind, "node": device.node}
    data |= {"cores": device.cores, "speed": device.speed}
    for key, value, quantity in (
        ("memory", device.memory_bytes, BYTES),
        ("peak_flops", device.peak_flops, FLOPS),
        ("memory_bandwidth", device.memory_bandwidth, BANDWIDTH),
        ("launch_overhead", device.launch_overhead_s, SECONDS),
    ):
        if value is not None and value != float("inf"):
            data[key] = write(value, quantity)
    if device.speed_by_kind:
        data["speed_by_kind"] = dict(device.speed_by_kind)
    if device.efficiency:
        data["efficiency"] = dict(device.efficiency)
    if device.precision:
        data["precision"] = device.precision
    return data


def _links_data(links: Sequence[Link]) -> list[dict[str, Any]]:
    """A link and the same link back, one after the other, become one entry."""
    entries, k = [], 0
    while k < len(links):
        both = k + 1 < len(links) and _is_way_back(links[k], links[k + 1])
        entries.append(_link_data(links[k], both))
        k += 2 if both else 1
    return entries


def _is_way_back(there: Link, back: Link) -> bool:
    same = (there.bandwidth, there.latency_s) == (back.bandwidth, back.latency_s)
    mirrored = (there.source, there.target) == (back.target, back.source)
    channels = (_own_channel(there), _own_channel(back))
    return same and mirrored and (all(channels) or there.channel == back.channel)


def _own_channel(link: Link) -> bool:
    return link.channel == f"{link.source}->{link.target}"


def _link_data(link: Link, both_ways: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"from": link.source, "to": link.target}
    data["bandwidth"] = write(link.bandwidth, BANDWIDTH)
    if link.latency_s:
        data["latency"] = write(link.latency_s, SECONDS)
    if not _own_channel(link):
        data["channel"] = link.channel
    return data if both_ways else {**data, "duplex": False}


def _one_line(data: Any) -> str:
    """One line of YAML."""
    text = yaml.safe_dump(data, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()
