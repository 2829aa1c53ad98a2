"""Seconds of every operator on one device: measured where the device is here, else computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import WorkerError
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.profiling.analytic import analytic_seconds, kind_factors
from placewright.profiling.background_load import warn_of_background_load
from placewright.profiling.cores import cores_to_measure
from placewright.profiling.delivery import KEY, MessageCost, warn_of_messages
from placewright.profiling.table import ProfileTable, profile_key

if TYPE_CHECKING:
    import torch

    from placewright.profiling.gpus import GpuHere

Way = Literal["in-place", "isolated", "analytic"]


@dataclass(frozen=True, slots=True, eq=False)
class Profiler:
    """What is measured, and how.

    Attributes
    ----------
    state
        Real tensors for the program inputs; needed for ``in-place``.
    table
        What was measured before; what is measured now is added.
    """

    graph: Graph
    way: Way
    state: Mapping[str, torch.Tensor] | None
    table: ProfileTable

    def seconds(self, device: Device, gpu: GpuHere | None = None) -> FloatArray:
        """Seconds on a device, shape (operators,).

        This machine's devices have speed 1, and so has what is measured on them. The formula
        is the device's own already, and stands for what could not be measured.

        Parameters
        ----------
        gpu
            The device, where it is a GPU of this machine.
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
        """Whether a device's costs are the formula's, of every operator."""
        return gpu is None and not (self._measures(device) and self._cores(device) > 0)

    def delivered(self, cluster: Cluster, *, measure: bool = True) -> Cluster:
        """The cluster with links between measured CPUs as the executor delivers over them.

        Parameters
        ----------
        measure
            Measure what a message costs if the table does not have it; else such links stay as
            they are given.
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
        return cores > 0 and profile_key(self.graph, self.way, cores) not in self.table.entries

    def _measures(self, device: Device) -> bool:
        return device.kind == "cpu" and self.way != "analytic"

    def _cores(self, device: Device) -> int:
        """Cores that are measured; a kept profile may be of a larger machine than this."""
        kept = profile_key(self.graph, self.way, device.cores) in self.table.entries
        return device.cores if kept else cores_to_measure(device)

    def _messages(self, measure: bool) -> MessageCost | None:
        if measure and KEY not in self.table.entries:
            from placewright.profiling.messages import measured_messages

            try:
                self.table.keep(KEY, measured_messages().as_entries())
            except WorkerError as error:
                warn_of_messages(self.graph.name, error)
        return MessageCost.of(self.table.entries.get(KEY, {}))

    def _on_gpu(self, device: Device, gpu: GpuHere) -> FloatArray:
        """Seconds on a GPU of this machine, from the table where it has them, NaN where refused."""
        from placewright.profiling.gpus import fits

        whole = self.state if self.way == "in-place" and fits(self.graph, device) else None
        key = profile_key(self.graph, "isolated" if whole is None else "in-place", gpu.model)
        if key not in self.table.entries:
            self.table.add(key, self.graph, gpu.seconds(self.graph, whole))
        return self.table.seconds(key, self.graph)

    def _on_cpu(self, device: Device) -> FloatArray:
        """Seconds on cores of this machine, likewise; all NaN where it has too few."""
        cores = self._cores(device)
        if cores == 0:
            return np.full(len(self.graph.operators), np.nan)
        key = profile_key(self.graph, self.way, cores)
        if key not in self.table.entries:
            warn_of_background_load(self.graph.name, cores)
            self.table.add(key, self.graph, self._measured(cores))
        return self.table.seconds(key, self.graph)

    def _measured(self, cores: int) -> FloatArray:
        if self.way == "in-place":
            from placewright.profiling.in_place import in_place_seconds

            assert self.state is not None
            return in_place_seconds(self.graph, self.state, cores=cores)
        from placewright.profiling.isolated import isolated_seconds

        return isolated_seconds(self.graph, cores=cores)
