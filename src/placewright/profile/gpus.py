"""Which GPUs of a cluster are here, so that they can be measured instead of computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from placewright.arrays import FloatArray
from placewright.cluster.cluster import Device
from placewright.graph.graph import Graph
from placewright.profile.in_place import in_place_seconds
from placewright.profile.isolated import by_signature, isolated_seconds


@dataclass(frozen=True, slots=True)
class GpuHere:
    """A GPU of this machine: its number and the name of its model."""

    number: int
    model: str

    def seconds(
        self, graph: Graph, state: Mapping[str, torch.Tensor] | None, formula: FloatArray
    ) -> FloatArray:
        """Measured seconds of every operator, shape (operators,).

        The whole step in its place where there is `state`, else one operator per signature,
        `formula` for those that refuse made-up inputs.
        """
        if state is not None:
            return in_place_seconds(graph, state, gpu=self.number)
        place = f"cuda:{self.number}"
        return by_signature(graph, isolated_seconds(graph, torch_device=place), formula)


def gpus_here(devices: Sequence[Device]) -> dict[str, GpuHere]:
    """The GPUs of a cluster by name, in order, as far as this machine has that many."""
    if not torch.cuda.is_available():
        return {}
    names = [d.name for d in devices if d.kind == "gpu"][: torch.cuda.device_count()]
    return {n: GpuHere(k, torch.cuda.get_device_name(k)) for k, n in enumerate(names)}


def fits(graph: Graph, device: Device) -> bool:
    """Whether a step fits even if no tensor were ever given back."""
    held = sum(op.resident_bytes for op in graph.operators) + sum(t.bytes for t in graph.tensors)
    return held <= device.memory_bytes
