"""Compare Post with each of its two parts alone.

    python benchmarks/post_ablation.py

Generated graphs (`transfer_graphs`, seeds from 300,000) and training steps of small captured models
on a preset; from uniform softmaxes, at 2,400 samples. For every graph the mean over seeds, relative
to HEFT; at the end, over graphs, the geometric mean of value with both parts over value with one,
with its 95 % interval (Student's t over graphs; below 1: both parts are better). It counts samples:
what else the machine does changes nothing. ``--out FILE --minutes M`` keeps a row per graph and
goes on in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import mean
from typing import Literal

from intervals import geometric_mean
from kept_rows import KeptRows, add_options
from placewright import Cluster, Context, OperatorProblem, judge, profile
from placewright.capturing.model import capture_source
from placewright.operators.planners.learned.post import Post
from placewright.operators.planners.lists.planners import HEFT
from small_zoo import SIZES, small
from transfer_graphs import generated

Parts = Literal["both", "ppo", "cross-entropy"]
Profile = Literal["as_published", "repaired"]
PARTS: tuple[Parts, ...] = ("both", "ppo", "cross-entropy")
PROFILES: tuple[Profile, ...] = ("as_published", "repaired")
FIRST = 300_000


def main(args: argparse.Namespace) -> None:
    """Print a row per graph, then what both parts bring."""
    columns = list(product(PROFILES, PARTS))
    print(f"| graph | operators | {' | '.join(f'{w}, {p}' for w, p in columns)} |")
    print("|---|---:|" + "---:|" * len(columns))
    kept, rows = KeptRows(args.out, args.minutes), []
    for problem in problems(args):
        key = f"{problem.name}, {args.samples} samples, {args.seeds} seeds"
        row = kept.get(key, partial(row_of, problem, args.samples, args.seeds))
        if row is None:
            continue
        rows.append(row)
        cells = [f"{row[f'{w} {p}']:.3f}" for w, p in columns]
        print(f"| {problem.name} | {problem.n} | {' | '.join(cells)} |", flush=True)
    kept.print_left()
    for which in PROFILES:
        for alone in PARTS[1:]:
            logs = [math.log(row[f"{which} both"] / row[f"{which} {alone}"]) for row in rows]
            print(f"{which}: both over {alone} alone {geometric_mean(logs)}, {len(logs)} graphs")


def row_of(problem: OperatorProblem, samples: int, seeds: int) -> dict[str, float]:
    """Means over seeds, relative to HEFT, by profile and parts."""
    heft, row = judge(problem, HEFT(problem, Context())).value, {}
    for which, parts in product(PROFILES, PARTS):
        planner = Post(samples=samples, profile=which, start="uniform", parts=parts)
        plans = [planner(problem, Context(seed=s)).plan for s in range(seeds)]
        row[f"{which} {parts}"] = mean(judge(problem, plan).value / heft for plan in plans)
    return row


def problems(args: argparse.Namespace) -> Iterator[OperatorProblem]:
    """Generated ones, then models."""
    for seed in range(FIRST, FIRST + args.graphs):
        yield generated(seed, size=args.size)
    for name in args.models:
        graph = capture_source(small(name), training=True)
        yield profile(graph, Cluster.preset(args.on), method="analytic")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--size", type=int, default=300, help="operators of generated graphs")
    parser.add_argument("--models", nargs="*", default=list(SIZES))
    parser.add_argument("--on", default="server-4gpu")
    parser.add_argument("--samples", type=int, default=2400)
    parser.add_argument("--seeds", type=int, default=5)
    add_options(parser)
    main(parser.parse_args())
