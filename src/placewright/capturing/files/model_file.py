"""ModelFile: a model of another runtime, its graph, and its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from placewright.graph.graph import Graph

Runtime = Literal["onnxruntime", "openvino"]

Array = np.ndarray[Any, Any]

SHARED_BYTES = 1 << 20
"""From this size on, a constant that several operators read keeps them on one device."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Name, static shape and numpy dtype of one input of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class ModelFile:
    """A model that another runtime executes.

    Attributes
    ----------
    runtime
        That executes it.
    source
        The file, or what the model was converted from.
    graph
        Operators that can be placed; constants, inputs and results are none.
    model
        The runtime's own model (``onnx.ModelProto``, ``openvino.Model``).
    outputs
        Names of the outputs, in order.
    constants
        Names of nodes that only depend on constants: every part of the model has a copy of those
        that it reads.
    """

    runtime: Runtime
    source: str
    graph: Graph
    model: Any
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = field(default_factory=frozenset)

    def random_inputs(self, seed: int = 0) -> Mapping[str, Array]:
        """Inputs drawn from `seed`: normal numbers, and zeros and ones for integers."""
        return {spec.name: _drawn(spec, np.random.default_rng([seed, k])) for k, spec in self._each}

    @property
    def _each(self) -> list[tuple[int, InputSpec]]:
        return list(enumerate(self.inputs))


def _drawn(spec: InputSpec, rng: np.random.Generator) -> Array:
    if spec.dtype.kind in "iub":
        return rng.integers(0, 2, spec.shape).astype(spec.dtype)
    return rng.normal(size=spec.shape).astype(spec.dtype)


def module_of(name: str) -> str:
    """The module path in a node's name: ``layer1.0.conv1`` in ``/layer1/layer1.0/conv1/Conv``."""
    path = ""
    for part in name.split("/")[:-1]:
        part = part.removeprefix("__module.")
        if part and "::" not in part:
            path = part if not path or part.startswith(f"{path}.") else f"{path}.{part}"
    return path


def distinct_names(names: Iterable[str]) -> list[str]:
    """Names that are there already get a number: names are the identity of operators."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    found = []
    for name in names:
        distinct = name
        while distinct in taken:
            counts[name] = counts.get(name, 1) + 1
            distinct = f"{name}#{counts[name]}"
        taken.add(distinct)
        found.append(distinct)
    return found


def reader_groups(readers: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Operator -> group, for those that read a constant together.

    `readers`: by constant, the operators that read it; groups that share an operator are one.
    """
    group: dict[str, str] = {}
    for name, together in readers:
        if len(together) > 1:
            known = {group[reader] for reader in together if reader in group}
            group = {reader: name if own in known else own for reader, own in group.items()}
            group |= dict.fromkeys(together, name)
    return group
