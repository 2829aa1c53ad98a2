"""Learned planners, repaired against as published, on models, host memory, DOPPLER's graphs.

    python benchmarks/learned_profiles.py
    python benchmarks/learned_profiles.py --on server-4gpu --evaluations 200 --seeds 1

Inference of the zoo's small models on presets of four devices (analytic profile, contended links),
the published files with the latency of calls through host memory, and DOPPLER's graphs under its
own queues (``$PLACEWRIGHT_DATA``). Prints a row per graph and planner: values relative to the
reference (HEFT; the best single device through host memory), of the best trivial plan and of both
profiles, mean over seeds, and after how many evaluations `repaired` was at the reference; at the
end, where `repaired` is not better. It counts evaluations: what else the machine does changes
nothing. ``--out FILE --minutes M`` keeps rows and goes on in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from kept_rows import KeptRows, add_options
from placewright import (
    Cluster,
    Context,
    OperatorProblem,
    capture_source,
    judge,
    profile,
)
from placewright.operators.bounds import bounds
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.dag import read_dag
from placewright.operators.readers.msr import read_msr
from placewright.planning.parameters import choose
from placewright.testing.small_zoo import SIZES, small

NAMES = ("post", "hp3c", "hsdag", "doppler")
SMALLER = {"hp3c": "hidden=64, groups=32"}
"""HP3C as published has fewer units and groups than its default: an update takes a second else."""

DATA = Path(os.environ.get("PLACEWRIGHT_DATA", "../shared/data"))


def main(asked: argparse.Namespace) -> None:
    """Print the table."""
    print("| graph | operators | planner | trivial | as published | repaired | at reference |")
    print("|---|---:|---|---:|---:|---:|---:|")
    kept, rows = KeptRows(asked.out, asked.minutes), []
    for problem in problems(asked):
        for name in asked.planners:
            key = f"{problem.name}, {name}, {asked.evaluations} evaluations, {asked.seeds} seeds"
            row = kept.get(key, lambda problem=problem, name=name: row_of(problem, name, asked))
            if row is not None:
                rows.append(row)
                print(text(row), flush=True)
    kept.print_left()
    if not rows:
        return
    at = [row["at"] for row in rows]
    print(f"\nThe reference is reached after {median(at):.0f} evaluations (median).")
    worse = [r for r in rows if r["repaired"] > r["published"] * (1 + 1e-9)]
    level = [r for r in rows if abs(r["repaired"] / r["published"] - 1) <= 1e-9]
    print(f"Repaired is better on {len(rows) - len(worse) - len(level)} of {len(rows)}.")
    for kind, found in (("as good", level), ("worse", worse)):
        for r in found:
            end = ", at the bound" if r["repaired"] <= r["bound"] * (1 + 1e-6) else ""
            print(f"{kind}: {r['planner']} on {r['graph']} ({r['repaired']:.4f}{end})")


def problems(asked: argparse.Namespace) -> Iterator[OperatorProblem]:
    """Models on presets, then published files."""
    for preset in asked.on:
        for name in asked.models:
            graph = capture_source(small(name), training=asked.training)
            problem = profile(graph, Cluster.preset(preset), method="analytic")
            yield problem.replace(name=f"{name} on {preset}")
    if asked.published:
        for path in sorted((DATA / "msr" / "latency").glob("*.json")):
            yield read_msr(path, "latency")
        for path in sorted((DATA / "doppler").glob("[!r]*.json")):
            yield read_dag(path, links="free", queues="first-come")


def row_of(problem: OperatorProblem, name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Both profiles of a planner on a problem."""
    trivial_s = Evaluations(problem).trivial_s
    reference_s = trivial_s
    if HEFT.unsupported_reason(problem) is None:
        reference_s = judge(problem, HEFT(problem, Context())).value
    bound_s = max(bounds(problem).values())
    found: dict[str, list[float]] = {}
    at: list[float] = []
    for which in ("as_published", "repaired"):
        options = [f"profile={which}", *([SMALLER[name]] if name in SMALLER else [])]
        text = f"{name}({', '.join(options if which == 'as_published' else options[:1])})"
        planner: Any = choose(planners(problem), text)[1]
        for seed in range(asked.seeds):
            run = Evaluations(problem, Context(seed=seed, bound=bound_s), limit=asked.evaluations)
            learned(planner, run)
            found.setdefault(which, []).append(run.best.score.value_s / reference_s)
            if which == "repaired":
                below = (p.evaluations for p in run.curve if p.value_s <= reference_s * (1 + 1e-9))
                at.append(next(below, math.inf))
    published, repaired = (mean(found[which]) for which in ("as_published", "repaired"))
    return {
        "graph": problem.name,
        "operators": problem.n,
        "planner": name,
        "published": published,
        "repaired": repaired,
        "bound": bound_s / reference_s,
        "trivial": trivial_s / reference_s,
        "at": median(at),
    }


def text(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = " | ".join(f"{row[key]:.4f}" for key in ("trivial", "published", "repaired"))
    name = f"{row['graph']} | {row['operators']} | {row['planner']}"
    return f"| {name} | {cells} | {row['at']:.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="*", default=["edge-quad", "server-4gpu"])
    parser.add_argument("--models", nargs="*", default=list(SIZES))
    parser.add_argument("--planners", nargs="*", default=list(NAMES))
    parser.add_argument("--training", action="store_true", help="steps instead of inference")
    parser.add_argument("--no-published", dest="published", action="store_false")
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    add_options(parser)
    main(parser.parse_args())
