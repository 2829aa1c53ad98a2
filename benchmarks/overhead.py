"""Measure the overhead of the executor on one device, and the time of capture and import.

    python benchmarks/overhead.py [--guards]

An executor step and a plain eager step take turns, single-threaded on one core; the ratio is the
median over the pairs. With ``--guards`` instead what the comparison before each step costs that
nothing has changed since a step was captured, beside training steps of about a millisecond.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import time

import numpy as np
import torch

from placewright import Cluster, Device, load_model
from placewright.capturing.guards import Guards
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import zoo_models
from placewright.operators.check import Stepper
from placewright.runtime.session import Session
from small_steps import MODELS

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


def guards(pairs: int) -> None:
    """Print the share of a training step that its guards take, for small models."""
    print("| model | eager step ms | guards us | share |\n|---|---|---|---|")
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
        print(
            f"| {name} | {step_s * 1e3:.2f} | {guards_s * 1e6:.0f} | {guards_s / step_s:.2%} |",
            flush=True,
        )


def import_seconds() -> float:
    """Fastest of five ``import placewright`` in fresh interpreters, interpreter start excluded."""
    code = "from time import perf_counter as t; a = t(); import placewright; print(t() - a)"
    command = [sys.executable, "-c", code]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(zoo_models()))
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--guards", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if args.guards:
        guards(10 * args.pairs)
        return
    print(f"import placewright: {import_seconds() * 1e3:.0f} ms\n")
    print("| model | step | capture s | eager ms | executor ms | executor / eager |")
    print("|---|---|---|---|---|---|")
    for name in args.models:
        for training in (False, True):
            row = ratio(name, training, 2 if training else 1, args.pairs)
            kind = "training" if training else "inference"
            print(
                f"| {name} | {kind} | {row[0]:.1f} | {row[1] * 1e3:.1f} | {row[2] * 1e3:.1f} | "
                f"{row[3]:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
