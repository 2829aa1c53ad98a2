"""Detection of this machine's devices: its CPU as one device, and each CUDA device."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from placewright.cluster.devices import Device

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
