"""Measure plans for a translation model's training step in TensorFlow, the setting of HP3C.

    python benchmarks/hp3c_tensorflow.py [--devices 2] [--steps 25] [--planner auto hp3c ...]

The model is GNMT made small: embeddings, an encoder and a decoder of LSTM layers, attention, and a
projection on the vocabulary, in Keras, every time step unrolled (no loop: each operator can be
placed). The step has the loss, all gradients and Adam. Every plan is measured in turns with the
graph as TensorFlow places it; logical CPUs share one thread pool, so that on a machine without GPUs
a placement changes where transfers and queues are, and not how many cores compute.

``hp3c`` is rewarded by the judge; with ``--measured N`` also by measured steps of N placements, as
in the paper, from no start other than the trivial plans (``hp3c measured``).

``expert`` puts the layers round robin on the devices, as people place GNMT by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from placewright import OperatorProblem, Result
    from placewright.deployment.model_files import TensorFlowWorkload

LAYERS = ("embed_source", "encoder_0", "encoder_1", "embed_target", "decoder_0", "decoder_1")
TOP = ("attention", "projection")
"""On the device of the last layer, where the decoder's outputs are."""

VOCABULARY, WORDS, WIDTH, SENTENCES = 1000, 8, 128, 16


def translator(batch: int = SENTENCES) -> tuple[Any, ...]:
    """Keras model, sentences, loss and targets; TensorFlow's process calls this."""
    import keras
    import tensorflow as tf

    class Translator(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers = keras.layers
            self.embeds = [layers.Embedding(VOCABULARY, WIDTH, name=n) for n in LAYERS[::3]]
            self.cells = [layers.LSTMCell(WIDTH, name=n) for n in LAYERS if n[-1].isdigit()]
            self.query = layers.Dense(WIDTH, use_bias=False, name="attention_query")
            self.projection = layers.Dense(VOCABULARY, name="projection")

        def call(self, inputs: list[Any], training: bool = False) -> Any:
            source, target = inputs
            with tf.name_scope("embed_source"):
                words = tf.unstack(self.embeds[0](source), axis=1)
            for cell in self.cells[:2]:
                words = self.unrolled(cell, words)
            with tf.name_scope("embed_target"):
                made = tf.unstack(self.embeds[1](target), axis=1)
            made = self.unrolled(self.cells[2], made)
            with tf.name_scope("attention"):
                memory = tf.stack(words, axis=1)
                scores = tf.matmul(self.query(tf.stack(made, axis=1)), memory, transpose_b=True)
                found = tf.matmul(tf.nn.softmax(scores), memory)
                made = [tf.concat(p, -1) for p in zip(made, tf.unstack(found, axis=1), strict=True)]
            made = self.unrolled(self.cells[3], made)
            with tf.name_scope("projection"):
                return self.projection(tf.stack(made, axis=1))

        def unrolled(self, cell: Any, words: list[Any]) -> list[Any]:
            with tf.name_scope(cell.name):
                state = [tf.zeros((words[0].shape[0], WIDTH)) for _ in range(2)]
                made = []
                for word in words:
                    output, state = cell(word, state)
                    made.append(output)
                return made

    rng = np.random.default_rng(0)
    source, target, wanted = rng.integers(0, VOCABULARY, (3, batch, WORDS)).astype(np.int32)
    model = Translator()
    model([source, target])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, [source, target], loss, wanted


def expert(problem: OperatorProblem) -> list[int]:
    """A device for every operator: layers round robin, what has no layer beside its neighbours."""
    layer = {name: k % problem.m for k, name in enumerate(LAYERS)}
    layer |= dict.fromkeys(TOP, layer[LAYERS[-1]])
    named = [re.findall("|".join((*LAYERS, *TOP)), name) for name in problem.operator_names]
    return beside_neighbours(problem, [layer[found[0]] if found else -1 for found in named])


def beside_neighbours(problem: OperatorProblem, device: list[int]) -> list[int]:
    """Devices of all operators; those without (-1) go where a neighbour is, groups together."""
    named, device = [d >= 0 for d in device], list(device)
    readers: list[list[int]] = [[] for _ in range(problem.n)]
    sources: list[list[int]] = [[] for _ in range(problem.n)]
    for k, producer in enumerate(problem.tensor_producer.tolist()):
        for reader in problem.consumers[slice(*problem.consumer_offsets[k : k + 2])].tolist():
            readers[producer].append(reader)
            sources[reader].append(producer)
    order = problem.topology.order.tolist()
    for beside, way in ((sources, order), (readers, order[::-1])):
        for op in way:
            known = [device[other] for other in beside[op] if device[other] >= 0]
            device[op] = known[0] if device[op] < 0 and known else device[op]
    first: dict[int, int] = {}
    for op, group in enumerate(problem.colocation.tolist()):
        if named[op] or group not in first:
            first.setdefault(group, max(device[op], 0))
    return [first[group] for group in problem.colocation.tolist()]


def planned(name: str, workload: TensorFlowWorkload, time_limit: float, samples: int) -> Result:
    """What a planner, the expert, or HP3C by measured steps makes."""
    from placewright import OperatorPlan, solve
    from placewright.deployment.workers import measured_rewards
    from placewright.planning.solving import judged_plan

    problem = workload.problem
    if name == "expert":
        return judged_plan(problem, OperatorPlan(np.array(expert(problem))))
    if name != "hp3c measured":
        return solve(problem, name, time_limit_s=time_limit)
    choice = {"name": "hp3c", "samples": samples, "reward": "measured", "start": "nothing"}
    with measured_rewards(workload) as measure:
        result = solve(problem, choice, time_limit_s=3600.0, measure=measure)
    print(f"{name}: {result.candidates[0].note}", flush=True)
    return result


def main(
    *,
    devices: int = 2,
    steps: int = 25,
    time_limit: float = 10.0,
    batch: int = SENTENCES,
    planner: tuple[str, ...] = ("only:cpu0", "metis", "random", "heft", "auto", "hp3c"),
    measured: int = 0,
) -> None:
    """Plan by every planner, measure beside the unplaced graph, outputs compared."""
    from harness import Table
    from placewright import Cluster, Device
    from placewright.capturing.tensorflow.model import capture_tensorflow
    from placewright.deployment.model_files import TensorFlowWorkload, profile_tensorflow

    cluster = Cluster(tuple(Device(f"cpu{k}") for k in range(devices)), name="logical")
    source = f"tensorflow:{Path(__file__).parent.name}.{Path(__file__).stem}:translator"
    model = capture_tensorflow(source, training=True, batch=batch)
    workload = TensorFlowWorkload(model, cluster, profile_tensorflow(model, cluster))
    print(repr(model.graph), flush=True)
    head = ("devices", "predicted, ms", "measured, ms", "times as fast", "largest error")
    table = Table("plan", *head)
    for name in ("expert", *planner, *(["hp3c measured"] if measured else [])):
        result = planned(name, workload, time_limit, measured)
        found = workload.measure(result, steps=steps, check=True)
        assert found.check is not None
        times = [f"{1e3 * s:.2f}" for s in (found.predicted_s, found.measured_s)]
        speed = "{ratio:.3f} ({low:.3f} to {high:.3f})".format(**found.unplaced_json()["speed_up"])
        used = len(set(result.plan.placement.tolist()))
        table.row(name, used, *times, speed, f"{found.check.max_abs_error:g}")


if __name__ == "__main__":
    from harness import run

    run(main)
