"""``pipedream:FILE.txt``: profiled training graphs, on a cluster of your choice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.io.boundary import read_text
from placewright.numerics.arrays import FloatArray, IntArray, frozen_float, frozen_int
from placewright.operators.problem import Objective, OperatorProblem

_NODE = re.compile(r"^(\S+) -- (.*) -- (.*)$")
_EDGE = re.compile(r"^\s+(\S+) -- (\S+)\s*$")
_NUMBERS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
GRADIENT = "/backward"
"""Suffix of the names of backward operators."""


class Hardware(Protocol):
    """The part of a cluster that the reader needs."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """One per device."""
        ...

    @property
    def devices(self) -> Sequence[Any]:
        """Each with `speed` and `memory_bytes`."""
        ...

    def link_arrays(self) -> tuple[FloatArray, FloatArray, IntArray, tuple[str, ...]]:
        """Latency, seconds per byte, channel, channel names."""
        ...


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
def read_pipedream(path: str | Path, cluster: Hardware) -> OperatorProblem:
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
    n = len(layers.names)
    speed = np.array([device.speed for device in cluster.devices])
    seconds = np.concatenate([layers.forward_s, layers.backward_s])
    names, producers, size, readers = _tensors(layers)
    latency, per_byte, channel, channel_names = cluster.link_arrays()
    return OperatorProblem(
        name=Path(path).name.removesuffix(".txt").removesuffix(".graph"),
        operator_names=(*layers.names, *(name + GRADIENT for name in layers.names)),
        device_names=cluster.device_names,
        compute_s=np.divide.outer(seconds, speed),
        tensor_names=names,
        tensor_producer=producers,
        tensor_bytes=size,
        consumer_offsets=np.cumsum([0, *map(len, readers)]),
        consumers=frozen_int([j for some in readers for j in some]),
        latency_s=latency,
        seconds_per_byte=per_byte,
        channel=channel,
        channel_names=channel_names,
        resident_bytes=np.concatenate([layers.parameter_bytes, np.zeros(n)]),
        memory_bytes=np.array([device.memory_bytes for device in cluster.devices]),
        colocation=np.tile(np.arange(n), 2),
        pinned=np.full(2 * n, -1),
        objective=Objective.THROUGHPUT,
        is_backward=np.repeat([False, True], n),
    )


def _tensors(layers: _Layers) -> tuple[tuple[str, ...], IntArray, FloatArray, list[list[int]]]:
    """Activations forward, then what each layer keeps for its backward pass, then gradients."""
    n = len(layers.names)
    names, producers, size = [], [], []
    readers: list[list[int]] = []
    for i, some in enumerate(layers.readers):
        names.append(layers.names[i])
        producers.append(i)
        size.append(layers.activation_bytes[i])
        readers.append([*some, n + i])
    for i, some in enumerate(layers.readers):
        for j in some:
            names.append(f"{layers.names[j]}{GRADIENT}->{layers.names[i]}")
            producers.append(n + j)
            size.append(layers.activation_bytes[i])
            readers.append([n + i])
    return tuple(names), frozen_int(producers), frozen_float(size), readers


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
