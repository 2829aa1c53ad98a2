"""Clusters read from and written as YAML (`placewright.cluster.schema` has the format)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device, Link
from placewright.cluster.schema import SCHEMA_VERSION, preset_names
from placewright.errors import PlacewrightError
from placewright.io.arguments import checked
from placewright.io.boundary import named_path
from placewright.io.stored import write_file
from placewright.io.units import BANDWIDTH, BYTES, FLOPS, SECONDS, write


@checked
def load_cluster(spec: str) -> Cluster:
    """The cluster that `spec` names on the command line: a preset, or a file.

    A file in the current folder that is called as a preset is ``./edge-duo``.
    """
    path = named_path(spec)
    known = spec in preset_names()
    if not known and (path.suffix in (".yaml", ".yml") or path.is_file()):
        return Cluster.from_file(path)
    return Cluster.preset(spec)


@checked
def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file; an `InputError` names the file, the line and the field."""
    return Cluster.from_file(path)


@checked
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
        ("disk_bandwidth", device.disk_bandwidth, BANDWIDTH),
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


def error_line(error: PlacewrightError, text: str) -> int | None:
    """The line of a cluster's YAML that an error is about, ``None`` where it names nothing.

    It is the line that the error has, or the last one with a name in it that the error has.
    """
    for part in (error.where, error.by):
        if numbers := re.findall(r"\bline (\d+)", part):
            return int(numbers[-1])  # YAML names first where what is wrong has begun
    names = "|".join(map(re.escape, re.findall(r"'([^']+)'", f"{error.what} {error.where}")))
    lines = text.splitlines()
    for before in (r"\bname: *", ""):  # a device is where it has its name, not where links use it
        if not names or (before and "name" not in error.what):
            continue
        word = re.compile(rf"{before}['\"]?(?<![\w-])(?:{names})(?![\w-])")
        if found := [k for k, line in enumerate(lines, 1) if word.search(line)]:
            return found[-1]
    return None
