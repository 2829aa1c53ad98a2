"""Sessions on CPUs in layouts that only GPUs have by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.cluster.cluster import Cluster
from placewright.execute.local import Local, LocalGroup
from placewright.execute.ways import Layout


@dataclass(frozen=True, slots=True)
class Laid:
    """The local engine with `processes` by device; messages between them without tags if asked.

    Untagged messages take the path that NCCL's take, on a gloo group of their own.
    """

    processes: Sequence[int]
    untagged: bool = False
    name: str = "local"

    def group(self, cluster: Cluster) -> LocalGroup:
        """Workers in that layout."""
        engine = Local(emulate=False, driven_by=tuple(self.processes))
        group = engine.group(cluster)
        if self.untagged:
            layout = untagged(group.specs[0].layout)
            group.specs = tuple(replace(spec, layout=layout) for spec in group.specs)
        return group

    def emulated(self, cluster: Cluster, hosts: Sequence[object]) -> str:
        """Nothing."""
        return ""


def untagged(layout: Layout) -> Layout:
    """The layout as if all its devices were GPUs of their own process."""
    ways = tuple(
        tuple("copy" if a.process == b.process else "nccl" for b in layout.devices)
        for a in layout.devices
    )
    return replace(layout, ways=ways, direct="gloo")  # type: ignore[arg-type]
