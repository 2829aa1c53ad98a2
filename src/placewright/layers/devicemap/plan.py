"""A device map: consecutive ranges of layers, each on a device of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers [start, end) on a device; the weights of the last `from_disk` are read in each step.

    `device`: its position in the cluster.
    """

    device: int
    start: int
    end: int
    from_disk: int = 0


@dataclass(frozen=True, slots=True)
class MapPlan:
    """Ranges in the order in which tokens pass them; together they are all layers."""

    ranges: tuple[LayerRange, ...]
