"""Profiler: seconds of every operator on one device, measured if it is here, else computed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.roofline import analytic_seconds, kind_factors
from placewright.errors import WorkerError
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import LOG
from placewright.profiling import message_cost
from placewright.profiling.message_cost import KEY, MessageCost, warn_of_messages
from placewright.profiling.profile_warnings import cores_to_measure, warn_of_background_load
from placewright.profiling.table import ProfileTable, profile_key

if TYPE_CHECKING:
    from placewright.io.tensor_files import AnyTensor

MeasuringMethod = Literal["in-place", "isolated", "analytic"]


def torch_installed() -> bool:
    """Whether PyTorch is installed; it is not loaded."""
    return importlib.util.find_spec("torch") is not None


@dataclass(frozen=True, slots=True)
class GpuHere:
    """A GPU of this machine: its number and the name of its model."""

    number: int
    model: str

    def seconds(self, graph: Graph, state: Mapping[str, AnyTensor] | None) -> FloatArray:
        """Measured seconds of every operator, shape (operators,).

        The whole step in place where there is `state`, else one operator per signature, NaN for
        those that refuse made-up inputs.
        """
        if state is not None:
            from placewright.profiling.measuring import in_place_seconds

            return in_place_seconds(graph, state, gpu=self.number)
        from placewright.profiling.measuring import isolated_seconds

        return isolated_seconds(graph, torch_device=f"cuda:{self.number}")


def gpus_here(devices: Sequence[Device]) -> dict[str, GpuHere]:
    """The GPUs of one node by name, in order, as many as this machine has.

    The node is the one with this machine's name (`name_here`), else the first with a GPU: those of
    other nodes are in other machines. PyTorch is not loaded for a cluster without GPUs.
    """
    gpus = [d for d in devices if d.kind == "gpu"]
    if not gpus or not torch_installed():
        return {}
    import torch

    from placewright.runtime.host import name_here

    if not torch.cuda.is_available():
        return {}
    own = name_here()
    node = own if own in {d.node for d in gpus} else gpus[0].node
    names = [d.name for d in gpus if d.node == node][: torch.cuda.device_count()]
    return {n: GpuHere(k, torch.cuda.get_device_name(k)) for k, n in enumerate(names)}


def fits(graph: Graph, device: Device) -> bool:
    """Whether a step fits even if no tensor were ever given back."""
    held = sum(op.resident_bytes for op in graph.operators) + sum(t.bytes for t in graph.tensors)
    return held <= device.memory_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Profiler:
    """A graph, the method by which its costs are found, and the table of measurements.

    `state` has real tensors for the program inputs; needed for ``in-place``. `measure` times all
    operators on a number of cores where another runtime than PyTorch executes the graph.
    """

    graph: Graph
    method: MeasuringMethod
    state: Mapping[str, AnyTensor] | None
    table: ProfileTable
    measure: Callable[[int], FloatArray] | None = None

    def seconds(self, device: Device, gpu: GpuHere | None = None) -> FloatArray:
        """Seconds on a device, shape (operators,); `gpu` where it is a GPU of this machine.

        What is measured on this machine has speed 1 and is scaled by the device's speed. The
        roofline has it already, and stands for what could not be measured.
        """
        formula = analytic_seconds(self.graph.operators, device)
        if gpu is not None:
            here = self._on_gpu(device, gpu)
        elif self._measures(device):
            here = self._on_cpu(device)
        else:
            return formula
        scaled = here / (device.speed * kind_factors(self.graph.operators, device))
        return np.where(np.isnan(scaled), formula, scaled)

    def computes(self, device: Device, gpu: GpuHere | None = None) -> bool:
        """Whether all of a device's costs are computed by formula."""
        return gpu is None and not (self._measures(device) and self._cores(device) > 0)

    def delivered(self, cluster: Cluster, *, measure: bool = True) -> Cluster:
        """The cluster with links between measured CPUs as the executor delivers over them.

        If the table has no message cost, it is measured if `measure`, else links stay as given.
        """
        measured = {d.name for d in cluster.devices if not self.computes(d)}
        links = [*cluster.links, *cluster.local_links()]
        between = [link for link in links if {link.source, link.target} <= measured]
        cost = self._messages(measure) if between else None
        if cost is None:
            return cluster
        taken = {(link.source, link.target): link for link in cluster.links}
        for link in between:
            pair = link.source, link.target
            given = pair in taken
            latency_s, per_byte = cost.line(link.latency_s, 1.0 / link.bandwidth, given=given)
            taken[pair] = replace(link, latency_s=latency_s, bandwidth=1.0 / max(per_byte, 1e-15))
        return replace(cluster, links=tuple(taken.values()))

    def lacks_cores(self, device: Device) -> bool:
        """Whether a CPU would be measured if this machine had as many cores."""
        return self._measures(device) and self._cores(device) != device.cores

    def must_measure(self, device: Device) -> bool:
        """Whether a CPU is measured and the table does not have it yet."""
        cores = self._cores(device) if self._measures(device) else 0
        return cores > 0 and profile_key(self.graph, self.method, cores) not in self.table.entries

    def _measures(self, device: Device) -> bool:
        return device.kind == "cpu" and self.method != "analytic"

    def _cores(self, device: Device) -> int:
        """Cores that are measured; a kept profile may be of a machine with more than this one."""
        kept = profile_key(self.graph, self.method, device.cores) in self.table.entries
        return device.cores if kept else cores_to_measure(device)

    def _messages(self, measure: bool) -> MessageCost | None:
        if measure and KEY not in self.table.entries:
            from placewright.adapt.run import measured_despite_losses

            try:
                found = measured_despite_losses(message_cost.measured_messages, LOG.info)
                self.table.keep(KEY, found.as_entries())
            except WorkerError as error:
                warn_of_messages(self.graph.name, error)
        return MessageCost.of(self.table.entries.get(KEY, {}))

    def _on_gpu(self, device: Device, gpu: GpuHere) -> FloatArray:
        """Seconds on a GPU of this machine, from the table where it has them, NaN where refused."""
        whole = self.state if self.method == "in-place" and fits(self.graph, device) else None
        key = profile_key(self.graph, "isolated" if whole is None else "in-place", gpu.model)
        if key not in self.table.entries:
            self.table.add(key, self.graph, gpu.seconds(self.graph, whole))
        return self.table.seconds(key, self.graph)

    def _on_cpu(self, device: Device) -> FloatArray:
        """Seconds on cores of this machine, likewise; all NaN where it has too few."""
        cores = self._cores(device)
        if cores == 0:
            return np.full(len(self.graph.operators), np.nan)
        key = profile_key(self.graph, self.method, cores)
        if key not in self.table.entries:
            warn_of_background_load(self.graph.name, cores)
            self.table.add(key, self.graph, self._measured(cores))
        return self.table.seconds(key, self.graph)

    def _measured(self, cores: int) -> FloatArray:
        if self.measure is not None:
            return self.measure(cores)
        if self.method == "in-place":
            from placewright.profiling.measuring import in_place_seconds

            assert self.state is not None
            return in_place_seconds(self.graph, self.state, cores=cores)
        from placewright.profiling.measuring import isolated_seconds

        return isolated_seconds(self.graph, cores=cores)
