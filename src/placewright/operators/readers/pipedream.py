"""``pipedream:FILE.txt``: profiled training graphs, on a cluster of your choice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.io.boundary import read_text
from placewright.operators.builder import ProblemBuilder
from placewright.operators.problem import Objective, OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster

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
