"""Tiny problems of layers in a ring, for the conformance kit and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.layers.halda.problem import (
    Gpu,
    RingDevice,
    RingModel,
    RingPlan,
    RingProblem,
    check_plan,
)

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_plan", "random_problems", "random_tiny", "same_plan", "tiny", "tiny_instances"]


def model(layers: int, **changes: Any) -> RingModel:
    """Layers of 100 bytes and 50 FLOPs."""
    usual: dict[str, Any] = {
        "name": "model",
        "num_layers": layers,
        "layer_bytes": 100.0,
        "input_bytes": 40.0,
        "output_bytes": 20.0,
        "vocabulary": 10,
        "kv_heads": 2,
        "kv_head_dim": 2,
        "kv_tokens": 4,
        "layer_flops": 50.0,
        "output_flops": 10.0,
    }
    return RingModel(**usual | changes)


def device(name: str, os: str = "linux", gpu_bytes: float = 0.0, **changes: Any) -> RingDevice:
    """A device with 400 bytes of RAM; with a GPU if that has memory."""
    api = "metal" if os.startswith("mac") else "cuda"
    gpu = None
    if gpu_bytes:
        gpu = Gpu(api=api, flops_per_s=500.0, bytes_per_s=2000.0, memory_bytes=gpu_bytes)  # type: ignore[arg-type]
    usual: dict[str, Any] = {
        "name": name,
        "os": os,
        "is_head": name == "d0",
        "unified_memory": os.startswith("mac"),
        "cpu_flops_per_s": 100.0,
        "cpu_bytes_per_s": 1000.0,
        "ram_bytes": 400.0,
        "disk_bytes_per_s": 200.0,
        "gpu": gpu,
        "hop_s": 0.05,
        "swappable_bytes": 150.0,
        "swap_free_bytes": 120.0,
    }
    return RingDevice(**usual | changes)


def tiny(layers: int, *devices: RingDevice, **changes: Any) -> RingProblem:
    """A ring of these devices, the first one, ``d0``, its head."""
    usual: dict[str, Any] = {"model": model(layers), "devices": devices, "name": "tiny"}
    return RingProblem(**usual | changes)


def random_tiny(seed: int) -> RingProblem:
    """Up to three devices of all kinds, and up to eight layers that need not fit."""
    rng = np.random.default_rng(seed)
    kinds = ("mac_metal", "mac_no_metal", "linux", "android", "windows")
    found = []
    for k in range(int(rng.integers(1, 4))):
        kind = str(rng.choice(kinds))
        gpu = float(rng.choice([0.0, 150.0, 400.0, 900.0])) if kind != "mac_no_metal" else 0.0
        found.append(
            device(
                f"d{k}",
                kind,
                gpu,
                ram_bytes=float(rng.choice([0.0, 200.0, 700.0])),
                disk_bytes_per_s=float(rng.choice([50.0, 500.0])),
                cpu_bytes_per_s=float(rng.choice([300.0, 3000.0])),
                hop_s=float(rng.choice([0.0, 0.3])),
                ram_to_vram_s=0.02,
                gpu_buffer_bytes=float(rng.choice([0.0, 30.0])),
            )
        )
    caches = ("4bit", "8bit", "fp16")
    return tiny(int(rng.integers(1, 9)), *found, kv_cache=str(rng.choice(caches)))


def tiny_instances() -> Mapping[str, RingProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    return {
        "one-device": tiny(4, device("d0")),
        "one-layer": tiny(1, device("d0")),
        "too-large": tiny(8, device("d0", "mac_metal", 300.0)),
        "two-macs": tiny(8, device("d0", "mac_metal", 300.0), device("d1", "mac_metal", 900.0)),
        "more-devices-than-layers": tiny(2, *(device(f"d{k}") for k in range(3))),
        "a-gpu-beside-ram": tiny(6, device("d0", "linux", 250.0)),
        "all-kinds": tiny(
            8,
            device("d0", "mac_no_metal"),
            device("d1", "android"),
            device("d2", "linux", 400.0),
            device("d3", "mac_metal", 400.0),
        ),
    }


def random_problems() -> SearchStrategy[RingProblem]:
    """Devices and models with every option."""
    from hypothesis import strategies

    return strategies.builds(random_tiny, strategies.integers(0, 2**32 - 1))


def same_plan(plan: RingPlan, other: RingPlan) -> bool:
    """Whether two plans are equal."""
    return plan == other
