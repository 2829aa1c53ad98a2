"""Compare learned planners as published with their repaired versions.

    python benchmarks/learned_profiles.py --on server-4gpu
    python benchmarks/learned_profiles.py --planners post --out rows.jsonl --minutes 8

Inference of the zoo's small models on presets of four devices (analytic profile, contended links),
the published files with the latency of calls through host memory, and DOPPLER's graphs under its
own cost model (`doppler_queues`; ``$PLACEWRIGHT_DATA``). Prints a row per graph and planner: values
relative to the reference (HEFT; the best single device through host memory), of the best trivial
plan and of both profiles, mean over seeds with half its 95 % interval, how far the repaired one is
above the lower bound, and after how many evaluations it was at the reference; at the end, where
`repaired` is not better, and whether the bound proves that nothing is. It counts evaluations: what
else the machine does changes nothing. ``--out FILE --minutes M`` keeps a row per seed and goes on
in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from math import exp, inf, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from doppler_queues import QueueValues, read_queues
from kept_rows import KeptRows, add_options
from placewright import Cluster, Context, OperatorProblem, judge, profile
from placewright.capturing.model import capture_source
from placewright.measurement import half_interval
from placewright.operators.bounds import bounds
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.neural_networks import read_msr
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import proposal_of
from placewright.planning.parameters import choose
from small_zoo import SIZES, small

PROFILES = ("as_published", "repaired")

EVALUATIONS = {"post": 2000, "hsdag": 200, "hp3c": 100, "doppler": 100}
"""By planner: updates of networks take a second or so."""

SMALLER = {"hp3c": "hidden=64, groups=32"}
"""HP3C as published has fewer units and groups than its default: an update takes a second else."""

DATA = Path(os.environ.get("PLACEWRIGHT_DATA", "../shared/data"))


def main(args: argparse.Namespace) -> None:
    """Print the table."""
    print(
        f"| graph | operators | planner | trivial | {' | '.join(PROFILES)} | gap | at reference |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    kept, rows = KeptRows(args.out, args.minutes), []
    for problem, queues in problems(args):
        scale = scale_of(problem, queues)
        for name in args.planners:
            row = row_of(problem, queues, name, scale, kept, args)
            if row is not None:
                rows.append(row)
                print(text(row), flush=True)
    kept.print_left()
    for name in args.planners:
        if found := [row for row in rows if row["planner"] == name]:
            print(f"\n{summary(name, found)}")


def summary(name: str, rows: list[dict[str, Any]]) -> str:
    """Where `repaired` is not better, and evaluations until the reference."""
    ratio = [mean(row["repaired"]) / mean(row["as_published"]) for row in rows]
    better = sum(x < 1 - 1e-9 for x in ratio)
    middle = exp(mean(map(log, ratio)))
    lines = [
        f"{name}: repaired is better on {better} of {len(rows)}, {middle:.3f} of as published "
        f"(geometric mean); at the reference after {median(row['at'] for row in rows):.0f} "
        f"evaluations (median), at most {max(row['at'] for row in rows):.0f}"
    ]
    for row, x in zip(rows, ratio, strict=True):
        if x >= 1 - 1e-9:
            proved = max(row["repaired"]) <= row["bound"] * (1 + 1e-9)
            why = "nothing is better, by the bound" if proved else f"{gap(row):.3%} above the bound"
            kind = "worse" if x > 1 + 1e-9 else "as good"
            lines.append(f"{kind} on {row['graph']} ({mean(row['repaired']):.5f}): {why}")
    return "\n".join(lines)


def problems(args: argparse.Namespace) -> Iterator[tuple[OperatorProblem, QueueValues | None]]:
    """Models on presets, then published files; what values their placements but for the judge."""
    for preset in args.on:
        for name in args.models:
            graph = capture_source(small(name), training=args.training)
            problem = profile(graph, Cluster.preset(preset), method="analytic")
            yield problem.replace(name=f"{name} on {preset}"), None
    if args.published:
        for path in sorted((DATA / "msr" / "latency").glob("*.json")):
            yield read_msr(path, "latency"), None
        for path in sorted((DATA / "doppler").glob("[!r]*.json")):
            yield read_dag(path), QueueValues(*read_queues(path))


def scale_of(problem: OperatorProblem, queues: QueueValues | None) -> dict[str, float]:
    """The reference in seconds; the best trivial plan and the lower bound relative to it."""
    trivial_s = reference_s = Evaluations(problem, measure=queues).trivial_s
    if HEFT.unsupported_reason(problem) is None:
        plan = proposal_of(HEFT(problem, Context())).plan
        values = queues(plan.placement) if queues else [judge(problem, plan).value]
        reference_s = float(values[0])
    bound = max(bounds(problem).values()) / reference_s
    return {"reference_s": reference_s, "trivial": trivial_s / reference_s, "bound": bound}


def row_of(
    problem: OperatorProblem,
    queues: QueueValues | None,
    name: str,
    scale: dict[str, float],
    kept: KeptRows,
    args: argparse.Namespace,
) -> dict[str, Any] | None:
    """Values of both profiles of a planner, by seed; ``None`` where some are left."""
    limit, found, at = args.evaluations or EVALUATIONS[name], {}, []
    for which in PROFILES:
        smaller = [SMALLER[name]] if which == "as_published" and name in SMALLER else []
        planner = f"{name}({', '.join([f'profile={which}', *smaller])})"
        runs = [
            kept.get(
                f"{problem.name}, {planner}, {limit} evaluations, seed {seed}",
                partial(run_of, problem, queues, planner, limit, scale, seed),
            )
            for seed in range(args.seeds)
        ]
        if None in runs:
            return None
        found[which] = [value for value, _ in runs]
        at = [evaluations for _, evaluations in runs]
    return {
        "graph": problem.name,
        "operators": problem.n,
        "planner": name,
        "at": max(at),
        **scale,
        **found,
    }


def run_of(
    problem: OperatorProblem,
    queues: QueueValues | None,
    text: str,
    limit: int,
    scale: dict[str, float],
    seed: int,
) -> tuple[float, float]:
    """The value of one run over the reference, and after how many evaluations it was there."""
    planner: Any = choose(planners(problem), text)[1]
    reference_s = scale["reference_s"]
    context = Context(seed=seed, bound=scale["bound"] * reference_s)
    run = Evaluations(problem, context, limit=limit, measure=queues)
    learned(planner, run)
    below = (p.evaluations for p in run.curve if p.value_s <= reference_s * (1 + 1e-9))
    return run.best.score.value_s / reference_s, next(below, inf)


def gap(row: dict[str, Any]) -> float:
    """The mean of `repaired` above the lower bound, relative to it."""
    return float(mean(row["repaired"]) / row["bound"] - 1)


def text(row: dict[str, Any]) -> str:
    """A row of the table."""
    values = " | ".join(with_interval(row[which]) for which in PROFILES)
    name = f"{row['graph']} | {row['operators']} | {row['planner']}"
    return f"| {name} | {row['trivial']:.4f} | {values} | {gap(row):.1%} | {row['at']:.0f} |"


def with_interval(values: list[float]) -> str:
    """Mean, and half of its 95 % interval where seeds differ."""
    half = half_interval(values) if len(values) > 1 else 0.0
    return f"{mean(values):.4f}" + (f" ± {half:.4f}" if half >= 5e-5 else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="*", default=["edge-quad", "server-4gpu"])
    parser.add_argument("--models", nargs="*", default=list(SIZES))
    parser.add_argument("--planners", nargs="*", default=list(EVALUATIONS))
    parser.add_argument("--training", action="store_true", help="steps instead of inference")
    parser.add_argument("--no-published", dest="published", action="store_false")
    parser.add_argument("--evaluations", type=int, help="by planner where not given")
    parser.add_argument("--seeds", type=int, default=5)
    add_options(parser)
    main(parser.parse_args())
