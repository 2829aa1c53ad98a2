"""Compare CEFT+PBQP with list schedulers and single devices under contention.

``python benchmarks/ceft_pbqp.py [FOLDER-OF-DAG-FILES] [MODEL@CLUSTER ...]`` prints a markdown
table. Values are makespans by the judge relative to CEFT+PBQP's, so that above 1 is worse;
"-" does not fit the memories. Models are captured as training steps with analytic profiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from placewright import Context, InfeasibleError, OperatorProblem, bounds, judge, planners
from placewright.operators.planners.pbqp import CeftPbqp
from placewright.operators.readers.task_graphs import read_dag

RIVALS = ("heft", "heft-contended", "cpop", "peft", "ceft", "ceft-cpop", "pbqp")

MODELS = (
    "alexnet@edge-quad",
    "vgg16@edge-quad",
    "inception_v3@edge-quad",
    "resnet50@edge-duo",
    "resnet50@edge-quad",
    "resnet50@mixed-8",
    "resnet50@server-4gpu",
    "rnnlm@edge-quad",
    "gnmt@edge-quad",
    "gnmt@server-4gpu",
    "bert@server-4gpu",
    "gpt2@server-4gpu",
)

BATCH = {"inception_v3": 2, "resnet50": 8}
"""Other models take their own default."""


def published(folder: Path) -> Iterator[OperatorProblem]:
    """The dag files, one transfer per channel at a time."""
    for path in sorted(folder.glob("*.json")):
        yield read_dag(path, links="contended")


def captured(names: tuple[str, ...], batch: int | None = None) -> Iterator[OperatorProblem]:
    """Training steps of the zoo; a model that cannot be captured is named on stderr."""
    import torch

    from placewright.capturing.model import capture
    from placewright.capturing.zoo import factory
    from placewright.cluster.cluster import Cluster
    from placewright.profiling.profiler import profile

    for name in names:
        model_name, _, cluster = name.partition("@")
        size = batch or BATCH.get(model_name)
        sizes = {"batch": size} if size else {}
        try:
            with torch.device("meta"):
                model, inputs, loss_fn, targets = factory(model_name)(**sizes)
            graph = capture(
                model, inputs, training=True, loss_fn=loss_fn, targets=targets, name=name
            )
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        yield profile(graph, Cluster.preset(cluster), method="analytic")


def value(problem: OperatorProblem, name: str) -> float:
    """Makespan of a planner's plan, ``inf`` where it does not fit or there is none."""
    try:
        plan = planners(problem)[name](problem, Context())
        judgement = judge(problem, plan)
    except InfeasibleError:
        return np.inf
    return float(judgement.value) if judgement.feasible else np.inf


def changed(problem: OperatorProblem) -> OperatorProblem:
    """One device in two has slowed down to a half."""
    factor = np.where(np.arange(problem.m) % 2 == 0, 2.0, 1.0)
    return problem.replace(compute_s=problem.compute_s * factor)


def row(problem: OperatorProblem) -> str:
    """One line of the table."""
    planner, again = CeftPbqp(), changed(problem)
    start = time.perf_counter()
    plan, state = planner.solve(problem, Context())
    solved = time.perf_counter()
    planner.resolve(again, state, Context())
    took_s = solved - start, time.perf_counter() - solved
    judgement = judge(problem, plan)
    own = judgement.value if judgement.feasible else np.inf
    single = min(value(problem, f"only:{d}") for d in problem.device_names)
    cells = [relative(v, own) for v in (single, *(value(problem, r) for r in RIVALS))]
    gap = own / max(bounds(problem).values()) - 1
    return (
        f"| {problem.name} | {problem.n} x {problem.m} | {' | '.join(cells)} "
        f"| {own:.5g} | {100 * gap:.1f} % | {took_s[0]:.2f} s | {1e3 * took_s[1]:.0f} ms |"
    )


def relative(other: float, own: float) -> str:
    """How many times as long."""
    return f"{other / own:.3f}" if np.isfinite(other) and np.isfinite(own) else "-"


def main() -> None:
    """Print the table."""
    arguments = sys.argv[1:]
    folders = [Path(a) for a in arguments if "@" not in a]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data" / "dag"
    models = tuple(a for a in arguments if "@" in a) or MODELS
    warm_up = read_or_make(folder)
    CeftPbqp().resolve(changed(warm_up), CeftPbqp().solve(warm_up, Context())[1], Context())
    head = ["instance", "operators x devices", "best single", *RIVALS, "**ceft+pbqp**"]
    head += ["gap to bound", "solve", "re-solve"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for source in (published(folder), captured(models)):
        for problem in source:
            try:
                print(row(problem), flush=True)
            except InfeasibleError as error:
                print(f"| {problem.name} | nothing fits: {error.what} {error.by} |", flush=True)


def read_or_make(folder: Path) -> OperatorProblem:
    """Something small to compile on."""
    from placewright.operators.conformance import random_problem

    small = sorted(folder.glob("*n100_*.json"))
    if small:
        return read_dag(small[0], links="contended")
    return random_problem(0, most_operators=20)


if __name__ == "__main__":
    main()
