"""What a run has seen of its devices and links, by their names: it outlives the workers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from placewright.numerics.arrays import FloatArray


@dataclass(slots=True)
class Observed:
    """Written by the `OnlineProfile` of every set of workers, one after the other.

    Attributes
    ----------
    factors
        By device, how many times slower than profiled it was in the last samples; only of those
        whose steps show it.
    usual
        What `factors` over `slowness` were before anything changed: what the profile is wrong by.
    links
        By source and target, latency in seconds and seconds per byte.
    first_probe_s
        By device, what its first probe took: its speed when it was profiled.
    slowness
        By device, how many times slower than at first it was when all were last probed.
    deviation
        Shape (n,): every operator's own factor; empty before the first sample.
    """

    factors: dict[str, list[float]] = field(default_factory=dict)
    usual: list[float] = field(default_factory=list)
    links: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    first_probe_s: dict[str, float] = field(default_factory=dict)
    slowness: dict[str, float] = field(default_factory=dict)
    deviation: FloatArray = field(default_factory=lambda: np.empty(0))

    def slower(self, device: str, probe_s: float) -> float:
        """How many times slower a device is than when it was first probed."""
        return probe_s / self.first_probe_s.setdefault(device, probe_s)
