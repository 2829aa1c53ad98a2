"""Graphs of neural networks from published systems.

- ``msr:FILE.json``: DNN graphs with accelerators and CPU cores, and human-expert splits.
- ``pipedream:FILE.txt``: profiled training graphs, on a cluster of your choice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from placewright.errors import InputError, UnknownNameError, look_up
from placewright.io.arguments import Range, checked
from placewright.io.boundary import parse_json, read_text, validate
from placewright.numerics.arrays import FloatArray, IntArray, frozen_float, frozen_int
from placewright.operators.builder import ProblemBuilder
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.problem import Communication, Objective, OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MILLISECOND_S = 1e-3
"""The unit of times and costs in the files, in seconds."""
MOST_DEVICES = 1024
"""Most devices of a kind; tables have a row and a column for each."""


class _GraphModel(BaseModel):
    """Published files carry notes of their own, such as layer ids."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class MsrNode(_GraphModel):
    """One operator; times in milliseconds."""

    id: int
    supported: Annotated[bool, Field(alias="supportedOnFpga")] = True
    cpu: Annotated[Amount, Field(alias="cpuLatency")]
    accelerator: Annotated[Amount, Field(alias="fpgaLatency")]
    backward: Annotated[bool, Field(alias="isBackwardNode")] = False
    color: Annotated[int | None, Field(alias="colorClass")] = None
    size: Amount = 0.0


class EdgeEntry(_GraphModel):
    """One use of a node's output; the cost is that of the output, whichever node uses it, in ms."""

    source: Annotated[int, Field(alias="sourceId")]
    target: Annotated[int, Field(alias="destId")]
    cost: Amount


class MsrFile(_GraphModel):
    """A workload of Tarnawski et al."""

    memory: Annotated[Amount, Field(alias="maxSizePerFPGA")]
    accelerators: Annotated[int, Field(alias="maxFPGAs", ge=0, le=MOST_DEVICES)]
    cpus: Annotated[int, Field(alias="maxCPUs", ge=0, le=MOST_DEVICES)]
    nodes: Annotated[list[MsrNode], Field(min_length=1)]
    edges: list[EdgeEntry]


class _Machine(_GraphModel):
    nodes: list[int]


class ExpertFile(_GraphModel):
    """A split: which nodes are on which device."""

    cpus: list[_Machine] = []
    fpgas: list[_Machine] = []


@checked
def read_msr(
    path: str | Path,
    objective: Objective | str = Objective.THROUGHPUT,
    *,
    contiguous: bool = False,
    calls: int = 1,
    cost_scale: Annotated[float, Range(high=1e15)] = 1.0,
) -> OperatorProblem:
    """Read a workload of Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423).

    Operators are called by their ids, devices ``acc0``, ... and ``cpu0``, ... The files have
    milliseconds, the problem has seconds. One tensor per producer. The files do not say how large
    it is, only how many milliseconds it takes between an accelerator and host memory: that number
    stands in `tensor_bytes`, and an accelerator pays 1 ms for each when one leaves or enters, a
    CPU nothing.

    Parameters
    ----------
    objective
        Not in the file; throughput by default.
    contiguous, calls
        As in `OperatorProblem`.
    cost_scale
        Costs are multiplied by it: some published files have costs in seconds and times in
        milliseconds; 1000 reads those as they are meant.

    Raises
    ------
    InputError
        Missing or bad fields, edges of unlike cost from one node, cycles; names file and field.
    """
    where = str(path)
    entry = validate(MsrFile, parse_json(read_text(path), where=where), where=where)
    index = _index(entry.nodes, where)
    names = tuple(str(node.id) for node in entry.nodes)
    k, cpus = entry.accelerators, entry.cpus
    m = k + cpus
    if m == 0:
        raise InputError("there is no device: maxFPGAs and maxCPUs are both 0", where=where)
    producers, readers, cost = _tensors(entry.edges, index, where)
    return OperatorProblem(
        name=Path(path).stem,
        operator_names=names,
        device_names=tuple([f"acc{d}" for d in range(k)] + [f"cpu{d}" for d in range(cpus)]),
        compute_s=_times(entry.nodes, k, cpus),
        tensor_names=tuple(names[i] for i in producers),
        tensor_producer=frozen_int(producers),
        tensor_bytes=np.array(cost) * cost_scale,
        consumer_offsets=np.cumsum([0, *map(len, readers)]),
        consumers=frozen_int([j for some in readers for j in some]),
        latency_s=np.where(np.eye(m) > 0, 0.0, np.inf),
        seconds_per_byte=np.where(np.eye(m) > 0, 0.0, np.inf),
        channel=np.full((m, m), -1),
        channel_names=(),
        resident_bytes=frozen_float([node.size for node in entry.nodes]),
        memory_bytes=frozen_float([entry.memory] * k + [np.inf] * cpus),
        colocation=_classes(entry.nodes),
        pinned=np.full(len(names), -1),
        objective=Objective(objective),
        communication=Communication.STAR,
        host_seconds_per_byte=frozen_float([MILLISECOND_S] * k + [0.0] * cpus),
        contiguous=contiguous,
        is_backward=np.array([node.backward for node in entry.nodes]),
        calls=calls,
    )


@checked
def read_expert(path: str | Path, problem: OperatorProblem) -> OperatorPlan:
    """Read a human expert's split as a plan to compare with.

    A split of the forward pass is taken for training too: an operator that it leaves out goes
    to the device of its colour class.

    Raises
    ------
    UnknownNameError
        A node that the problem does not have.
    InputError
        More devices than the problem has, or an operator without a device.
    """
    where = str(path)
    entry = validate(ExpertFile, parse_json(read_text(path), where=where), where=where)
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    device = {name: d for d, name in enumerate(problem.device_names)}
    place = np.full(problem.n, -1)
    for kind, key, machines in (("acc", "fpgas", entry.fpgas), ("cpu", "cpus", entry.cpus)):
        for at, machine in enumerate(machines):
            for node in machine.nodes:
                place[look_up("operator", str(node), operator, f"{where}: {key}[{at}]")] = look_up(
                    "device", f"{kind}{at}", device, f"{where}: {key}[{at}]"
                )
    place = _with_classes(problem, place)
    if place.min() < 0:
        missing = problem.operator_names[int(place.argmin())]
        raise InputError(
            f"operator {missing!r} has no device",
            where=where,
            by=f"{int((place < 0).sum())} of {problem.n} are missing",
        )
    plan = OperatorPlan(place)
    check_plan(problem, plan)
    return plan


def _index(nodes: Sequence[MsrNode], where: str) -> dict[int, int]:
    index = {node.id: i for i, node in enumerate(nodes)}
    if len(index) < len(nodes):
        twice = next(node.id for i, node in enumerate(nodes) if index[node.id] != i)
        raise InputError(f"id {twice} is used twice", where=f"{where}: nodes")
    return index


def _times(nodes: Sequence[MsrNode], k: int, cpus: int) -> FloatArray:
    """Seconds of every node on every device, ``inf`` on an accelerator that cannot run it."""
    accelerator = [node.accelerator if node.supported else np.inf for node in nodes]
    times_ms = np.stack([accelerator] * k + [[node.cpu for node in nodes]] * cpus, axis=1)
    times_s: FloatArray = times_ms * MILLISECOND_S
    return times_s


def _tensors(
    edges: Sequence[EdgeEntry], index: Mapping[int, int], where: str
) -> tuple[list[int], list[list[int]], list[float]]:
    """Producers in order of their first edge, their readers, and their costs."""
    readers: dict[int, dict[int, None]] = {}
    cost: dict[int, float] = {}
    for at, edge in enumerate(edges):
        for key, end in (("sourceId", edge.source), ("destId", edge.target)):
            if end not in index:
                raise UnknownNameError(
                    "node", str(end), map(str, index), where=f"{where}: edges[{at}].{key}"
                )
        i, j = index[edge.source], index[edge.target]
        if abs(cost.setdefault(i, edge.cost) - edge.cost) > 1e-6:
            raise InputError(
                "edges from one node must have one cost",
                where=f"{where}: edges[{at}].cost",
                by=f"{edge.cost} and {cost[i]} from node {edge.source}",
            )
        readers.setdefault(i, {})[j] = None
    return list(readers), [list(some) for some in readers.values()], list(cost.values())


def _classes(nodes: Sequence[MsrNode]) -> IntArray:
    """Position of the first node of each colour class; a node without one is alone."""
    first: dict[int, int] = {}
    own = enumerate(nodes)
    return np.array([i if n.color is None else first.setdefault(n.color, i) for i, n in own])


def _with_classes(problem: OperatorProblem, place: IntArray) -> IntArray:
    """Operators without a device take that of their class, where it has one."""
    _, group = np.unique(problem.colocation, return_inverse=True)
    of_group = np.full(int(group.max()) + 1, -1)
    np.maximum.at(of_group, group, place)
    return np.where(place < 0, of_group[group], place)


_NODE = re.compile(r"^(\S+) -- (.*) -- (.*)$")
_EDGE = re.compile(r"^\s+(\S+) -- (\S+)\s*$")
_NUMBERS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
GRADIENT = "/backward"
"""Suffix of the names of backward operators."""


@dataclass(slots=True)
class _Layers:
    """The file's columns; `readers` are positions."""

    names: list[str] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    activation_bytes: list[float] = field(default_factory=list)
    parameter_bytes: list[float] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)


@checked
def read_pipedream(path: str | Path, cluster: Cluster) -> OperatorProblem:
    """Read a profile of PipeDream (Narayanan et al., SOSP 2019, doi 10.1145/3341301.3359646).

    Each layer becomes a forward and a backward operator (``NAME`` and ``NAME/backward``) that
    share a device. A forward tensor carries the layer's activations to its readers; the readers'
    backward operators send a gradient of the same size each. Seconds are the profile's over the
    device's speed; the forward operator holds the parameters. Nodes called ``Input...`` stand
    for the data loader and are dropped.

    Raises
    ------
    InputError
        A line that is neither node nor edge, a missing or bad number; names file and line.
    """
    layers = _read(str(path), read_text(path))
    name = Path(path).name.removesuffix(".txt").removesuffix(".graph")
    builder = OperatorProblem.builder(cluster, name)
    for layer, seconds, held in zip(
        layers.names, layers.forward_s, layers.parameter_bytes, strict=True
    ):
        builder.add_operator(layer, seconds, resident_bytes=held)
    for layer, seconds in zip(layers.names, layers.backward_s, strict=True):
        builder.add_operator(layer + GRADIENT, seconds, backward=True)
        builder.colocate(layer, layer + GRADIENT)
    _add_tensors(builder, layers)
    return builder.build(objective=Objective.THROUGHPUT)


def _add_tensors(builder: ProblemBuilder, layers: _Layers) -> None:
    """Activations forward, and what each layer keeps for its backward pass; then gradients."""
    readers = [[layers.names[j] for j in some] for some in layers.readers]
    for layer, size, some in zip(layers.names, layers.activation_bytes, readers, strict=True):
        builder.add_tensor(layer, [*some, layer + GRADIENT], size, name=layer)
    for layer, size, some in zip(layers.names, layers.activation_bytes, readers, strict=True):
        for reader in some:
            name = f"{reader}{GRADIENT}->{layer}"
            builder.add_tensor(reader + GRADIENT, layer + GRADIENT, size, name=name)


def _read(where: str, text: str) -> _Layers:
    layers, index, dropped = _Layers(), dict[str, int](), set[str]()
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        at = f"{where}:{number}"
        edge, node = _EDGE.match(line), _NODE.match(line)
        if edge:
            edges.append((at, edge[1], edge[2]))
        elif node:
            name, description, rest = node.groups()
            if name in index or name in dropped:
                raise InputError(f"node {name!r} is there twice", where=at)
            if description.startswith("Input"):
                dropped.add(name)
            else:
                index[name] = len(index)
                _add(layers, name, _numbers(rest, at))
        elif line.strip():
            raise InputError("is neither a node nor an edge", where=at, by=line.strip()[:60])
    if not index:
        raise InputError("has no layers", where=where)
    _connect(layers, edges, index, dropped)
    return layers


def _add(layers: _Layers, name: str, numbers: Mapping[str, float]) -> None:
    layers.names.append(name)
    layers.forward_s.append(numbers["forward_compute_time"] / 1000)
    layers.backward_s.append(numbers["backward_compute_time"] / 1000)
    layers.activation_bytes.append(numbers["activation_size"])
    layers.parameter_bytes.append(numbers["parameter_size"])
    layers.readers.append([])


def _connect(
    layers: _Layers,
    edges: Sequence[tuple[str, str, str]],
    index: Mapping[str, int],
    dropped: set[str],
) -> None:
    for at, source, target in edges:
        for name in (source, target):
            if name not in index and name not in dropped:
                raise UnknownNameError("node", name, index, where=at)
        if (
            source in index
            and target in index
            and index[target] not in layers.readers[index[source]]
        ):
            layers.readers[index[source]].append(index[target])


def _numbers(text: str, at: str) -> dict[str, float]:
    """``key=value`` pairs; a list in brackets is summed."""
    found = {}
    for part in text.split(", "):
        key, _, value = part.partition("=")
        found[key.strip()] = value.strip()
    return {key: _number(found.get(key), key, at) for key in _NUMBERS}


def _number(value: str | None, key: str, at: str) -> float:
    if value is None:
        raise InputError(f"{key} is missing", where=at)
    try:
        total = sum(float(x) for x in value.strip("[]").split(";"))
    except ValueError:
        total = math.nan
    if not (math.isfinite(total) and total >= 0):
        raise InputError(f"{key} must be numbers >= 0", where=at, by=f"got {value!r}")
    return total
