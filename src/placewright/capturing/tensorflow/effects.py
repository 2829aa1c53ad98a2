"""Effects of TensorFlow's operators: what a model file may call, and what is refused by name.

TensorFlow marks operators that do more than compute as stateful. Those of variables, random numbers
and tables in memory are allowed. Some that it does not mark read files or call Python: they are
refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from placewright.capturing.tensorflow.step_graph import SAVERS, ancestors, check_edges, node_of
from placewright.errors import InputError, UnsupportedError

_REFUSED = re.compile(
    r".*(File|Dataset|Debug|Reader|Summary.*Writer|Write.*Summary|Snapshot).*|.*PyFunc.*|Abort|"
    r"(TF)?Queue.*|GenerateVocabRemapping|RecordInput|CopyHost|FixedUnigramCandidateSampler|"
    r"Barrier.*|.*Accumulator.*|Xla(CustomCall|Launch|CallModule|Host|Send|Recv).*|_?TPU.*|.*Rpc.*|"
    r"ImmutableConst"
)
"""Files, Python, debuggers' servers, queues and other programs, whatever they are marked as."""

_STATE = re.compile(
    r"Variable(V2|Shape)?|TemporaryVariable|_?Var(Handle|IsInitialized)s?Op|_?ReadVariables?Op|"
    r"Assign(Add|Sub)?VariableOp|DestroyResourceOp|DisableCopyOnRead|GuaranteeConst|DeepCopy|Empty|"
    r"Resource(Apply|SparseApply|Gather|Scatter|StridedSliceAssign|CountUpTo).*|"
    r"Random.*|Stateful.*|Multinomial|(Parameterized)?TruncatedNormal|NonDeterministicInts|Rng.*Skip|"
    r"StatelessRandomGetAlg|.*CandidateSampler|SampleDistortedBoundingBox.*|CudnnRNN.*|"
    r"(Anonymous)?(Mutable)?(Dense)?HashTable.*|LookupTable.*|InitializeTableV2|"
    r"TensorArray.*|Stack.*|_?(If|While)|Case|Assert|CheckNumerics.*|Print|PrintV2|_Arg|_Retval"
)
"""Stateful operators whose state is in the session: variables, random numbers, tables."""

_DESCRIPTOR = ("descriptor_source", re.compile(rb"(local://|bytes://.*)?", re.DOTALL))

_NO_FILE = {
    "PrintV2": ("output_stream", re.compile(rb"(stderr|stdout|log\((info|warning|error)\))?")),
    "DecodeProtoV2": _DESCRIPTOR,
    "EncodeProto": _DESCRIPTOR,
}
"""Operators with an attribute that may name a file, and its values that name none."""


def check_nodes(
    nodes: Iterable[Any],
    library: Mapping[str, Any],
    where: str,
    allowed: frozenset[str] = frozenset(),
) -> None:
    """Check that nodes, and the functions that they call, have no effects outside of the session.

    `library`: functions by name. `allowed`: operators that are needed here in spite of their
    effects.
    Raises `UnsupportedError`: it names the file, the node and the operator.
    """
    seen: set[str] = set()
    waiting = [("", list(nodes))]
    while waiting:
        function, found = waiting.pop()
        for node in found:
            inside = f" in function {function!r}" if function else ""
            place = f"{where}: node {node.name!r}{inside}"
            if node.op not in library and node.op not in allowed:
                _check_operator(node, place)
            for name in {node.op, *_functions(node)} & library.keys() - seen:
                seen.add(name)
                waiting.append((name, list(library[name].node_def)))


def _functions(node: Any) -> set[str]:
    """Functions among the attributes of a node."""
    values = node.attr.values()
    return {v.func.name for v in values} | {f.name for v in values for f in v.list.func}


def _check_operator(node: Any, place: str) -> None:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    if definition is None:
        return  # refused as unknown where it is used
    pure = not definition.is_stateful or _STATE.fullmatch(node.op) is not None
    if node.op in _NO_FILE:
        name, harmless = _NO_FILE[node.op]
        pure = harmless.fullmatch(node.attr[name].s) is not None
    if not pure or _REFUSED.fullmatch(node.op) is not None:
        raise UnsupportedError(
            f"the operator {node.op} may act outside of the model",
            where=place,
            by="a model's file may compute and keep variables, not use files, Python or a network",
            hint="export the model without it",
        )


def check_saved_model(where: str) -> None:
    """Check every function that loading or running a SavedModel could execute.

    Only its own saver may read and write checkpoints: the functions, or in TensorFlow 1 the nodes,
    that nothing else of the model calls.

    Raises `UnsupportedError`: see `check_nodes`.
    Raises `InputError`: a split proto beside, or the file cannot be parsed.
    """
    from tensorflow.python.saved_model import loader_impl

    try:
        # TensorFlow's own way to choose among saved_model.pb, .cpb and .pbtxt.
        meta_graphs = loader_impl.parse_saved_model(where).meta_graphs
    except (OSError, ValueError) as error:
        raise InputError(
            "cannot be loaded as a SavedModel",
            where=where,
            by=str(error).splitlines()[0][:300],
            hint="export it again",
        ) from None
    for meta in meta_graphs:
        library = {f.signature.name: f for f in meta.graph_def.library.function}
        objects = meta.object_graph_def
        if objects.nodes:
            own = [_call(name) for name in objects.concrete_functions]
            check_nodes(own, library, where)
        else:
            _check_version_1(meta, library, where)
        every = [node for f in library.values() for node in f.node_def]
        check_nodes([*meta.graph_def.node, *every], library, where, SAVERS)


def _call(function: str) -> Any:
    from tensorflow.core.framework import node_def_pb2

    return node_def_pb2.NodeDef(name=function, op=function)


def _check_version_1(meta: Any, library: Mapping[str, Any], where: str) -> None:
    """The main graph of a TensorFlow 1 SavedModel, from which loading restores and initialises."""
    check_edges(meta.graph_def, where)
    nodes = {node.name: node for node in meta.graph_def.node}
    infos = [info for s in meta.signature_def.values() for info in s.outputs.values()]
    ends = [info.name for info in infos]
    ends += [name for c in meta.collection_def.values() for name in c.node_list.value]
    known = [node_of(name) for name in ends if node_of(name) in nodes]
    check_nodes([nodes[n] for n in ancestors(nodes, known)], library, where)
    restore = node_of(meta.saver_def.restore_op_name)
    if restore in nodes:
        read = frozenset({"RestoreV2", "Restore", "ShardedFilename"})
        check_nodes([nodes[n] for n in ancestors(nodes, [restore])], library, where, read)
