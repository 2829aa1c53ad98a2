"""Published figures of accelerators, for what a profile does not say.

Peak FLOP/s are dense, of the tensor cores for 16 bits summed in 32 where there are any; bandwidths
are those of the memory. Sources: NVIDIA's data sheets of P100 (2016), T4 (DS-09197), V100 (SXM2,
2020), A100 (2021), H100 and GH200 (2023); white papers of Turing, Ampere and Ada for the others.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Peak FLOP/s of 16-bit matrix products, and bytes/s of the memory."""

    flops_16: float
    memory_bandwidth: float


DATA_SHEETS = {
    "P100": DataSheet(21e12, 732e9),
    "T4": DataSheet(65e12, 320e9),
    "V100": DataSheet(125e12, 900e9),
    "A100": DataSheet(312e12, 1555e9),
    "H100": DataSheet(989e12, 3350e9),
    "H200": DataSheet(989e12, 4800e9),
    "GH": DataSheet(989e12, 4000e9),
    "L4": DataSheet(121e12, 300e9),
    "L40": DataSheet(181e12, 864e9),
    "A10": DataSheet(125e12, 600e9),
    "A40": DataSheet(150e12, 696e9),
    "A6000": DataSheet(155e12, 768e9),
    "TITAN": DataSheet(130e12, 672e9),
    "2080": DataSheet(40e12, 448e9),
    "2080TI": DataSheet(54e12, 616e9),
    "3090": DataSheet(71e12, 936e9),
    "4090": DataSheet(165e12, 1008e9),
}

OTHER = DataSheet(65e12, 320e9)
"""For devices that are not in the list: T4."""


def data_sheet(device: str) -> DataSheet:
    """The figures of a device by what its name holds: ``Tesla-V100-16``, ``RTX 2080 Ti``."""
    names = sorted(DATA_SHEETS, key=len, reverse=True)
    plain = "".join(c for c in device.upper() if c.isalnum())
    return next((DATA_SHEETS[n] for n in names if n in plain), OTHER)


def adam_s_per_parameter(device: str, *, mixed: bool, fused: bool) -> float:
    """Seconds of an Adam step per parameter: bytes read and written over the bandwidth.

    Fused: weight and two moments, both ways, and the gradient. One operation after another
    (``mul_``, ``addcmul_``, ``sqrt``, ``addcdiv_``): 18 four-byte accesses. Mixed precision before
    that: overflow check (2), widening (2 + 4), norm (4), unscaling (4 + 4); after it the 16-bit
    weights (4 + 2). Kingma and Ba, arXiv 1412.6980; Micikevicius et al., arXiv 1710.03740.
    """
    each = (3 * 8 + 4 if fused else 18 * 4) + (26 if mixed else 0)
    return each / data_sheet(device).memory_bandwidth


def pack_s_per_parameter(device: str, *, mixed: bool) -> float:
    """Seconds per parameter to flatten gradients, divide them, and unflatten the sums.

    Each reads and writes an element; 16-bit gradients are also widened before and narrowed after.
    """
    each = (2 + 2) + (2 + 4) + (4 + 4) + (4 + 2) + (2 + 2) if mixed else 3 * (4 + 4)
    return each / data_sheet(device).memory_bandwidth
