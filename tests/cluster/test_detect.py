"""Detection of this machine's devices."""

from __future__ import annotations

import os
from types import SimpleNamespace

from placewright.cluster.cluster import Cluster
from placewright.cluster.detect import _cuda_device, _gpu_text, cpu_cores, host_memory_bytes


def test_the_cpu_is_one_device_with_all_cores() -> None:
    """Cores are those this process may use; memory is finite."""
    cpu = Cluster.detect().devices[0]
    assert cpu.kind == "cpu"
    assert cpu.cores == cpu_cores() <= (os.cpu_count() or 1)
    assert 2**28 < cpu.memory_bytes == host_memory_bytes() < float("inf")


def test_a_cuda_device_is_described_by_its_driver() -> None:
    """Peaks are clock x lanes x 2 and clock x width x 2, as of an A100: 19.5 TFLOPS, 1.56 TB/s."""
    a100 = SimpleNamespace(
        name="A100",
        total_memory=40 * 2**30,
        major=8,
        minor=0,
        multi_processor_count=108,
        clock_rate=1_410_000,
        memory_clock_rate=1_215_000,
        memory_bus_width=5120,
    )
    device = _cuda_device(3, a100)
    assert (device.name, device.kind) == ("cuda3", "gpu")
    assert device.peak_flops is not None
    assert abs(device.peak_flops - 19.49e12) < 0.01e12
    assert device.memory_bandwidth is not None
    assert abs(device.memory_bandwidth - 1.555e12) < 0.001e12
    assert _gpu_text(a100) == "A100, 40 GiB, compute capability 8.0"


def test_what_the_driver_does_not_tell_stays_unknown() -> None:
    """Nothing is invented."""
    bare = SimpleNamespace(total_memory=1, major=99, minor=0, multi_processor_count=1)
    device = _cuda_device(0, bare)
    assert device.peak_flops is None
    assert device.memory_bandwidth is None
