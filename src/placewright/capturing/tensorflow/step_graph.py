"""StepGraph: one step of a TensorFlow model as a flat GraphDef, with what it is fed and gives.

Only the worker process imports this module's users: TensorFlow is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.errors import InputError, UnsupportedError

_CONTROL_FLOW = (
    "While StatelessWhile If StatelessIf Case StatelessCase For Switch RefSwitch _SwitchN "
    "Merge RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration LoopCond "
    "MapDefun"
)
CONTROL_FLOW = frozenset(_CONTROL_FLOW.split())
CALLS = frozenset(
    ["PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient", "RemoteCall", "XlaLaunch"]
)
VARIABLES = frozenset(["VarHandleOp", "VariableV2", "Variable"])
INPUTS = frozenset(("Placeholder",))
CONSTANTS = frozenset(("Const",))
PASSIVE = VARIABLES | INPUTS | CONSTANTS
"""Nodes that compute nothing: they follow the operators that read them."""

_SAVERS = "SaveV2 RestoreV2 Save Restore MergeV2Checkpoints ShardedFilename"
SAVERS = frozenset(_SAVERS.split())
INIT = "init"
"""Name of the node that gives variables their values, as TensorFlow 1 calls it."""

_SHAPE_KERNELS = ("BroadcastGradientArgs", "BroadcastArgs", "ConcatOffset", "ShapeN", "Shape")
_BY_DATA = (
    "Where",
    "Unique",
    "NonMaxSuppression",
    "DynamicPartition",
    "ListDiff",
    "Sparse",
    "Ragged",
)
"""Kernels whose outputs depend on shapes alone, and beginnings of those that depend on data."""

HANDLES = ("resource", "variant")
KEPT = (
    *("transpose_a", "transpose_b", "adj_x", "adj_y", "equation", "ksize", "strides", "padding"),
    *("data_format", "dilations", "is_training"),
)
"""Attributes that describe an operator's work."""


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """A GraphDef and which part of it is a step.

    Attributes
    ----------
    graph_def
        Without function calls and control flow, static shapes.
    feeds
        A value for every placeholder, by node.
    fetches
        Tensors (``loss:0``) that the step returns.
    targets
        Nodes that it executes besides: updates of variables.
    init
        Node that gives variables their values, empty where there is none.
    lr
        Learning rate of a training step, as far as it is known.
    keys
        Names of `fetches` in the model's signature, empty where it has none.
    """

    name: str
    graph_def: Any
    feeds: Mapping[str, Any]
    fetches: tuple[str, ...]
    targets: tuple[str, ...] = ()
    init: str = ""
    lr: float = 0.0
    keys: tuple[str, ...] = ()

    @property
    def nodes(self) -> dict[str, Any]:
        """Nodes of the step by name; those of `init` alone are left out."""
        by_name = {node.name: node for node in self.graph_def.node}
        kept = ancestors(by_name, [*map(node_of, self.fetches), *self.targets])
        return {name: node for name, node in by_name.items() if name in kept}

    def pruned(self) -> Any:
        """A GraphDef of what the step and its initialisation need."""
        by_name = {node.name: node for node in self.graph_def.node}
        last = [*map(node_of, self.fetches), *self.targets, *([self.init] if self.init else [])]
        kept = ancestors(by_name, last)
        made = type(self.graph_def)(versions=self.graph_def.versions)
        made.node.extend(node for name, node in by_name.items() if name in kept)
        for node in made.node:
            _forget_missing(node, kept)
        return made

    @property
    def variables(self) -> list[str]:
        """Names of the nodes of its variables."""
        return [name for name, node in self.nodes.items() if node.op in VARIABLES]


def _forget_missing(node: Any, kept: set[str]) -> None:
    """Drop colocation with nodes that are not there: TensorFlow refuses to import it."""
    if "_class" not in node.attr:
        return
    named = node.attr["_class"].list
    there = [key for key in named.s if _text(key).removeprefix("loc:@") in kept]
    if there:
        del named.s[:]
        named.s.extend(there)
    else:
        del node.attr["_class"]


def node_of(reference: str) -> str:
    """The node in ``node``, ``node:1`` or ``^node``."""
    return reference.removeprefix("^").partition(":")[0]


def ancestors(nodes: Mapping[str, Any], wanted: Iterable[str]) -> set[str]:
    """The nodes that `wanted` need, themselves included."""
    found: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += [node_of(reference) for reference in nodes[name].input]
    return found


def ends(graph_def: Any) -> list[str]:
    """Nodes that a bare GraphDef's step ends in.

    All nodes that nothing reads, without those that initialise variables, save or restore.
    """
    by_name = {node.name: node for node in graph_def.node}
    read = {node_of(reference) for node in graph_def.node for reference in node.input}
    last = [name for name in by_name if name not in read and name != INIT]
    if INIT in by_name:
        before = ancestors(by_name, [INIT])
        last = [name for name in last if name not in before]
    last = [n for n in last if not {by_name[a].op for a in ancestors(by_name, [n])} & SAVERS]
    return [name for name in last if by_name[name].op not in PASSIVE]


def refuse_control_flow(graph_def: Any, where: str) -> None:
    """Raise on a node with branches or loops, or on a call that could not be inlined."""
    functions = {function.signature.name for function in graph_def.library.function}
    for node in graph_def.node:
        if node.op in CONTROL_FLOW:
            raise UnsupportedError(
                f"control flow cannot be placed: {node.op}",
                where=f"{where}: node {node.name!r}",
                by="which operators run is decided while the step runs",
                hint="unroll the loop or take one branch (Keras: unroll=True), and export again",
            )
        if node.op in CALLS or node.op in functions:
            raise UnsupportedError(
                f"a function call that cannot be inlined: {node.op}",
                where=f"{where}: node {node.name!r}",
                hint="export a graph without jit_compile and without nested functions",
            )


def refuse_dynamic(graph: Any, step: StepGraph) -> list[str]:
    """Raise on a tensor of the step whose shape is not known before it runs.

    Returns
    -------
    Operators whose shapes inference leaves open though they do not depend on data: gradients of
    broadcasts, and what is computed with their axes. One step shows them.
    """
    nodes, shown = step.nodes, dict[str, None]()
    for operation in graph.get_operations():
        name, op = operation.name, operation.type
        if name not in nodes or all(map(_static, operation.outputs)):
            continue
        after = any(node_of(reference) in shown for reference in nodes[name].input)
        if op in _SHAPE_KERNELS or (after and not op.startswith(_BY_DATA)):
            shown[name] = None
            continue
        tensor = next(t for t in operation.outputs if not _static(t))
        raise UnsupportedError(
            f"the {'input' if op in INPUTS else 'operator'} {name!r} has a dynamic shape",
            where=step.name,
            by=f"{str(tensor.shape).replace('None', '?')} {tensor.dtype.name}, {op}",
            hint="give --batch N for an open first dimension, or export with static shapes",
        )
    return list(shown)


def _static(tensor: Any) -> bool:
    handle = tensor.dtype.name.partition("_ref")[0] in HANDLES
    return handle or bool(tensor.shape.is_fully_defined())


def describe(
    graph: Any, step: StepGraph, shown: Mapping[str, Sequence[list[int]]]
) -> list[dict[str, Any]]:
    """Every node of a step as plain data, in a topological order.

    `shown`: shapes of the outputs of operators for which inference leaves them open.
    """
    nodes = step.nodes
    return [
        _described(operation, nodes[operation.name], shown.get(operation.name))
        for operation in graph.get_operations()
        if operation.name in nodes
    ]


def _described(operation: Any, node: Any, shown: Sequence[list[int]] | None) -> dict[str, Any]:
    shapes = shown or [_shape(t) for t in operation.outputs]
    outputs = [[_dtype(t), list(x)] for t, x in zip(operation.outputs, shapes, strict=True)]
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.input),
        "outputs": outputs,
        "bytes": _held_bytes(node, operation),
        "colocate": [_text(key).removeprefix("loc:@") for key in node.attr["_class"].list.s]
        if "_class" in node.attr
        else [],
        "attrs": {key: _plain(node.attr[key]) for key in KEPT if key in node.attr},
        "kernels": _kernels(node),
    }


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype.name)


def _shape(tensor: Any) -> list[int]:
    return [int(size) for size in tensor.shape] if tensor.shape.is_fully_defined() else []


def _held_bytes(node: Any, operation: Any) -> int:
    """Bytes of a constant or a variable, 0 for other nodes."""
    if node.op in CONSTANTS:
        tensor = operation.outputs[0]
        return _bytes(tensor.dtype, tensor.shape)
    if node.op in VARIABLES:
        import tensorflow as tf

        shape = tf.TensorShape(node.attr["shape"].shape)
        return _bytes(tf.as_dtype(node.attr["dtype"].type), shape)
    return 0


def _bytes(dtype: Any, shape: Any) -> int:
    sized = shape.is_fully_defined() and dtype.name not in ("string", *HANDLES)
    return int(shape.num_elements() * dtype.size) if sized else 0


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        return [int(i) for i in value.list.i] or [_text(s) for s in value.list.s]
    found = getattr(value, kind) if kind else None
    return _text(found) if isinstance(found, bytes) else found


def _text(data: bytes) -> str:
    """An attribute as text; a file may have other bytes there."""
    return data.decode(errors="replace")


_KERNELS: dict[str, Any] = {}


def _kernels(node: Any) -> list[str]:
    """Kinds of device with a kernel for a node and its types, ``["CPU", "GPU"]``."""
    from tensorflow.python.framework import kernels

    if node.op not in _KERNELS:
        _KERNELS[node.op] = kernels.get_registered_kernels_for_op(node.op).kernel
    found = {k.device_type for k in _KERNELS[node.op] if _fits(k, node)}
    return sorted(found & {"CPU", "GPU"}) or (["CPU", "GPU"] if "DEFAULT" in found else [])


def _fits(kernel: Any, node: Any) -> bool:
    return all(
        node.attr[c.name].type in c.allowed_values.list.type
        for c in kernel.constraint
        if c.HasField("allowed_values") and c.allowed_values.list.type
    )


def parsed_graph_def(data: bytes, where: str) -> Any:
    """A GraphDef from its bytes.

    Raises `InputError`: they are none, or a node reads one that is not there.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2

    try:
        graph_def = graph_pb2.GraphDef.FromString(data)
    except DecodeError as error:
        raise _damaged(where, data, str(error)) from error
    if not graph_def.node or not all(node.name and node.op for node in graph_def.node):
        raise _damaged(where, data, "it has no named nodes")
    check_edges(graph_def, where)
    return graph_def


def check_edges(graph_def: Any, where: str) -> None:
    """Raise `InputError` if a node reads one that is not in the graph."""
    names = {node.name for node in graph_def.node}
    for node in graph_def.node:
        for reference in node.input:
            if node_of(reference) not in names:
                raise InputError(
                    "reads a node that is not in the graph",
                    where=f"{where}: node {node.name!r}",
                    by=repr(reference),
                    hint="export the graph again, whole",
                )


def _damaged(where: str, data: bytes, why: str) -> InputError:
    return InputError(
        "is no GraphDef, or a damaged one",
        where=where,
        by=f"{len(data)} bytes: {why}",
        hint="write it again with tf.io.write_graph(graph, folder, name, as_text=False)",
    )
