"""Compare CEFT+PBQP with list schedulers and single devices under contention.

``python benchmarks/ceft_pbqp.py [FOLDER-OF-DAG-FILES] [MODEL@CLUSTER ...]`` prints a markdown
table. Values are makespans by the judge relative to CEFT+PBQP's, so that above 1 is worse;
"-" does not fit the memories. Models are captured as training steps with analytic profiles.

``python benchmarks/ceft_pbqp.py MODEL@CLUSTER ... --bounds 60`` prints instead how near the bounds
of ``auto`` are, in so many seconds, to the best plan that any of its planners found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from harness import DATA, Table, run
from placewright import Context, InfeasibleError, OperatorProblem, bounds, judge, planners, solve
from placewright.operators.planners.pbqp import CeftPbqp
from placewright.operators.readers.task_graphs import read_dag

RIVALS = ("heft", "heft-contended", "cpop", "peft", "ceft", "ceft-cpop", "pbqp")

MODELS = {
    "edge-duo": ("resnet50",),
    "edge-quad": ("alexnet", "vgg16", "inception_v3", "resnet50", "rnnlm", "gnmt"),
    "mixed-8": ("resnet50",),
    "server-4gpu": ("resnet50", "gnmt", "bert", "gpt2"),
}
"""By cluster."""

BATCH = {"inception_v3": 2, "resnet50": 8}
"""Other models take their own default."""


def captured(names: Sequence[str], batch: int | None = None) -> Iterator[OperatorProblem]:
    """Training steps of the zoo; a model that cannot be captured is named on stderr."""
    import torch

    from placewright.capturing.model import capture
    from placewright.capturing.zoo import factory
    from placewright.cluster.cluster import Cluster
    from placewright.profiling.profiler import profile

    for name in names:
        model_name, _, cluster = name.partition("@")
        size = batch or BATCH.get(model_name)
        try:
            with torch.device("meta"):
                made = factory(model_name)(**({"batch": size} if size else {}))
            model, inputs, loss_fn, targets = made
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
        judgement = judge(problem, planners(problem)[name](problem, Context()))
    except InfeasibleError:
        return np.inf
    return float(judgement.value) if judgement.feasible else np.inf


def changed(problem: OperatorProblem) -> OperatorProblem:
    """One device in two has slowed down to a half."""
    factor = np.where(np.arange(problem.m) % 2 == 0, 2.0, 1.0)
    return problem.replace(compute_s=problem.compute_s * factor)


def row(problem: OperatorProblem) -> list[str]:
    """Cells of the table."""
    planner, again = CeftPbqp(), changed(problem)
    start = time.perf_counter()
    plan, state = planner.solve(problem, Context())
    solved = time.perf_counter()
    planner.resolve(again, state, Context())
    took_s = solved - start, time.perf_counter() - solved
    judgement = judge(problem, plan)
    own = judgement.value if judgement.feasible else np.inf
    single = min(value(problem, f"only:{d}") for d in problem.device_names)
    others = (single, *(value(problem, rival) for rival in RIVALS))
    known = [f"{v / own:.3f}" if np.isfinite([v, own]).all() else "-" for v in others]
    gap = own / max(bounds(problem).values()) - 1
    seconds = f"{took_s[0]:.2f} s", f"{1e3 * took_s[1]:.0f} ms"
    return [f"{problem.n} x {problem.m}", *known, f"{own:.5g}", f"{100 * gap:.1f} %", *seconds]


def near(models: Sequence[str], limit_s: float) -> None:
    """Print the best plan of `auto`, the bound that is there at once, and the proved one."""
    head = ("operators x devices", "best ms", "bound at once", "bound", "gap at once", "gap", "by")
    table = Table("step", *head)
    for problem in captured(models):
        found = solve(problem, time_limit_s=limit_s)
        best, quick = min(each.value for each in found.candidates), max(bounds(problem).values())
        cells = [f"{1e3 * s:.3f}" for s in (best, quick, found.lower_bound)]
        gaps = [f"{100 * (best / bound - 1):.1f} %" for bound in (quick, found.lower_bound)]
        tightest = max(found.bound_names, key=found.bound_names.__getitem__)
        table.row(problem.name, f"{problem.n} x {problem.m}", *cells, *gaps, tightest)


def main(*chosen: str, bounds_: float = 0.0) -> None:
    """Print the table: dag files with one transfer per channel at a time, then models."""
    if bounds_:
        near(chosen, bounds_)
        return
    folder = Path(next((a for a in chosen if "@" not in a), DATA / "dag"))
    models = [a for a in chosen if "@" in a]
    models = models or [f"{model}@{on}" for on, some in MODELS.items() for model in some]
    published = [read_dag(path, links="contended") for path in sorted(folder.glob("*.json"))]
    if published:  # compiles
        warm_up = min(published, key=lambda problem: problem.n)
        CeftPbqp().resolve(changed(warm_up), CeftPbqp().solve(warm_up, Context())[1], Context())
    head = ["instance", "operators x devices", "best single", *RIVALS, "**ceft+pbqp**"]
    table = Table(*head, "gap to bound", "solve", "re-solve")
    for problem in chain(published, captured(models)):
        try:
            table.row(problem.name, *row(problem))
        except InfeasibleError as error:
            print(f"| {problem.name} | nothing fits: {error.what} {error.by} |", flush=True)


if __name__ == "__main__":
    run(main)
