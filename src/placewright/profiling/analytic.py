"""Costs by formula where a device is not here: the roofline of Williams et al. 2009.

Source: doi 10.1145/1498765.1498785. The roof is not the peak but the share of it that is reached
(`placewright.profiling.efficiency`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.cluster.cluster import Device
from placewright.graph.graph import Operator
from placewright.numerics.arrays import FloatArray
from placewright.profiling.efficiency import efficiency_of, product_efficiency

PEAK_FLOPS = {"cpu": 50e9, "gpu": 20e12, "npu": 4e12}
"""Peak FLOP/s assumed for a device that does not say; per core for ``cpu``."""

MEMORY_BANDWIDTH = {"cpu": 15e9, "gpu": 800e9, "npu": 60e9}
"""Peak bytes/s assumed for a device that does not say."""

LAUNCH_OVERHEAD_S = {"cpu": 5e-6, "gpu": 8e-6, "npu": 20e-6}
"""Seconds per operator assumed for a device that does not say."""


def analytic_seconds(operators: Sequence[Operator], device: Device) -> FloatArray:
    """Seconds of each operator on one device, shape (operators,).

    The largest of products / (peak x efficiency of their kind), work per element / (peak x its
    efficiency) and bytes / (bandwidth x its efficiency), and the launch overhead; an operator
    that neither computes nor moves bytes (a view) takes the overhead alone. Peaks that the device
    gives are its own; ``speed`` scales only what is assumed for it.
    """
    default = device.kind if device.kind in PEAK_FLOPS else "cpu"
    per_core = device.cores if default == "cpu" else 1
    peak = device.peak_flops or PEAK_FLOPS[default] * per_core * device.speed
    bandwidth = device.memory_bandwidth or MEMORY_BANDWIDTH[default] * device.speed
    overhead = device.launch_overhead_s
    if overhead is None:
        overhead = LAUNCH_OVERHEAD_S[default] / device.speed
    products = np.array([op.flops for op in operators]) / product_efficiency(operators, device)
    each = np.array([op.elementwise_flops for op in operators])
    each = each / efficiency_of(device, "elementwise")
    computing = np.maximum(products, each) / (peak * kind_factors(operators, device))
    moved = np.array([op.bytes_accessed for op in operators], dtype=np.float64)
    moving = moved / (bandwidth * efficiency_of(device, "memory"))
    roofline: FloatArray = np.maximum(computing, moving) + overhead
    return roofline


def kind_factors(operators: Sequence[Operator], device: Device) -> FloatArray:
    """The device's extra speed for each operator, 1 where it says nothing.

    A key of ``speed_by_kind`` applies to every kind that contains it: ``convolution`` to
    ``aten.convolution.default`` and to ``aten.convolution_backward.default``.
    """
    factors = np.ones(len(operators))
    for key, factor in device.speed_by_kind.items():
        factors[[key in op.kind for op in operators]] = factor
    return factors
