"""The roofline formula on hand-computed cases."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import (
    EFFICIENCY,
    LAUNCH_OVERHEAD_S,
    WORK,
    Device,
    _cuda_device,
    _gpu_text,
    analytic_seconds,
    cpu_cores,
    host_memory_bytes,
)
from placewright.graph.graph import Operator

DEVICE = Device(
    "d",
    kind="gpu",
    peak_flops=1e12,
    memory_bandwidth=1e11,
    launch_overhead_s=1e-6,
    efficiency=dict.fromkeys(WORK, 1.0),
)


def test_the_slower_of_compute_and_memory_decides() -> None:
    """2 GFLOP at 1 TFLOP/s is 2 ms; 1 GB at 100 GB/s is 10 ms; a view costs the overhead."""
    operators = [
        Operator("a", "aten.mm.default", flops=2e9, bytes_accessed=1e6),
        Operator("b", "aten.add.Tensor", flops=1e6, bytes_accessed=1e9),
        Operator("c", "aten.view.default"),
    ]
    assert analytic_seconds(operators, DEVICE) == pytest.approx([2.001e-3, 10.001e-3, 1e-6])


def test_the_roof_is_the_share_of_the_peak_that_is_reached() -> None:
    """By kind of work; what the device does not give is the default of its kind."""
    device = replace(DEVICE, efficiency={"attention": 0.5, "memory": 0.25, "elementwise": 0.1})
    attention = "aten._scaled_dot_product_flash_attention.default"
    operators = [
        Operator("a", attention, flops=1e9),
        Operator("b", "aten.mm.default", flops=1e9),
        Operator("c", "aten.cat.default", bytes_accessed=1e9),
        Operator("d", "aten.erf.default", elementwise_flops=1e9),
    ]
    wanted = [2e-3, 1e-3 / EFFICIENCY["gpu"]["matmul"], 40e-3, 10e-3]
    assert analytic_seconds(operators, device) - 1e-6 == pytest.approx(wanted)


def test_speed_by_kind_scales_only_its_kind() -> None:
    """A device twice as good at matrix products halves those and nothing else."""
    device = replace(DEVICE, memory_bandwidth=1e30, speed_by_kind={"mm": 2.0})
    operators = [
        Operator("a", "aten.mm.default", flops=2e12),
        Operator("b", "aten.convolution.default", flops=2e12),
    ]
    assert analytic_seconds(operators, device) == pytest.approx([1, 2], rel=1e-3)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "npu"])
def test_no_overhead_is_not_an_unknown_one(kind: str) -> None:
    """A view costs nothing where the overhead is zero, and the kind's default otherwise."""
    views = [Operator("a", "aten.view.default")]
    assert analytic_seconds(views, Device("d", kind=kind, launch_overhead_s=0.0)) == [0.0]
    assert analytic_seconds(views, Device("d", kind=kind)) == [LAUNCH_OVERHEAD_S[kind]]


def test_speed_scales_what_is_assumed_and_not_what_is_given() -> None:
    """What a device says of itself holds at any speed; half the speed doubles all the rest."""
    operators = [Operator("a", "aten.mm.default", flops=2e9, bytes_accessed=1e6)]
    computed = [analytic_seconds(operators, replace(DEVICE, speed=speed)) for speed in (1.0, 0.5)]
    assumed = [analytic_seconds(operators, Device("d", speed=speed)) for speed in (1.0, 0.5)]
    assert computed[0] == computed[1]
    assert assumed[1] == pytest.approx(2 * assumed[0])


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
