"""Sources become step graphs: a GraphDef file, a SavedModel folder, a Keras file, a factory.

Effects of TensorFlow's operators: what a model file may call, and what is refused by name.

TensorFlow marks operators that do more than compute as stateful. Those of variables, random numbers
and tables in memory are allowed. Some that it does not mark read files or call Python: they are
refused too.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from placewright.capturing.nested_functions import refuse_expansion
from placewright.capturing.tensorflow.step_graph import (
    CALLS,
    INIT,
    INPUTS,
    SAVERS,
    StepGraph,
    ancestors,
    check_edges,
    ends,
    node_of,
    parsed_graph_def,
    refuse_control_flow,
    refuse_dynamic,
)
from placewright.errors import (
    InputError,
    PlacewrightError,
    UnknownNameError,
    UnsupportedError,
    check_known,
)
from placewright.interpreter import import_from
from placewright.io.boundary import named_path, read_bytes
from placewright.report.text import size

v1 = tf.compat.v1

DEFAULT_SIGNATURE = "serving_default"
LARGEST_BYTES = 2**31 - 2**20
"""A GraphDef with its initial values must stay below what protocol buffers can hold."""


def load_step(source: Mapping[str, Any]) -> tuple[StepGraph, Any, list[str]]:
    """The step of a source, its ``tf.Graph``, and operators whose shapes a run has to show.

    `source`: ``path`` or ``factory``, ``batch``, ``training``, ``signature``, ``fetches``,
    ``seed``. A file may only name operators without effects (`check_nodes`); a factory is the
    user's own code.
    """
    tf.keras.utils.set_random_seed(int(source.get("seed", 0)))
    if source.get("factory"):
        step = _from_factory(source)
    else:
        path = named_path(source["path"])
        if path.name == "saved_model.pb":
            path = path.parent
        if path.is_dir():
            step = _from_saved_model(path, source)
        elif path.suffix in (".keras", ".h5"):
            step = _from_keras_file(path, source)
        else:
            step = _from_graph_def(path, source)
        library = {f.signature.name: f for f in step.graph_def.library.function}
        check_nodes(step.pruned().node, library, str(path))
    return _finished(step, source)


def _from_graph_def(path: Path, source: Mapping[str, Any]) -> StepGraph:
    graph_def = parsed_graph_def(read_bytes(path), str(path))
    wanted = source.get("fetches") or ()
    known = {node.name for node in graph_def.node}
    for name in map(node_of, wanted):
        if name not in known:
            raise UnknownNameError("node", name, sorted(known), where=str(path))
    last = list(wanted) or ends(graph_def)
    if not last:
        raise InputError(
            "computes nothing: no node besides constants, inputs and initialisation",
            where=str(path),
            by=f"{len(graph_def.node)} nodes",
            hint="give the whole graph, or name its outputs: graph.pb?fetches=loss,train",
        )
    init = INIT if INIT in known else ""
    hint = "export the graph again, without functions"
    with _refusing(str(path), "TensorFlow cannot inline its functions", hint):
        graph_def = _inlined(graph_def, [*map(node_of, last), *([init] if init else [])])
    return _of_ends(path.stem, graph_def, last, init)


def _of_ends(name: str, graph_def: Any, last: list[str], init: str) -> StepGraph:
    """Ends with outputs are fetched, others executed."""
    by_name = {node.name: node for node in graph_def.node}
    made = {n: _outputs(by_name[node_of(n)], name) for n in last}
    fetches = dict.fromkeys(
        reference
        for n, count in made.items()
        for reference in ([n] if ":" in n else [f"{n}:{k}" for k in range(count)])
    )
    targets = tuple(n for n in last if not made[n])
    step = StepGraph(name, graph_def, {}, tuple(fetches), targets, init)
    # TensorFlow would evaluate constant parts of the rest to infer shapes.
    kept = step.pruned()
    kept.library.CopyFrom(graph_def.library)
    return replace(step, graph_def=kept)


def _outputs(node: Any, where: str) -> int:
    """How many tensors a node makes."""
    return sum(
        node.attr[arg.number_attr].i
        if arg.number_attr
        else len(node.attr[arg.type_list_attr].list.type)
        if arg.type_list_attr
        else 1
        for arg in _op_def(node.op, where).output_arg
    )


def _op_def(op: str, where: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    found = op_def_registry.get(op)
    if found is None:
        raise UnsupportedError(
            f"unknown operator {op!r}",
            where=where,
            by=f"TensorFlow {tf.__version__} has no such operator",
            hint="load the library that defines it, or export without custom operators",
        )
    return found


def _from_saved_model(path: Path, source: Mapping[str, Any]) -> StepGraph:
    where = str(path)
    if not (path / "saved_model.pb").is_file():
        raise InputError(
            "is no SavedModel", where=where, by="it has no saved_model.pb", hint="give its folder"
        )
    check_saved_model(where)
    with _refusing(where, "cannot be loaded as a SavedModel", "export it again"):
        loaded = tf.saved_model.load(where)
    signatures = dict(getattr(loaded, "signatures", {}))
    wanted = source.get("signature") or (
        next(iter(signatures)) if len(signatures) == 1 else DEFAULT_SIGNATURE
    )
    if not signatures:
        raise UnsupportedError(
            "a SavedModel without a signature",
            where=where,
            by="it is not given which function is the model",
            hint="save it with signatures=model.call.get_concrete_function(...)",
        )
    check_known("signature", wanted, signatures, where=where)
    return _of_function(path.name, signatures[wanted], {})


def _from_keras_file(path: Path, source: Mapping[str, Any]) -> StepGraph:
    hint = "save it again; a Lambda layer holds code, which is never executed from a file"
    with _refusing(str(path), "cannot be loaded as a Keras model", hint), _weights_within(path):
        model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
    inputs = [_random(t.name, _batched(t.shape, source), t.dtype) for t in model.inputs]
    given = inputs if len(inputs) > 1 else inputs[0]
    structure = getattr(model, "_inputs_struct", None)  # of Keras 3: inputs by name
    if isinstance(structure, dict):
        given = tf.keras.tree.pack_sequence_as(structure, inputs)
    return _of_keras(path.stem, (model, given, None, None), source)


ROOM_BYTES = 1 << 26
"""Of weights, where a file is smaller than what describes its layers."""

COMPRESSED = 16
"""Times smaller than its weights a Keras file may be: by default it is about as large."""


@contextmanager
def _weights_within(path: Path) -> Iterator[None]:
    """Refuse a Keras file whose layers ask for weights that it cannot hold.

    Keras makes all weights before it reads any: a kilobyte can ask for gigabytes.
    """
    size_bytes = path.stat().st_size
    left = COMPRESSED * size_bytes + ROOM_BYTES
    made = tf.keras.Variable.__init__

    def counted(self: Any, initializer: Any, *args: Any, **options: Any) -> None:
        nonlocal left
        shape = args[0] if args else options.get("shape")
        asked = 4 * math.prod(shape or ())
        if asked > left:
            raise InputError(
                "its layers ask for more weights than it can hold",
                where=str(path),
                by=f"one of {size(asked)} in a file of {size(size_bytes)}",
                hint="save it again, without compression, with save() and not by hand",
            )
        left -= asked
        made(self, initializer, *args, **options)

    tf.keras.Variable.__init__ = counted
    try:
        yield
    finally:
        tf.keras.Variable.__init__ = made


def _batched(shape: Any, source: Mapping[str, Any]) -> list[int | None]:
    sizes = list(shape)
    return [source.get("batch"), *sizes[1:]] if sizes and sizes[0] is None else sizes


def _from_factory(source: Mapping[str, Any]) -> StepGraph:
    module, _, name = str(source["factory"]).partition(":")
    where = f"model {source['factory']}"
    with _refusing(where, "importing its module failed", "import it in a Python shell"):
        found = getattr(import_from(os.getcwd(), module), name, None)
    if found is None:
        raise InputError(f"no factory {name!r}", where=f"module {module}", hint="check its name")
    sizes = {} if source.get("batch") is None else {"batch": source["batch"]}
    with _refusing(where, "the factory failed", "call it in a Python shell to see why"):
        made = found(**sizes)
    if not isinstance(made, tuple) or len(made) not in (2, 4) or not callable(made[0]):
        raise InputError(
            "the factory must return (model, inputs) or (model, inputs, loss_fn, targets)",
            where=where,
            by=f"got {type(made).__name__}",
            hint="the model is a keras.Model, or a tf.function that does a whole step",
        )
    return _of_keras(name, made if len(made) == 4 else (*made, None, None), source)


def _of_keras(name: str, made: tuple[Any, ...], source: Mapping[str, Any]) -> StepGraph:
    """The step of a model: its outputs, or with training the update of its weights."""
    model, inputs, loss_fn, targets = made
    named = isinstance(inputs, Mapping)
    several = named or isinstance(inputs, list | tuple)
    parts = inputs.values() if named else inputs if several else [inputs]
    given = [np.asarray(value) for value in parts]
    aims = [] if targets is None else [np.asarray(targets)]

    def packed(values: Sequence[Any]) -> Any:
        """The inputs as the model takes them: by name, a list, or one alone."""
        if named:
            return dict(zip(inputs, values, strict=True))
        return list(values) if several else values[0]

    def forward(*values: Any) -> Any:
        if hasattr(model, "layers"):
            return model(packed(values), training=False)
        return model(**packed(values)) if named else model(*values)

    function: Callable[..., Any] = forward
    rate = 0.0
    if source.get("training"):
        optimizer = _optimizer(model)
        rate = float(optimizer.learning_rate)

        def trained(*values: Any) -> Any:
            return model(packed(values), training=True)

        function = _training(model, optimizer, trained, loss_fn, len(given))
        given = given + aims
    with _refusing(f"model {name}", "tracing the step failed", "call it in a Python shell"):
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in given]
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    own = [tensor.op.name for tensor in traced.inputs][: len(given)]
    return replace(_of_function(name, traced, dict(zip(own, given, strict=True))), lr=rate)


def _optimizer(model: Any) -> Any:
    """The model's own optimizer, or Adam."""
    if not hasattr(model, "trainable_variables"):
        raise UnsupportedError(
            "--training is for Keras models",
            where=getattr(model, "__name__", type(model).__name__),
            hint="leave it out for a tf.function that does the whole step itself",
        )
    optimizer = getattr(model, "optimizer", None) or tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return optimizer


def _training(
    model: Any, optimizer: Any, forward: Callable[..., Any], loss_fn: Any, inputs: int
) -> Callable[..., Any]:
    """A step that computes the loss, its gradients, and updates the weights."""

    def step(*values: Any) -> Any:
        with tf.GradientTape() as tape:
            made = forward(*values[:inputs])
            loss = _loss(loss_fn, made, values[inputs:])
            if model.losses:  # what layers add: penalties of weights and activities
                loss = tf.add_n([loss, *(tf.cast(part, loss.dtype) for part in model.losses)])
        weights = model.trainable_variables
        optimizer.apply_gradients(
            [(g, w) for g, w in zip(tape.gradient(loss, weights), weights, strict=True)]
        )
        return loss

    return step


def _loss(loss_fn: Any, made: Any, targets: tuple[Any, ...]) -> Any:
    """The mean loss; the mean square of the outputs stands in where none is given."""
    if loss_fn is None:
        return tf.add_n([tf.reduce_mean(tf.square(part)) for part in tf.nest.flatten(made)])
    keras_loss = isinstance(loss_fn, tf.keras.losses.Loss)
    return loss_fn(*targets, made) if keras_loss else loss_fn(made, *targets)


def _of_function(name: str, traced: Any, feeds: Mapping[str, Any]) -> StepGraph:
    """A traced function as a graph of its own: variables are nodes, their values are given.

    Variables that the function captured arrive as placeholders for handles; each becomes a
    ``VarHandleOp``, and the node ``init`` gives it its present value.
    """
    graph = traced.graph
    outputs = [t for t in tf.nest.flatten(traced.outputs) if t is not None]
    inner = [internal.op.name for _, internal in graph.captures]
    last = [*(t.op.name for t in outputs), *(op.name for op in graph.control_outputs)]
    arguments = [t.op.name for t in traced.inputs]
    graph_def = _inlined(graph.as_graph_def(), [*last, *arguments])
    nodes = {node.name: node for node in graph_def.node}
    by_handle = {id(v.handle): v for v in graph.variables}
    assigned: list[str] = []
    used = ancestors(nodes, last)
    total = 0
    for (external, _), inside in zip(graph.captures, inner, strict=True):
        if inside not in used:
            continue
        variable = by_handle.get(id(external))
        if variable is not None:
            assigned.append(_make_variable(graph_def, nodes[inside], variable))
            total += int(variable.dtype.size * variable.shape.num_elements())
        elif external.dtype == tf.resource:
            raise UnsupportedError(
                "uses a resource that is no variable",
                where=f"{name}: node {inside!r}",
                by="a table, a dataset or a generator",
                hint="take lookups and input pipelines out of the model, or freeze it",
            )
        else:
            _make_constant(nodes[inside], external.numpy())
    if total > LARGEST_BYTES:
        raise UnsupportedError(
            "its weights do not fit into one GraphDef", where=name, by=f"{total} bytes of {2**31}"
        )
    if assigned:
        graph_def.node.add(name=INIT, op="NoOp").input.extend(f"^{n}" for n in assigned)
    fetches = tuple(dict.fromkeys(f"{t.op.name}:{t.value_index}" for t in outputs))
    targets = tuple(op.name for op in graph.control_outputs if op.name in nodes)
    made = traced.structured_outputs
    named = isinstance(made, Mapping) and len(made) == len(fetches)
    keys = tuple(map(str, sorted(made))) if named else ()  # as `tf.nest` flattens
    step = StepGraph(name, graph_def, feeds, fetches, targets, INIT if assigned else "")
    return replace(step, keys=keys)


def _make_variable(graph_def: Any, node: Any, variable: Any) -> str:
    """Turn the placeholder of a handle into a variable; the node that assigns its value."""
    name, dtype = node.name, variable.dtype.as_datatype_enum
    node.Clear()
    node.name, node.op = name, "VarHandleOp"
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = name.encode()
    node.attr["container"].s = b""
    value = graph_def.node.add(name=f"{name}/initial_value", op="Const")
    value.attr["dtype"].type = dtype
    value.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(variable.numpy()))
    assign = graph_def.node.add(name=f"{name}/initialise", op="AssignVariableOp")
    assign.input.extend([name, value.name])
    assign.attr["dtype"].type = dtype
    return str(assign.name)


def _make_constant(node: Any, value: Any) -> None:
    name = node.name
    node.Clear()
    node.name, node.op = name, "Const"
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _inlined(graph_def: Any, wanted: list[str]) -> Any:
    """The graph with the bodies of its functions in the place of calls; loops stay whole."""
    functions = {f.signature.name: f.node_def for f in graph_def.library.function}
    if not any(node.op in CALLS or node.op in functions for node in graph_def.node):
        return graph_def
    refuse_expansion(graph_def.node, functions, _called, "the graph and its functions")
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.grappler import tf_optimizer

    bodies = [function.node_def for function in graph_def.library.function]
    for node in (node for nodes in (graph_def.node, *bodies) for node in nodes):
        node.attr.pop("_lower_using_switch_merge", None)
    for function in graph_def.library.function:
        function.attr.pop("api_implements", None)  # other implementations of the same function
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    meta.collection_def["train_op"].node_list.value.extend(dict.fromkeys(wanted))
    config = config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.min_graph_nodes = -1
    rewriting.optimizers.append("function")
    rewriting.function_optimization = rewriting.AGGRESSIVE
    return tf_optimizer.OptimizeGraph(config, meta)


def _called(node: Any) -> list[str]:
    """Names of functions that a node calls: its operator, or what its attributes name."""
    inner = [value.func for value in node.attr.values() if value.HasField("func")]
    inner += [func for value in node.attr.values() for func in value.list.func]
    return [node.op, *(func.name for func in inner)]


def _finished(step: StepGraph, source: Mapping[str, Any]) -> tuple[StepGraph, Any, list[str]]:
    """The step with static shapes and a value for every input; see `load_step`."""
    refuse_control_flow(_only(step), step.name)
    for node in step.graph_def.node:
        node.attr.pop("_output_shapes", None)
        if node.op in INPUTS:
            _fix_batch(node, source.get("batch"))
        _fix_seed(node)
    graph = imported(step.graph_def, step.name)
    fed = [name for name, node in step.nodes.items() if node.op in INPUTS]
    shown = refuse_dynamic(graph, step)
    feeds = {name: step.feeds[name] if name in step.feeds else _drawn(graph, name) for name in fed}
    return replace(step, feeds=feeds), graph, shown


def _only(step: StepGraph) -> Any:
    """The nodes of the step alone, as a GraphDef."""
    kept = v1.GraphDef(library=step.graph_def.library)
    kept.node.extend(step.nodes.values())
    return kept


def imported(graph_def: Any, where: str) -> Any:
    """A ``tf.Graph`` of a GraphDef, with inferred shapes.

    Raises `InputError`: an edge to a missing node, shapes or types that contradict each other.
    """
    graph = tf.Graph()
    hint = "export the graph again; tf.import_graph_def must accept it"
    with _refusing(where, "TensorFlow refuses the graph", hint), graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


def _fix_batch(node: Any, batch: int | None) -> None:
    """Set an open first dimension of an input to `batch`."""
    shape = node.attr["shape"].shape
    if batch is not None and shape.dim and shape.dim[0].size < 0:
        shape.dim[0].size = batch


def _fix_seed(node: Any) -> None:
    """Give a random operator without a seed one from its name: runs are compared bit by bit."""
    known = {attribute.name for attribute in _op_def(node.op, node.name).attr}
    if {"seed", "seed2"} <= known and not (node.attr["seed"].i or node.attr["seed2"].i):
        node.attr["seed"].i, node.attr["seed2"].i = zlib.crc32(node.name.encode()), 1


def _drawn(graph: Any, name: str) -> Any:
    tensor = graph.get_operation_by_name(name).outputs[0]
    return _random(name, tensor.shape, tensor.dtype)


def _random(name: str, shape: Any, dtype: Any) -> Any:
    """Normal numbers, and zeros and ones for integers; drawn from the name."""
    kind = tf.as_dtype(dtype)
    if any(size is None for size in shape):
        raise UnsupportedError(
            f"the input {name!r} has a dynamic shape",
            where=name,
            by=str(tuple(shape)).replace("None", "?"),
            hint="give --batch N for an open first dimension, or export with static shapes",
        )
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if kind.is_integer or kind.is_bool:
        return rng.integers(0, 2, list(shape)).astype(kind.as_numpy_dtype)
    if not kind.is_floating:
        raise UnsupportedError(
            f"the input {name!r} holds no numbers",
            where=name,
            by=kind.name,
            hint="take the preprocessing of strings out of the model",
        )
    return rng.normal(size=list(shape)).astype(kind.as_numpy_dtype)


def _reason(error: Exception) -> str:
    """What an error says, without the frames of users' code that TensorFlow puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        # Frames are a line "File ..." and a line of code, as often with a line of marks.
        last = max((k for k, line in enumerate(lines) if line.startswith("File ")), default=0)
        lines = [line for line in lines[last + 2 :] if set(line) - set("~^ ")] or lines
    return lines[0][:300] if lines else ""


@contextmanager
def _refusing(where: str, what: str, hint: str) -> Iterator[None]:
    """Exceptions of TensorFlow, Keras and users' code as one of ours."""
    try:
        yield
    except PlacewrightError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {_reason(error)}"
        raise InputError(what, where=where, by=why, hint=hint) from error


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
        own = [_call(name) for name in objects.concrete_functions]
        check_nodes(own, library, where)
        if len(meta_graphs) > 1 or not objects.nodes:  # else TensorFlow uses the objects alone
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
    ends += _named_by_variables(meta)
    known = [node_of(name) for name in ends if node_of(name) in nodes]
    check_nodes([nodes[n] for n in ancestors(nodes, known)], library, where)
    restore = node_of(meta.saver_def.restore_op_name)
    if restore in nodes:
        read = frozenset({"RestoreV2", "Restore", "ShardedFilename"})
        check_nodes([nodes[n] for n in ancestors(nodes, [restore])], library, where, read)


def _named_by_variables(meta: Any) -> list[str]:
    """Nodes that collections of variables name: loading initialises those that are local."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import variable_pb2

    found = []
    for key, collection in meta.collection_def.items():
        for entry in collection.bytes_list.value if key != "savers" else ():
            with suppress(DecodeError):
                variable = variable_pb2.VariableDef.FromString(entry)
                found += [variable.variable_name, variable.initializer_name]
                found += [variable.initial_value_name, variable.snapshot_name]
    return found
