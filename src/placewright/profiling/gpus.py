"""Which GPUs of a cluster are here, so that they can be measured instead of computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from placewright.cluster.cluster import Device
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.profiling.in_place import in_place_seconds
from placewright.profiling.isolated import isolated_seconds
from placewright.runtime.host import name_here


@dataclass(frozen=True, slots=True)
class GpuHere:
    """A GPU of this machine: its number and the name of its model."""

    number: int
    model: str

    def seconds(self, graph: Graph, state: Mapping[str, torch.Tensor] | None) -> FloatArray:
        """Measured seconds of every operator, shape (operators,).

        The whole step in its place where there is `state`, else one operator per signature, NaN
        for those that refuse made-up inputs.
        """
        if state is not None:
            return in_place_seconds(graph, state, gpu=self.number)
        return isolated_seconds(graph, torch_device=f"cuda:{self.number}")


def gpus_here(devices: Sequence[Device]) -> dict[str, GpuHere]:
    """The GPUs of one node by name, in order, as far as this machine has that many.

    The node is the one that is called as this machine is (`name_here`), else the first with
    a GPU: those of the others are in other machines.
    """
    gpus = [d for d in devices if d.kind == "gpu"]
    if not gpus or not torch.cuda.is_available():
        return {}
    own = name_here()
    node = own if own in {d.node for d in gpus} else gpus[0].node
    names = [d.name for d in gpus if d.node == node][: torch.cuda.device_count()]
    return {n: GpuHere(k, torch.cuda.get_device_name(k)) for k, n in enumerate(names)}


def fits(graph: Graph, device: Device) -> bool:
    """Whether a step fits even if no tensor were ever given back."""
    held = sum(op.resident_bytes for op in graph.operators) + sum(t.bytes for t in graph.tensors)
    return held <= device.memory_bytes
