"""profile(graph, cluster) -> OperatorProblem: what each operator costs on each device.

`Profiler`: seconds of every operator on one device, measured if it is here, else computed.
`ProfileTable`: measured seconds that can be kept in a file and used again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.devices import analytic_seconds, cpu_model, kind_factors
from placewright.errors import InputError, MissingDependencyError, WorkerError
from placewright.graph.graph import Graph, Program
from placewright.io.arguments import checked
from placewright.io.boundary import FileModel, parse_json, read_text, validate
from placewright.io.output import output_file
from placewright.io.stored import locked, write_file
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT
from placewright.planning.contract import LOG
from placewright.profiling import message_cost
from placewright.profiling.message_cost import KEY, MessageCost, warn_of_messages
from placewright.profiling.profile_warnings import (
    NotMeasuredWarning,
    OtherMachineWarning,
    cores_to_measure,
    warn_of_background_load,
    warn_of_cores,
    warn_of_uncounted,
)

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


Method = Literal["auto", "in-place", "isolated", "analytic"]


@checked
def profile(
    graph: Graph,
    cluster: Cluster,
    *,
    state: Mapping[str, AnyTensor] | None = None,
    method: Method = "auto",
    table: ProfileTable | None = None,
    objective: Objective | str = Objective.LATENCY,
    links: Links | str = Links.CONTENDED,
    overlap: Overlap | str = Overlap.PARALLEL,
) -> OperatorProblem:
    """Find a graph's costs on a cluster.

    Parameters
    ----------
    state
        Real tensors for the program inputs; needed for ``in-place``.
    method
        ``in-place`` executes the step here and times every operator; ``isolated`` times one
        operator per signature; ``analytic`` computes from FLOPs and bytes; ``auto`` takes the
        first of these that is possible, the last one (and a `NotMeasuredWarning`) where PyTorch
        is not installed. CPUs, and GPUs that are here, are measured and scaled by their
        ``speed``; devices of other kinds are always analytic, and so is an operator that cannot
        be measured alone. On a GPU whose memory might not hold the step, operators are timed one
        at a time. A CPU with more cores than this machine is analytic where its ``peak_flops`` is
        known, else measured with fewer cores; both raise a `TooFewCoresWarning`.
    table
        Kept profile: its entries are not measured again, new measurements are added to it.

    Returns
    -------
    A problem whose operators and tensors are those of the graph, in the same order.

    Raises
    ------
    InputError
        ``in-place`` without a program or without state.
    MissingDependencyError
        `method` measures, and PyTorch is not installed.
    """
    table = table if table is not None else ProfileTable()
    profiler = Profiler(graph, _measuring_method(graph, state, method), state, table)
    if not torch_installed():
        profiler = _without_torch(profiler, cluster, method)
    gpus = {} if profiler.method == "analytic" else gpus_here(cluster.devices)
    warn_of_cores(graph.name, [d for d in cluster.devices if profiler.lacks_cores(d)])
    warn_of_uncounted(graph, [d for d in cluster.devices if profiler.computes(d, gpus.get(d.name))])
    compute_s = np.stack([profiler.seconds(d, gpus.get(d.name)) for d in cluster.devices], axis=1)
    return operator_problem(
        graph,
        profiler.delivered(cluster, measure=torch_installed()),
        compute_s,
        objective=Objective(objective),
        links=Links(links),
        overlap=Overlap(overlap),
    )


def _measuring_method(graph: Graph, state: object, method: Method) -> MeasuringMethod:
    runnable = isinstance(graph.program, Program)
    if method == "in-place" and (state is None or not runnable):
        raise InputError(
            "in-place profiling executes the model and needs its program and its weights",
            where=graph.name,
            hint="give the model itself, or use --method isolated or analytic",
        )
    if method != "auto":
        return method
    if not runnable:
        return "analytic"
    return "in-place" if state is not None else "isolated"


def _without_torch(profiler: Profiler, cluster: Cluster, requested: Method) -> Profiler:
    """The profiler if a kept profile has all that it would measure, else one that computes."""
    if not any(profiler.must_measure(device) for device in cluster.devices):
        return profiler
    if requested != "auto":
        purpose = f"profiling by the method {requested}"
        raise MissingDependencyError("torch", extra="torch", purpose=purpose)
    warnings.warn(
        f"costs of {profiler.graph.name} are computed from FLOPs and bytes: PyTorch, which "
        "measures them, is not installed\n"
        "  next: pip install 'placewright[torch]', or profile with --table where it is installed",
        NotMeasuredWarning,
        stacklevel=3,
    )
    return replace(profiler, method="analytic")


def operator_problem(
    graph: Graph,
    cluster: Cluster,
    compute_s: FloatArray,
    *,
    objective: Objective = Objective.LATENCY,
    links: Links = Links.CONTENDED,
    overlap: Overlap = Overlap.PARALLEL,
) -> OperatorProblem:
    """The problem of placing `graph` on `cluster` at these costs, shape (operators, devices)."""
    position = {op.name: i for i, op in enumerate(graph.operators)}
    latency, per_byte, channel, channel_names = cluster.link_arrays()
    consumers = [[position[c] for c in tensor.consumers] for tensor in graph.tensors]
    return OperatorProblem(
        name=graph.name,
        operator_names=graph.operator_names,
        device_names=cluster.device_names,
        compute_s=compute_s,
        tensor_names=tuple(t.name for t in graph.tensors),
        tensor_producer=np.array([position[t.producer] for t in graph.tensors], dtype=np.int64),
        tensor_bytes=np.array([t.bytes for t in graph.tensors], dtype=np.float64),
        consumer_offsets=np.cumsum([0, *map(len, consumers)]),
        consumers=np.array([c for group in consumers for c in group], dtype=np.int64),
        latency_s=latency,
        seconds_per_byte=per_byte,
        channel=channel,
        channel_names=channel_names,
        alias_of=_alias_of(graph),
        resident_bytes=np.array([op.resident_bytes for op in graph.operators], dtype=np.float64),
        memory_bytes=np.array([d.memory_bytes for d in cluster.devices]),
        colocation=_groups(graph),
        pinned=np.full(len(graph.operators), -1, dtype=np.int64),
        objective=objective,
        links=links,
        overlap=overlap,
        device_kinds=tuple(d.kind for d in cluster.devices),
        operator_modules=tuple(op.module for op in graph.operators),
        modules=graph.modules,
        operator_kinds=tuple(op.kind for op in graph.operators),
        output_shapes=tuple(op.outputs[0].shape if op.outputs else () for op in graph.operators),
        micro_batch=np.array([op.micro_batch for op in graph.operators], dtype=np.int64),
        program_order=any(op.from_weights for op in graph.operators),
    )


def _alias_of(graph: Graph) -> IntArray:
    """Shape (tensors,): what each tensor is a view of, as `OperatorProblem.alias_of` has it."""
    position = {tensor.name: k for k, tensor in enumerate(graph.tensors)}
    return np.array(
        [position.get(t.view_of, OF_RESIDENT) if t.view_of else NO_VIEW for t in graph.tensors],
        dtype=np.int64,
    )


def _groups(graph: Graph) -> IntArray:
    """A number per colocation group; operators without a group get a number each."""
    numbers: dict[str, int] = {}
    keys = [
        f"group {op.colocation}" if op.colocation else f"own {op.name}" for op in graph.operators
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def this_machine() -> str:
    """Identifies machines whose measurements can be compared: processor and system."""
    return f"{cpu_model()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"


@checked
@dataclass(slots=True)
class ProfileTable:
    """Seconds by operator name for each graph, method, and number of cores or model of GPU.

    Attributes
    ----------
    entries
        Key of `profile_key` -> operator name -> seconds; without the operators that could not
        be measured. The cost of a message has a key of its own (`message_cost.KEY`).
    machine
        The machine on which it was measured.
    file
        Written with every measurement; ``None`` for a table that is not kept.
    """

    entries: dict[str, dict[str, float]] = field(default_factory=dict)
    machine: str = field(default_factory=this_machine)
    file: Path | None = None

    def seconds(self, key: str, graph: Graph) -> FloatArray:
        """Seconds of every operator of the graph, shape (operators,), NaN where not measured."""
        kept = self.entries[key]
        return np.array([kept.get(op.name, np.nan) for op in graph.operators])

    def add(self, key: str, graph: Graph, seconds: FloatArray) -> None:
        """Keep a measurement, shape (operators,), NaN for those that could not be measured."""
        pairs = zip(graph.operator_names, seconds, strict=True)
        self.keep(key, {n: float(s) for n, s in pairs if not np.isnan(s)})

    def keep(self, key: str, numbers: dict[str, float]) -> None:
        """Keep numbers by name; a file of another machine is left as it is.

        What other processes have added to the file meanwhile stays in it.
        """
        self.entries[key] = numbers
        if self.file is None or self.machine != this_machine():
            return
        with locked(self.file):
            if _has_content(self.file):
                there = _contents(self.file)
                if there.machine != self.machine:
                    return
                self.entries = {**there.entries, **self.entries}
            self.write(self.file)

    @checked
    def write(self, path: str | Path) -> Path:
        """Write as JSON, all or nothing: what was there before stays until the end."""
        content = {"schema_version": 1, "machine": self.machine, "entries": self.entries}
        return write_file(path, json.dumps(content, indent=1))

    @staticmethod
    @checked
    def read(path: str | Path) -> ProfileTable:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            The file is missing or not a profile; names the field.

        Warns
        -----
        OtherMachineWarning
            It was measured on another machine.
        """
        data = _contents(path)
        _warn_of_another_machine(data.machine, str(path))
        return ProfileTable(data.entries, data.machine)

    @staticmethod
    @checked
    def kept(path: str | Path) -> ProfileTable:
        """The table in this file, or an empty one that becomes it with its first measurement.

        Raises
        ------
        InputError
            The file is not a profile, or could not be written.

        Warns
        -----
        OtherMachineWarning
            It was measured on another machine. What it lacks and is measured here stays out of
            the file.
        """
        file = Path(path)
        output_file(file)
        table = ProfileTable.read(file) if _has_content(file) else ProfileTable()
        table.file = file
        return table


class _ProfileFile(FileModel):
    schema_version: Literal[1]
    machine: str
    entries: dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]]


def _has_content(file: Path) -> bool:
    """Whether the file is there, and more than a lock of whoever has not written it yet."""
    return file.exists() and file.stat().st_size > 0


def _contents(path: str | Path) -> _ProfileFile:
    return validate(_ProfileFile, parse_json(read_text(path), where=str(path)), where=str(path))


def _warn_of_another_machine(machine: str, where: str) -> None:
    if machine == this_machine():
        return
    warnings.warn(
        f"{where} was measured on another machine ({machine}) than this one ({this_machine()}); "
        "what it lacks is measured here, and not added to it\n"
        "  next: name another file to measure everything here",
        OtherMachineWarning,
        stacklevel=3,
    )


def profile_key(graph: Graph, method: str, where: int | str) -> str:
    """One key per graph (names, kinds and signatures), method, and number of cores or GPU."""
    digest = hashlib.sha256()
    for op in graph.operators:
        digest.update(f"{op.name}\0{op.kind}\0{op.signature}\0{op.outputs}\n".encode())
    return f"{graph.name}/{digest.hexdigest()[:16]}/{method}/{where}"
