"""Computed costs: the roofline of Williams et al. 2009 (doi 10.1145/1498765.1498785).

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

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster.devices import Device
from placewright.numerics.arrays import FloatArray

if TYPE_CHECKING:
    from placewright.graph.graph import Operator

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
