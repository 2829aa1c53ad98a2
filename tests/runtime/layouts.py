"""Sessions on CPUs in the layouts of processes and devices that GPUs have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.cluster.cluster import Cluster
from placewright.runtime.engines.local import Local, LocalGroup
from placewright.runtime.specs import PLACED_STEPS, Layout, backend_of


@dataclass(frozen=True, slots=True)
class Laid:
    """The local engine with `processes` by device, of which the first `gpus` are as if GPUs.

    Messages between those take the path that NCCL's take, on a gloo group of their own.
    """

    processes: Sequence[int]
    gpus: int = 0
    name: str = "local"

    def group(self, cluster: Cluster, program: str = PLACED_STEPS) -> LocalGroup:
        """Workers in that layout."""
        engine = Local(emulate=False, driven_by=tuple(self.processes))
        group = engine.group(cluster, program)
        layout = as_if_gpus(group.specs[0].layout, self.gpus)
        group.specs = tuple(replace(spec, layout=layout) for spec in group.specs)
        return group

    def emulated(self, cluster: Cluster, hosts: Sequence[object]) -> str:
        """Nothing."""
        return ""


def as_if_gpus(layout: Layout, gpus: int) -> Layout:
    """The layout as if the first devices were GPUs."""
    devices = [
        replace(d, torch_device="cuda" if k < gpus else "cpu") for k, d in enumerate(layout.devices)
    ]
    ways = tuple(tuple(backend_of(a, b) for b in devices) for a in devices)
    return replace(layout, ways=ways, direct="gloo")
