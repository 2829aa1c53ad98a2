"""The nodes of a TensorFlow step become a graph of operators and tensors.

FLOPs follow from an operator's kind, shapes and attributes (`placewright.capturing.flops`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from placewright.capturing.flops import Shape, Work, einsum, work_of_kind
from placewright.capturing.tensorflow.step_graph import (
    CONSTANTS,
    HANDLES,
    INPUTS,
    PASSIVE,
    VARIABLES,
    node_of,
)
from placewright.errors import UnsupportedError
from placewright.graph.graph import DTYPES, Graph, Operator, Tensor, TensorSpec
from placewright.graph.program import ORDER_ONLY

SHARED_BYTES = 1 << 20
"""From this size on, a constant that several operators read keeps them on one device."""

_VIEWS = "Identity Reshape Squeeze ExpandDims StopGradient PreventGradient"
VIEWS = frozenset(_VIEWS.split())
"""Operators whose output shares memory with their first input."""

_UPDATES = ("Assign", "ResourceApply", "Apply")
"""What kinds of operators that change a variable begin with."""

Node = Mapping[str, Any]


def node_graph(name: str, nodes: Sequence[Node]) -> Graph:
    """The graph of a step.

    Every node that computes is an operator of the same name, its kind ``tensorflow.MatMul``.
    Constants, variables and inputs are none: they are resident with, or follow, the operators that
    read them. A control dependency is a tensor without bytes.

    `nodes`: as `placewright.capturing.tensorflow.step_graph.describe` gives them.
    """
    by_name = {node["name"]: node for node in nodes}
    if all(node["op"] in PASSIVE for node in nodes):
        raise UnsupportedError(
            "computes nothing: its outputs are constants or inputs",
            where=name,
            by=f"{len(nodes)} nodes",
            hint="name the outputs of the step: graph.pb?fetches=loss,train",
        )
    edges = _Edges(by_name)
    resident, groups = edges.resident_bytes(), edges.groups()
    phases = _phases(by_name)
    operators = tuple(
        _operator(node, edges, resident.get(node["name"], 0), groups, phases[node["name"]])
        for node in nodes
        if node["op"] not in PASSIVE
    )
    return Graph(name, operators, tuple(edges.tensors()))


@dataclass(slots=True)
class _Edges:
    """Who reads what."""

    nodes: Mapping[str, Node]
    readers: dict[str, list[str]] = field(init=False, default_factory=dict)
    root: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, node in self.nodes.items():
            for reference in dict.fromkeys(node["inputs"]):
                self.readers.setdefault(_value(reference), []).append(name)

    def output(self, reference: str) -> tuple[str, list[int]]:
        """Dtype and shape of the value of a data edge."""
        producer, _, index = reference.partition(":")
        dtype, shape = self.nodes[producer]["outputs"][int(index or 0)]
        return dtype, shape

    def given(self, node: Node) -> list[tuple[str, list[int]]]:
        """Dtypes and shapes of a node's inputs."""
        return [self.output(r) for r in node["inputs"] if not r.startswith("^")]

    def consumers(self, name: str) -> list[str]:
        """Operators that read any output of a node."""
        values = [f"{name}:{k}" for k in range(len(self.nodes[name]["outputs"]))]
        found = [r for value in values for r in self.readers.get(value, ())]
        return [r for r in dict.fromkeys(found) if self.nodes[r]["op"] not in PASSIVE]

    def resident_bytes(self) -> dict[str, int]:
        """Operator -> bytes of the variables and constants that live with it.

        A variable and a large constant count once, small constants for each operator.
        """
        held: dict[str, int] = {}
        for name, node in self.nodes.items():
            if node["op"] not in VARIABLES | CONSTANTS:
                continue
            once = node["op"] in VARIABLES or node["bytes"] >= SHARED_BYTES
            for reader in self.consumers(name)[: 1 if once else None]:
                held[reader] = held.get(reader, 0) + node["bytes"]
        return held

    def groups(self) -> dict[str, str]:
        """Operator -> the first operator of its colocation group; only groups of several.

        Together are: what names each other by ``_class loc:@``, what hands on a handle or a
        reference to a variable, and the readers of a large constant.
        """
        for name, node in self.nodes.items():
            for other in node["colocate"]:
                if other in self.nodes:
                    self._join(name, other)
            for reference in node["inputs"]:
                if not reference.startswith("^") and _is_handle(self.output(reference)[0]):
                    self._join(name, node_of(reference))
            if node["op"] in CONSTANTS and node["bytes"] >= SHARED_BYTES:
                for reader in self.consumers(name):
                    self._join(name, reader)
        members: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            if node["op"] not in PASSIVE:
                members.setdefault(self._find(name), []).append(name)
        return {name: group[0] for group in members.values() if len(group) > 1 for name in group}

    def _find(self, name: str) -> str:
        while (above := self.root.get(name, name)) != name:
            self.root[name] = self.root.get(above, above)
            name = above
        return name

    def _join(self, a: str, b: str) -> None:
        self.root[self._find(a)] = self._find(b)

    def tensors(self) -> Iterable[Tensor]:
        """Values that flow between operators, and the order that control dependencies set."""
        for name, node in self.nodes.items():
            if node["op"] in PASSIVE:
                continue
            for k, (dtype, shape) in enumerate(node["outputs"]):
                readers = tuple(self.readers.get(f"{name}:{k}", ()))
                view = self._viewed(node) if k == 0 else ""
                yield Tensor(_tensor(name, k), name, _size(dtype, shape), readers, view)
            waiting = self._waiting(name)
            if waiting:
                yield Tensor(f"{ORDER_ONLY}{name}", name, 0, waiting)

    def _waiting(self, name: str) -> tuple[str, ...]:
        """Operators that a control dependency lets wait; through constants, their readers."""
        found: dict[str, None] = {}
        for reader in self.readers.get(f"^{name}", ()):
            passive = self.nodes[reader]["op"] in PASSIVE
            found |= dict.fromkeys(self.consumers(reader) if passive else [reader])
        return tuple(found)

    def _viewed(self, node: Node) -> str:
        """The tensor that the first output of a node shares memory with."""
        if node["op"] not in VIEWS:
            return ""
        producer, _, index = node["inputs"][0].partition(":")
        passive = self.nodes[producer]["op"] in PASSIVE
        return "" if passive else _tensor(producer, int(index or 0))


def _value(reference: str) -> str:
    """One spelling of an edge: ``node:0``, or ``^node``."""
    return reference if reference.startswith("^") or ":" in reference else f"{reference}:0"


def _tensor(name: str, output: int) -> str:
    return name if output == 0 else f"{name}#{output}"


def _is_handle(dtype: str) -> bool:
    return dtype in HANDLES or dtype.endswith("_ref")


def _size(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; handles and references are none."""
    if _is_handle(dtype) or dtype == "string":
        return 0
    width = 2 if dtype == "bfloat16" else _width(dtype)
    return prod(shape) * width


def _width(dtype: str) -> int:
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return 1


def _operator(
    node: Node, edges: _Edges, resident: int, groups: Mapping[str, str], phase: str
) -> Operator:
    given = edges.given(node)
    shapes = [shape for _, shape in given]
    made = [shape for _, shape in node["outputs"]]
    work = work_of_node(node["op"], shapes, made, node["attrs"])
    moved = sum(_size(*value) for value in (*given, *map(tuple, node["outputs"])))
    described = json.dumps([node["op"], given, node["outputs"], node["attrs"]], sort_keys=True)
    return Operator(
        name=node["name"],
        kind=f"tensorflow.{node['op']}",
        flops=work.flops,
        elementwise_flops=work.elementwise_flops,
        uncounted=work.uncounted,
        bytes_accessed=0.0 if node["op"] in VIEWS | {"NoOp"} else float(moved),
        resident_bytes=resident,
        phase=phase,
        module=".".join(node["name"].split("/")[:-1]),
        signature=hashlib.sha256(described.encode()).hexdigest()[:16],
        colocation=groups.get(node["name"], ""),
        outputs=tuple(TensorSpec(tuple(shape), _dtype(dtype)) for dtype, shape in node["outputs"]),
    )


def _dtype(name: str) -> str:
    plain = name.removesuffix("_ref")
    return plain if plain in DTYPES else "uint8"


def _phases(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Phase of every node: gradients by their scope, updates of variables and what only they need.

    Forward for all where nothing is updated.
    """
    read: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for reference in node["inputs"]:
            read.setdefault(node_of(reference), []).append(name)
    found: dict[str, str] = {}
    for name in reversed(list(nodes)):  # readers first
        after, op = {found[reader] for reader in read.get(name, ())}, nodes[name]["op"]
        if _is_gradient(name):
            found[name] = "backward"
        elif op.startswith(_UPDATES) or (after == {"optimizer"} and op not in INPUTS):
            found[name] = "optimizer"
        else:
            found[name] = "forward"
    return found


def _is_gradient(name: str) -> bool:
    return any(part.startswith(("gradient_tape", "gradients")) for part in name.split("/"))


CONVOLUTIONS = {
    "Conv1D": 1,
    "Conv2D": 1,
    "Conv3D": 1,
    "Conv2DBackpropInput": 1,
    "Conv2DBackpropFilter": 1,
    "Conv3DBackpropInputV2": 1,
    "Conv3DBackpropFilterV2": 1,
    "DepthwiseConv2dNative": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
}
"""Convolutions; 2 where each channel has filters of its own."""


def work_of_node(
    op: str, given: Sequence[Shape], made: Sequence[Shape], attributes: Mapping[str, Any]
) -> Work:
    """FLOPs of an operator; `given`, `made`: shapes of inputs and outputs."""
    product: Callable[[], float] | None = None
    if op in ("MatMul", "SparseMatMul") or op.startswith("BatchMatMul"):
        turned = bool(attributes.get("transpose_a") or attributes.get("adj_x"))
        product = partial(_matrices, given, made, turned)
    elif op == "Einsum":
        product = partial(einsum, str(attributes.get("equation", "")), given)
    elif op in CONVOLUTIONS:
        product = partial(_convolution, op, given, made)
    window = prod(attributes.get("ksize") or (1,))
    name = op
    if op.startswith("FusedBatchNorm") and not attributes.get("is_training", True):
        name = "BatchNormInference"
    return work_of_kind(name, given, made, product=product, window=window)


def _matrices(given: Sequence[Shape], made: Sequence[Shape], turned: bool) -> float:
    return 2.0 * prod(made[0]) * given[0][-2 if turned else -1]


def _convolution(op: str, given: Sequence[Shape], made: Sequence[Shape]) -> float:
    """Each element of the output adds over a window and, unless depthwise, over channels.

    Gradients do the products of the forward pass again: the output is then the last input, the
    filter the second input or what is made.
    """
    forward = "Backprop" not in op
    output = made[0] if forward else given[2]
    weights = made[0] if op.endswith(("Filter", "FilterV2")) else given[1]
    inner = prod(weights[:-2]) * (1 if CONVOLUTIONS[op] == 2 else weights[-2])
    return 2.0 * prod(output) * inner
