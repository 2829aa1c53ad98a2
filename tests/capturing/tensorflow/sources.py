"""Small TensorFlow models; only the process that runs TensorFlow imports this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def perceptron(batch: int = 4) -> tuple[Any, ...]:
    """A Keras model, its inputs, its loss and its targets."""
    inputs = tf.keras.Input((6,))
    hidden = tf.keras.layers.Dense(5, activation="relu", name="hidden")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3, name="last")(hidden))
    rng = np.random.default_rng(0)
    x, wanted = rng.normal(size=(2, batch, 6)).astype(np.float32)
    return model, x, tf.keras.losses.MeanSquaredError(), wanted[:, :3]


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
    return tf.function(tf.nn.relu), np.ones((2,), np.float32)


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
