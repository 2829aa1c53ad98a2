"""Device and Link: what a cluster is made of; devices of this machine; computed costs.

Costs are computed by the roofline of Williams et al. 2009 (doi 10.1145/1498765.1498785).
The roof is not the peak but the share of it that a device reaches, by kind of work.
Sources, of which the numbers below are round ones, on the careful side:

- dense products: 80 to 90 % of the peak on an A100 by optimised libraries (Dao 2023, arXiv
  2307.08691, section 1), 52 % over whole training steps of large language models (Narayanan et al.
  2021, doi 10.1145/3458817.3476209), 46 % (Chowdhery et al. 2022, arXiv 2204.02311); on CPUs about
  90 % for large matrices (Van Zee and van de Geijn 2015, doi 10.1145/2764454);
- grouped products: 98.6 % of cuBLAS's batched ones (Gale et al. 2022, arXiv 2211.15841);
- attention: 25 to 40 % (FlashAttention) and 50 to 73 % (FlashAttention-2) on an A100 (arXiv
  2307.08691), 35 % and 75 % (FlashAttention-3) on an H100 (Shah et al. 2024, arXiv 2407.08608);
- convolutions on CPUs: close to the peak for single layers of ResNet-50 (Georganas et al. 2018,
  arXiv 1808.05567); whole networks have many smaller ones;
- memory: 75 to 80 % by STREAM on CPUs (McCalpin 1995), 80 to 90 % on GPUs (Deakin et al. 2016, doi
  10.1007/978-3-319-46079-6_34).

Without a figure of that sort are convolutions on GPUs (two thirds of a product), recurrent layers
(small products one after another) and work per element (no fused multiply-adds, no matrix units):
these are our estimates.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import InputError, check_known
from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray

if TYPE_CHECKING:
    from placewright.graph.graph import Operator


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
            check_known("kind of work", work, WORK, where=f"{where}: efficiency")
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


PEAK_FLOPS = {"cpu": 50e9, "gpu": 20e12, "npu": 4e12}
"""Default peak FLOP/s, per core for ``cpu``."""

MEMORY_BANDWIDTH = {"cpu": 15e9, "gpu": 800e9, "npu": 60e9}
"""Default peak bytes/s."""

LAUNCH_OVERHEAD_S = {"cpu": 5e-6, "gpu": 8e-6, "npu": 20e-6}
"""Default seconds per operator."""

_MATRIX_UNITS = {
    "matmul": 0.75,
    "grouped_matmul": 0.7,
    "convolution": 0.5,
    "attention": 0.5,
    "recurrent": 0.2,
    "elementwise": 0.1,
    "memory": 0.85,
}
EFFICIENCY = {
    "cpu": {
        "matmul": 0.8,
        "grouped_matmul": 0.7,
        "convolution": 0.65,
        "attention": 0.5,
        "recurrent": 0.3,
        "elementwise": 0.25,
        "memory": 0.8,
    },
    "gpu": _MATRIX_UNITS,
    "npu": _MATRIX_UNITS,
}
"""Default shares of ``peak_flops``, and ``memory`` of ``memory_bandwidth``; devices of other kinds
have those of ``cpu``, as they have its peaks."""

_FAMILIES = (
    ("attention", re.compile(r"attention|attn", re.I)),
    ("grouped_matmul", re.compile(r"grouped_mm", re.I)),
    ("convolution", re.compile(r"conv(?!ert)", re.I)),
    ("recurrent", re.compile(r"rnn|lstm|gru", re.I)),
)
"""The first pattern that is in an operator's kind; what is left is ``matmul``."""


def analytic_seconds(operators: Sequence[Operator], device: Device) -> FloatArray:
    """Seconds of each operator on one device, shape (operators,).

    The largest of products / (peak x efficiency of their kind), work per element / (peak x its
    efficiency) and bytes / (bandwidth x its efficiency), and the launch overhead; an operator
    that neither computes nor moves bytes (a view) takes the overhead alone. Peaks that the device
    gives are its own; ``speed`` scales only what is assumed for it.
    """
    peak, bandwidth, overhead = peaks(device)
    products = np.array([op.flops for op in operators]) / product_efficiency(operators, device)
    each = np.array([op.elementwise_flops for op in operators])
    each = each / efficiency_of(device, "elementwise")
    computing = np.maximum(products, each) / (peak * kind_factors(operators, device))
    moved = np.array([op.bytes_accessed for op in operators], dtype=np.float64)
    moving = moved / (bandwidth * efficiency_of(device, "memory"))
    roofline: FloatArray = np.maximum(computing, moving) + overhead
    return roofline


def peaks(device: Device) -> tuple[float, float, float]:
    """Peak FLOP/s, peak bytes/s and seconds per operator: the device's own, else those of its kind.

    ``speed`` scales only what is assumed.
    """
    default = device.kind if device.kind in PEAK_FLOPS else "cpu"
    per_core = device.cores if default == "cpu" else 1
    peak = device.peak_flops or PEAK_FLOPS[default] * per_core * device.speed
    bandwidth = device.memory_bandwidth or MEMORY_BANDWIDTH[default] * device.speed
    overhead = device.launch_overhead_s
    if overhead is None:
        overhead = LAUNCH_OVERHEAD_S[default] / device.speed
    return peak, bandwidth, overhead


def kind_factors(operators: Sequence[Operator], device: Device) -> FloatArray:
    """The device's extra speed for each operator, 1 by default.

    A key of ``speed_by_kind`` applies to every kind that contains it: ``convolution`` to
    ``aten.convolution.default`` and to ``aten.convolution_backward.default``.
    """
    factors = np.ones(len(operators))
    for key, factor in device.speed_by_kind.items():
        factors[[key in op.kind for op in operators]] = factor
    return factors


def efficiency_of(device: Device, work: str) -> float:
    """Share of the peak for a kind of work: the device's own, else the default of its kind."""
    return device.efficiency.get(work, EFFICIENCY.get(device.kind, EFFICIENCY["cpu"])[work])


def product_efficiency(operators: Sequence[Operator], device: Device) -> FloatArray:
    """Shape (operators,): share of the peak for the products of each."""
    kinds = [family_of(op.kind) for op in operators]
    known = {kind: efficiency_of(device, kind) for kind in set(kinds)}
    return np.array([known[kind] for kind in kinds], dtype=np.float64)


def family_of(kind: str) -> str:
    """The kind of work that an operator's FLOPs are: ``aten.addmm.default`` is ``matmul``."""
    return next((family for family, pattern in _FAMILIES if pattern.search(kind)), "matmul")


_CORES_PER_SM = {7: 64, 8: 128, 9: 128, 10: 128, 12: 128}
"""Float32 lanes of one multiprocessor by compute capability (8.0 has 64)."""


def detected_devices() -> tuple[Device, ...]:
    """The machine's devices. PyTorch is imported only where a CUDA driver is present."""
    cpu = Device("cpu", cores=cpu_cores(), memory_bytes=host_memory_bytes())
    return (cpu, *_cuda_devices())


def machine_name() -> str:
    """The host name."""
    return platform.node() or "this-machine"


def cpu_cores() -> int:
    """Cores that this process may use: affinity and the control group's quota."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        own = min(own, max(1, int(quota[0]) // int(quota[1])))
    return own


def host_memory_bytes() -> float:
    """Memory that this process may use: the machine's and the control group's limit."""
    limits = [_physical_memory_bytes()]
    group = _read("/sys/fs/cgroup/memory.max").strip()
    if group.isdigit() and int(group) > 0:
        limits.append(float(group))
    return min(limits)


def cpu_model() -> str:
    """The processor's model name."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def gpu_texts() -> dict[str, str]:
    """Model, memory and capability of each GPU by its number, as text."""
    return {f"gpu {k}": _gpu_text(p) for k, p in enumerate(_cuda_properties())}


def _gpu_text(properties: Any) -> str:
    from placewright.report.text import size

    capability = f"{properties.major}.{properties.minor}"
    return f"{properties.name}, {size(properties.total_memory)}, compute capability {capability}"


def _physical_memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _cuda_devices() -> list[Device]:
    return [_cuda_device(k, properties) for k, properties in enumerate(_cuda_properties())]


def _cuda_properties() -> list[Any]:
    driver = Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists()
    possible = driver or platform.system() == "Windows"
    if not possible or importlib.util.find_spec("torch") is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]


def _cuda_device(index: int, properties: Any) -> Device:
    return Device(
        f"cuda{index}",
        kind="gpu",
        memory_bytes=float(properties.total_memory),
        peak_flops=_peak_flops(properties),
        memory_bandwidth=_memory_bandwidth(properties),
        launch_overhead_s=5e-6,
    )


def _peak_flops(properties: Any) -> float | None:
    """Multiprocessors x lanes x clock x 2 (multiply and add), if the driver gives the clock."""
    clock_khz = getattr(properties, "clock_rate", 0)
    lanes = 64 if (properties.major, properties.minor) == (8, 0) else None
    lanes = lanes or _CORES_PER_SM.get(properties.major)
    if not clock_khz or lanes is None:
        return None
    return float(properties.multi_processor_count * lanes * clock_khz * 1e3 * 2)


def _memory_bandwidth(properties: Any) -> float | None:
    """Bus width x clock x 2 (both edges), if the driver gives them."""
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    width = getattr(properties, "memory_bus_width", 0)
    return float(clock_khz * 1e3 * 2 * width / 8) if clock_khz and width else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
