"""Small TensorFlow models; only the process that runs TensorFlow imports this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import saved_model_pb2

from placewright.capturing.tensorflow.executing import Execution
from placewright.capturing.tensorflow.loading import DEFAULT_SIGNATURE, load_step

v1 = tf.compat.v1


def perceptron(batch: int = 4) -> tuple[Any, ...]:
    """A Keras model, its inputs, its loss and its targets."""
    inputs = tf.keras.Input((6,))
    hidden = tf.keras.layers.Dense(5, activation="relu", name="hidden")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3, name="last")(hidden))
    rng = np.random.default_rng(0)
    x, wanted = rng.normal(size=(2, batch, 6)).astype(np.float32)
    return model, x, tf.keras.losses.MeanSquaredError(), wanted[:, :3]


def penalised() -> tuple[Any, ...]:
    """A Keras model whose layers add to the loss."""
    inputs, l1, l2 = tf.keras.Input((6,)), tf.keras.regularizers.L1, tf.keras.regularizers.L2
    hidden = tf.keras.layers.Dense(5, activity_regularizer=l1(0.1))(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3, kernel_regularizer=l2(0.1))(hidden))
    loss = tf.keras.losses.MeanSquaredError()
    model.compile(tf.keras.optimizers.SGD(0.1), loss=loss)
    x, wanted = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
    return model, x, loss, wanted[:, :3]


def losses() -> tuple[Any, Any]:
    """Raise unless captured steps of `penalised` have the losses of Keras's own."""
    tf.keras.utils.set_random_seed(0)
    model, x, _, wanted = penalised()
    own = [float(model.train_on_batch(x, wanted)) for _ in range(3)]
    source = {"factory": f"{__name__}:penalised", "training": True, "seed": 0}
    run = Execution(load_step(source)[0], {}, 1)
    captured = [float(next(iter(run.outputs().values()))) for _ in own]
    run.close()
    np.testing.assert_allclose(captured, own, rtol=1e-6)
    return tf.function(tf.nn.relu), x


def keys() -> tuple[Any, Any]:
    """Raise unless the exported models have the outputs that their sources have."""
    folder = Path(os.environ["PLACEWRIGHT_TEST_MODELS"])
    for name, wanted in {"halves": {"s_0", "s_1"}, "named": {"logits", "probs"}}.items():
        signature = tf.saved_model.load(str(folder / f"placed_{name}")).signatures[
            DEFAULT_SIGNATURE
        ]
        assert set(signature.structured_outputs) == wanted, signature.structured_outputs
    return tf.function(tf.nn.relu), np.ones((2,), np.float32)


def by_name(batch: int = 2) -> tuple[Any, Any]:
    """A Keras model that takes its inputs by name, in another order than the alphabet's."""
    z, a = tf.keras.Input((4,), name="z"), tf.keras.Input((3,), name="a")
    both = tf.keras.layers.Concatenate()([a, z])
    model = tf.keras.Model({"z": z, "a": a}, tf.keras.layers.Dense(2)(both))
    rng = np.random.default_rng(0)
    given = {"z": rng.normal(size=(batch, 4)), "a": rng.normal(size=(batch, 3))}
    return model, {name: value.astype(np.float32) for name, value in given.items()}


def failing() -> tuple[Any, Any]:
    """A function of TensorFlow that cannot be traced."""
    return tf.function(lambda x: tf.reshape(x, (5, 7))), np.ones((3, 4), np.float32)


def convolution(batch: int = 4) -> tuple[Any, Any]:
    """A Keras model whose filter and bias gradients oneDNN computes by one kernel."""
    pixels = tf.keras.Input((8, 8, 3))
    flat = tf.keras.layers.Flatten()(tf.keras.layers.Conv2D(4, 3)(pixels))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((batch, 8, 8, 3)).astype(np.float32)
    return tf.keras.Model(pixels, tf.keras.layers.Dense(2)(flat)), values


def files() -> tuple[Any, Any]:
    """Write all files of the tests into the folder PLACEWRIGHT_TEST_MODELS."""
    folder = Path(os.environ["PLACEWRIGHT_TEST_MODELS"])
    _write(folder / "branches.pb", _branches(4))
    _write(folder / "open.pb", _branches(None))
    _write(folder / "loop.pb", _loop())
    _write(folder / "variable.pb", _variable())
    _write(folder / "training.pb", _training())
    unknown = _branches(4)
    unknown.node.add(name="odd", op="NoSuchOperator").input.append("sum")
    _write(folder / "unknown.pb", unknown)
    _write(folder / "doubling.pb", _nested(30))
    (folder / "damaged.pb").write_bytes((folder / "branches.pb").read_bytes()[:-7])

    class Doubling(tf.Module):
        def __init__(self) -> None:
            self.factor = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec((None, 2))])
        def double(self, x: Any) -> Any:
            return tf.nn.relu(x) * self.factor + tf.reduce_sum(x)

    model = Doubling()
    tf.saved_model.save(model, str(folder / "unsigned"), signatures={})
    tf.saved_model.save(model, str(folder / "signed"), signatures=model.double)
    lambdas = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Lambda(lambda x: x + 1)])
    lambdas.save(folder / "lambda.keras")
    small = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3)])
    small.save(folder / "small.keras")
    with ZipFile(folder / "small.keras") as own, ZipFile(folder / "huge.keras", "w") as huge:
        for name in own.namelist():
            huge.writestr(name, own.read(name).replace(b'"units": 3', b'"units": 1000000000'))
    with tf.Graph().as_default() as graph:
        tf.split(v1.placeholder(tf.float32, (2, 6), name="x") * 2.0, 2, axis=1, name="s")
    _write(folder / "halves.pb", graph.as_graph_def())

    class Named(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((2, 2))])
        def both(self, x: Any) -> Any:
            return {"probs": tf.nn.softmax(x), "logits": tf.nn.relu(x)}

    tf.saved_model.save(named := Named(), str(folder / "named"), signatures=named.both)
    _hostile(folder)
    return tf.function(tf.nn.relu), np.ones((2,), np.float32)


def _hostile(folder: Path) -> None:
    """Models whose operators reach out of TensorFlow, most of them to the file ``touched``."""
    touched = str(folder / "touched")
    ends = {
        "WriteFile": lambda x: tf.io.write_file(touched, tf.io.serialize_tensor(x)),
        "ReadFile": lambda x: tf.io.read_file(touched),
        "PyFunc": lambda x: v1.py_func(abs, [x], tf.float32),
        "EagerPyFunc": lambda x: tf.py_function(abs, [x], tf.float32),
        "PyFuncStateless": lambda x: v1.py_func(abs, [x], tf.float32, stateful=False),
        "PrintV2": lambda x: tf.print(x, output_stream=f"file://{touched}"),
        "SaveV2": lambda x: tf.raw_ops.SaveV2(
            prefix=touched, tensor_names=["x"], shape_and_slices=[""], tensors=[x]
        ),
        "DebugIdentity": lambda x: tf.raw_ops.DebugIdentity(
            input=x, debug_urls=[f"file://{touched}"]
        ),
        "FIFOQueueV2": lambda x: tf.queue.FIFOQueue(1, [tf.float32]).enqueue(x),
        "MatchingFiles": lambda x: tf.io.matching_files(touched),
        "SummaryWriter": lambda x: tf.raw_ops.SummaryWriter(shared_name=""),
        "ImmutableConst": lambda x: tf.raw_ops.ImmutableConst(
            dtype=tf.uint8, shape=(8,), memory_region_name=touched
        ),
        "DecodeProtoV2": lambda x: tf.raw_ops.DecodeProtoV2(
            bytes=tf.io.serialize_tensor(x),
            message_type="a",
            field_names=["b"],
            output_types=[tf.int32],
            descriptor_source=touched,
        ),
        "TextLineDataset": lambda x: tf.raw_ops.TextLineDataset(
            filenames=touched, compression_type="", buffer_size=1
        ),
    }
    for name, end in ends.items():
        with tf.Graph().as_default() as graph:
            end(v1.placeholder(tf.float32, (2,), name="x"))
        _write(folder / f"{name}.pb", graph.as_graph_def())

    @tf.function
    def inner(x: Any) -> Any:
        ends["WriteFile"](x)
        return x

    with tf.Graph().as_default() as graph:
        tf.function(lambda x: inner(x) + 1)(tf.constant([1.0, 2.0]))
    _write(folder / "nested.pb", graph.as_graph_def())

    class Writing(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((2,))])
        def harmless(self, x: Any) -> Any:
            return tf.nn.relu(x)

        @tf.function(input_signature=[tf.TensorSpec((2,))])
        def beside(self, x: Any) -> Any:
            return inner(x)

    model = Writing()
    tf.saved_model.save(model, str(folder / "writing"), signatures=model.harmless)
    saved = tf.saved_model.save  # with savers of its own; the model's function may not call one
    saved(tf.Module(), str(folder / "saving"), signatures={"serving_default": model.harmless})
    path = folder / "saving/saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for function in proto.meta_graphs[0].graph_def.library.function:
        if "harmless" in function.signature.name:
            function.node_def.add(name="steal", op="SaveV2")
    path.write_bytes(proto.SerializeToString())
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (2,), name="x")
        builder = v1.saved_model.Builder(str(folder / "version1"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": tf.nn.relu(x)})
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, main_op=ends["WriteFile"](1.0)
        )
        builder.save()
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (2,), name="x")
        v1.get_variable("w", (), use_resource=True, collections=["local_variables"])
        ends["SaveV2"](1.0)
        builder = v1.saved_model.Builder(str(folder / "local"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": tf.nn.relu(x)})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    path = folder / "local/saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    held = proto.meta_graphs[0].collection_def["local_variables"].bytes_list
    variable = variable_pb2.VariableDef.FromString(held.value[0])
    variable.initializer_name = "SaveV2"  # executed by loading, though no graph or list names it
    held.value[0] = variable.SerializeToString()
    path.write_bytes(proto.SerializeToString())


def attention(batch: int = 2) -> tuple[Any, ...]:
    """A Keras model with attention and dropout; kernels compute axes of its gradients."""
    inputs = tf.keras.Input((5, 4))
    found = tf.keras.layers.MultiHeadAttention(2, 2)(inputs, inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dropout(0.5)(found + inputs))
    model.compile(optimizer="sgd", loss="mse")
    x = np.random.default_rng(0).normal(size=(batch, 5, 4)).astype(np.float32)
    return model, x, tf.keras.losses.MeanSquaredError(), x + 1


def _write(path: Path, graph_def: Any) -> None:
    path.write_bytes(graph_def.SerializeToString())


def _nested(levels: int) -> Any:
    """Functions that each call the one before twice."""
    graph = v1.GraphDef()
    given = graph.node.add(name="x", op="Placeholder")
    given.attr["dtype"].type = tf.float32.as_datatype_enum
    given.attr["shape"].shape.dim.add(size=2)
    for k in range(levels):
        function = graph.library.function.add()
        function.signature.name = f"f{k}"
        function.signature.input_arg.add(name="x", type=tf.float32.as_datatype_enum)
        function.signature.output_arg.add(name="y", type=tf.float32.as_datatype_enum)
        output = "y" if k else "activations"
        for name, read in (("a", "x"), ("b", f"a:{output}:0")):
            node = function.node_def.add(name=name, op=f"f{k - 1}" if k else "Relu", input=[read])
            if not k:
                node.attr["T"].type = tf.float32.as_datatype_enum
        function.ret["y"] = f"b:{output}:0"
    graph.node.add(name="y", op=f"f{levels - 1}", input=["x"])
    return graph


def _branches(batch: int | None) -> Any:
    """Two products of one input and one constant, added; ``sum`` waits for ``b2``."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (batch, 8), name="x")
        weights = tf.constant(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, name="weights")
        first = tf.nn.relu(tf.matmul(x, weights, name="a1"), name="a2")
        second = tf.tanh(tf.matmul(x, weights, name="b1"), name="b2")
        with tf.control_dependencies([second]):
            one = tf.constant(1.0, name="one")
        tf.add(tf.add(first, second, name="add"), one, name="sum")
        with graph.colocate_with(first.op):
            tf.reduce_max(first, name="beside")
    return graph.as_graph_def()


def _loop() -> Any:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (2,), name="x")
        tf.while_loop(lambda x: tf.reduce_sum(x) < 9, lambda x: x + 1, [x], name="again")
    return graph.as_graph_def()


def _variable() -> Any:
    with tf.Graph().as_default() as graph:
        held = v1.get_variable("held", (3,), use_resource=True)
        tf.nn.relu(held, name="out")
    return v1.graph_util.extract_sub_graph(graph.as_graph_def(), ["out"])


def _training() -> Any:
    """A step of TensorFlow 1 with its initialisation, which draws without a seed, and its saver."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (4, 3), name="x")
        weights = [v1.get_variable(n, (3, 2), use_resource=n == "a") for n in ("a", "b")]
        loss = tf.reduce_mean(tf.square(x @ weights[0] + x @ weights[1]), name="loss")
        v1.train.AdamOptimizer(0.1).minimize(loss, name="train")
        v1.global_variables_initializer()
        v1.train.Saver()
    return graph.as_graph_def()
