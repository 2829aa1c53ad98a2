"""Tables of the docs: ``python benchmarks/benchmarks_page.py [SECONDS] [INSTANCE ...]``.

Instance x planner x value x bound x gap x time by the judge's word, `auto` first: the published
dag files with free and with contended links, and training steps of the zoo on 2, 4 and 8 unlike
devices (``MODEL@CLUSTER``). Prints markdown for ``docs/benchmarks.md``. The files are looked for
in $PLACEWRIGHT_DATA or ../shared/data.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ceft_pbqp import captured
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.readers.dag import read_dag
from placewright.result import relative_gap
from placewright.solve import solve

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
MODELS = ("alexnet", "vgg16", "inception_v3", "resnet50", "rnnlm", "gnmt", "bert", "gpt2")
CLUSTERS = ("edge-duo", "edge-quad", "mixed-8")


def instances(wanted: list[str]) -> Iterator[OperatorProblem]:
    """Those named, or all."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "dag"
    for path in sorted(folder.glob("*.json")):
        if not wanted or path.stem in wanted:
            for links in Links:
                yield read_dag(path, links).asked(name=f"{path.stem}, {links}")
    names = [f"{model}@{cluster}" for cluster in CLUSTERS for model in MODELS]
    yield from captured(tuple(name for name in names if not wanted or name in wanted))


def table(problem: OperatorProblem, limit_s: float) -> None:
    """`auto` and every planner that it asked, best first."""
    result = solve(problem, time_limit_s=limit_s)
    print(f"\n**{problem.name}**, {problem.n} operators, bound {result.lower_bound:.6g} s\n")
    print("| planner | value s | gap | time s |")
    print("|---|---:|---:|---:|")
    print(f"| **auto** ({result.planner}) | {result.value:.6g} | ", end="")
    print(f"{100 * result.gap:.1f} % | {result.runtime_s:.1f} |")
    for c in sorted(result.candidates, key=lambda c: c.value):
        if math.isfinite(c.value):
            gap = 100 * relative_gap(c.value, result.lower_bound)
            fits = "" if c.status != "INFEASIBLE" else ", does not fit"
            print(f"| {c.planner}{fits} | {c.value:.6g} | {gap:.1f} % | {c.runtime_s:.2f} |")
    sys.stdout.flush()


def main(words: list[str]) -> None:
    """Print the tables."""
    limit_s = float(words[0]) if words else 10.0
    for problem in instances(words[1:]):
        table(problem, limit_s)


if __name__ == "__main__":
    main(sys.argv[1:])
