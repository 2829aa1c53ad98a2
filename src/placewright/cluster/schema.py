"""Cluster files as pydantic models, and the presets: every field is optional and units are strings.

    devices:
      - {name: board-a, cores: 1, memory: 2GiB, speed: 1.0, node: a}
      - {name: board-b, cores: 1, memory: 1GiB, speed: 0.5, node: b}
    links:
      - {from: board-a, to: board-b, bandwidth: 1Gbps, latency: 200us}

A link goes both ways, each way on its own channel, unless ``duplex: false`` (this way only).
``channel: NAME`` puts it, both ways, on a channel that links of the same name share.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from placewright.cluster.devices import WORK, Device, Link
from placewright.errors import InputError, check_known
from placewright.io.boundary import FileModel, RefusedError, parse_yaml, validate
from placewright.io.units import BANDWIDTH, BYTES, FLOPS, SECONDS, Quantity, parse

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
    disk_bandwidth: Bandwidth | None = None
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
            disk_bandwidth=self.disk_bandwidth,
            speed_by_kind=dict(self.speed_by_kind),
            efficiency=self._efficiency(),
            precision=self.precision,
        )

    def _efficiency(self) -> dict[str, float]:
        """By kind of work; one number is for all of them."""
        shares = self.efficiency
        return dict(shares) if isinstance(shares, dict) else dict.fromkeys(WORK, shares)


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

    def made_devices(self) -> tuple[Device, ...]:
        """The devices; those without a name are called after their position."""
        return tuple(entry.device(i) for i, entry in enumerate(self.devices))

    def made_links(self) -> tuple[Link, ...]:
        """The links, one per direction."""
        return tuple(link for entry in self.links for link in entry.links())


def parse_cluster(text: str, where: str) -> ClusterFile:
    """A cluster file's entries; an `InputError` names `where`, the line and the field."""
    return validate(ClusterFile, parse_yaml(text, where=where), where=where, text=text)


PRESETS = files("placewright.cluster").joinpath("presets")
"""Clusters that ship with Placewright, one YAML file each."""


def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    names = (entry.name for entry in PRESETS.iterdir())
    return tuple(sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml")))


def preset_text(name: str) -> str:
    """The file of the preset called `name`; `UnknownNameError` offers the nearest one."""
    check_known("cluster preset", name, preset_names())
    return PRESETS.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
