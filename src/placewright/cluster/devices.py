"""Device and Link: what a cluster is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked

WORK = (
    "matmul",
    "grouped_matmul",
    "convolution",
    "attention",
    "recurrent",
    "elementwise",
    "memory",
)
"""Kinds of work with a share of the peak of their own."""


@checked
@dataclass(frozen=True, slots=True)
class Device:
    """A processor that runs operators.

    Attributes
    ----------
    kind
        ``cpu``, ``gpu``, ``npu`` or any other name; profiles are kept per kind.
    node
        The host that holds the device.
    cores
        CPU threads that the device's worker uses.
    speed
        Speed relative to the same kind of device on the profiling machine: scales measured
        costs, and the defaults of the analytic profile.
    memory_bytes
        Capacity, ``inf`` where unlimited.
    peak_flops, memory_bandwidth
        FLOP/s and bytes/s of the device itself for the analytic profile, ``None`` where unknown.
    launch_overhead_s
        Seconds added to every operator by the analytic profile, ``None`` where unknown.
    speed_by_kind
        Extra speed factor by operator kind (``conv``, ``matmul``, ...).
    efficiency
        Share of ``peak_flops`` that the device reaches, above 0 and at most 1, by kind of work
        (`WORK`), and of ``memory_bandwidth`` (``memory``); others have defaults.
    precision
        Number format that the device computes in, for runtimes that let one choose it (OpenVINO:
        ``f32``, ``bf16``, ``f16``); empty for the runtime's default.
    disk_bandwidth
        Bytes/s at which weights that do not fit are read from the node's disk in every step,
        ``None`` where they must fit (`placewright.device_map`).
    """

    name: str
    kind: str = "cpu"
    node: str = "local"
    cores: int = 1
    speed: float = 1.0
    memory_bytes: float = float("inf")
    peak_flops: float | None = None
    memory_bandwidth: float | None = None
    launch_overhead_s: float | None = None
    speed_by_kind: Mapping[str, float] = field(default_factory=dict)
    efficiency: Mapping[str, float] = field(default_factory=dict)
    precision: str = ""
    disk_bandwidth: float | None = None

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        for key in ("speed", "cores", "memory_bytes", "peak_flops"):
            _positive(where, key, getattr(self, key))
        for key in ("memory_bandwidth", "disk_bandwidth"):
            _positive(where, key, getattr(self, key))
        for kind, factor in self.speed_by_kind.items():
            _positive(where, f"speed_by_kind.{kind}", factor)
        for work, share in self.efficiency.items():
            if work not in WORK:
                raise UnknownNameError("kind of work", work, WORK, where=f"{where}: efficiency")
            if not 0 < share <= 1:
                raise InputError(
                    f"efficiency.{work} must be above 0 and at most 1",
                    where=where,
                    by=f"got {share}",
                )


@checked
@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection. Links that name the same channel share it.

    Attributes
    ----------
    bandwidth
        Bytes per second.
    latency_s
        Seconds before the first byte arrives.
    channel
        The shared resource (a bus, a NIC, a switch port); by default its own.
    """

    source: str
    target: str
    bandwidth: float
    latency_s: float = 0.0
    channel: str = ""

    def __post_init__(self) -> None:
        where = f"link {self.source!r} -> {self.target!r}"
        _positive(where, "bandwidth", self.bandwidth)
        if self.source == self.target:
            raise InputError("a link must join two devices", where=where)
        if not self.channel:
            object.__setattr__(self, "channel", f"{self.source}->{self.target}")


def _positive(where: str, key: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"{key} must be greater than zero", where=where, by=f"got {value}")
