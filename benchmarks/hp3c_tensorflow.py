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

import argparse
import json
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


def learned_on_steps(workload: TensorFlowWorkload, samples: int) -> Result:
    """HP3C, rewarded by the median of measured steps."""
    from placewright import solve
    from placewright.deployment.workers import measured_rewards

    choice = {"name": "hp3c", "samples": samples, "reward": "measured", "start": "nothing"}
    with measured_rewards(workload) as measure:
        result = solve(workload.problem, choice, time_limit_s=3600.0, measure=measure)
    print(f"hp3c measured: {result.candidates[0].note}", flush=True)
    return result


def measured(workload: TensorFlowWorkload, result: Result, steps: int) -> dict[str, Any]:
    """Predicted and measured step, beside the unplaced graph, outputs compared."""
    found = workload.measure(result, steps=steps, check=True)
    assert found.check is not None
    used = sorted(set(result.plan.placement.tolist()))
    return {
        "devices": [workload.cluster.devices[k].name for k in used],
        "predicted_s": found.predicted_s,
        "measured_s": found.measured_s,
        "step_s": list(found.step_s),
        "unplaced": found.unplaced_json(),
        "max_abs_error": found.check.max_abs_error,
    }


def main() -> None:
    """Plan by every planner, measure, and print a table."""
    from placewright import Cluster, Device, OperatorPlan, solve
    from placewright.capturing.tensorflow.model import capture_tensorflow
    from placewright.deployment.model_files import TensorFlowWorkload, profile_tensorflow
    from placewright.planning.solving import judged_plan

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=SENTENCES)
    parser.add_argument(
        "--planner", nargs="*", default=["only:cpu0", "metis", "random", "heft", "auto", "hp3c"]
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--measured", type=int, default=0, metavar="N")
    args = parser.parse_args()

    cluster = Cluster(tuple(Device(f"cpu{k}") for k in range(args.devices)), name="logical")
    source = f"tensorflow:{Path(__file__).parent.name}.{Path(__file__).stem}:translator"
    model = capture_tensorflow(source, training=True, batch=args.batch)
    workload = TensorFlowWorkload(model, cluster, profile_tensorflow(model, cluster))
    problem = workload.problem
    print(repr(model.graph), flush=True)
    rows = {}
    learning = ["hp3c measured"] if args.measured else []
    for name in ("expert", *args.planner, *learning):
        if name == "hp3c measured":
            result = learned_on_steps(workload, args.measured)
        elif name == "expert":
            result = judged_plan(problem, OperatorPlan(np.array(expert(problem))))
        else:
            result = solve(problem, name, time_limit_s=args.time_limit)
        row = rows[name] = measured(workload, result, args.steps)
        speed = row["unplaced"]["speed_up"]
        print(
            f"{name:12} predicted {row['predicted_s'] * 1e3:8.2f} ms  measured "
            f"{row['measured_s'] * 1e3:8.2f} ms  {speed['ratio']:.3f} times the unplaced graph's "
            f"speed ({speed['low']:.3f} to {speed['high']:.3f})  error {row['max_abs_error']:g}",
            flush=True,
        )
    if args.output is not None:
        data = {"engine": workload.engine, "operators": problem.n, "plans": rows}
        args.output.write_text(json.dumps(data, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
