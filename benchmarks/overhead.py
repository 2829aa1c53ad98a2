"""Measure the overhead of the executor on one device, and the time of capture and import.

    python benchmarks/overhead.py [--guards]

An executor step and a plain eager step take turns, single-threaded on one core; the ratio is the
median over the pairs. With ``--guards`` instead what the comparison before each step costs that
nothing has changed since a step was captured, beside training steps of about a millisecond.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time

import numpy as np
import torch

from harness import Table, run
from placewright import Cluster, Device, load_model
from placewright.capturing.guards import Guards
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import zoo_models
from placewright.operators.check import Stepper
from placewright.runtime.session import Session
from small_models import MODELS

WARM_UP = 2


def ratio(name: str, training: bool, batch: int, pairs: int) -> tuple[float, ...]:
    """Seconds of capture, eager step, executor step, and their ratio."""
    source = load_model(f"zoo:{name}", batch=batch, training=training)
    start = time.perf_counter()
    graph = capture_source(source, training=training)
    capture_s = time.perf_counter() - start
    step = Stepper(copy.deepcopy(source), training=training)
    eager, placed = [], []
    here = Cluster((Device("here"),))
    with Session(graph, here, initial_state(source, graph.program)) as session:
        session.load([0] * len(graph.operators), range(len(graph.operators)))
        session.run(WARM_UP)
        for _ in range(WARM_UP):
            step()
        for _ in range(pairs):
            placed += [record.duration_s for record in session.run(1)]
            begun = time.perf_counter()
            step()
            eager.append(time.perf_counter() - begun)
    ratios = np.array(placed) / np.array(eager)
    return capture_s, float(np.median(eager)), float(np.median(placed)), float(np.median(ratios))


def guard_shares(pairs: int) -> None:
    """Print the share of a training step that its guards take, for small models."""
    table = Table("model", "eager step ms", "guards us", "share")
    for name, small in MODELS.items():
        source = small.source(name)
        training = small.training
        step = Stepper(copy.deepcopy(source), training=training)
        capture_source(source, training=training)  # which notes what code the guards watch
        watched = Guards(source.model, source.loss_fn if training else None, training=training)
        steps, compared = [], []
        for _ in range(WARM_UP + pairs):
            begun = time.perf_counter()
            step()
            steps.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            same = watched.unchanged()
            compared.append(time.perf_counter() - begun)
            assert same
        step_s, guards_s = (float(np.median(each[WARM_UP:])) for each in (steps, compared))
        share = f"{guards_s / step_s:.2%}"
        table.row(name, f"{step_s * 1e3:.2f}", f"{guards_s * 1e6:.0f}", share)


def import_seconds() -> float:
    """Fastest of five ``import placewright`` in fresh interpreters, interpreter start excluded."""
    code = "from time import perf_counter as t; a = t(); import placewright; print(t() - a)"
    command = [sys.executable, "-c", code]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )


def main(
    *, models: tuple[str, ...] = tuple(zoo_models()), pairs: int = 15, guards: bool = False
) -> None:
    """Print the table."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if guards:
        guard_shares(10 * pairs)
        return
    print(f"import placewright: {import_seconds() * 1e3:.0f} ms\n")
    head = ("capture s", "eager ms", "executor ms", "executor / eager")
    table = Table("model", "step", *head, left=2)
    for name in models:
        for kind, batch in (("inference", 1), ("training", 2)):
            capture_s, eager_s, placed_s, share = ratio(name, kind == "training", batch, pairs)
            times = [f"{s * 1e3:.1f}" for s in (eager_s, placed_s)]
            table.row(name, kind, f"{capture_s:.1f}", *times, f"{share:.3f}")


if __name__ == "__main__":
    run(main)
