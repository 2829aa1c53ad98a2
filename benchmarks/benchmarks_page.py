"""Compare all planners of operators, and write the page and the plot of the results.

    python benchmarks/benchmarks_page.py [--seconds S] [INSTANCE ...]

Instance x planner x value x bound x gap x time, valued by the judge, `auto` first: the published
dag files with free and with contended links (``FILE,free``), and training steps of the zoo with
analytic profiles on 2, 4 and 8 heterogeneous devices (``MODEL@CLUSTER``; the memory limits of
edge-duo, which some models break whatever the plan, are lifted). Every planner that `auto` runs is
in the tables: single devices, accelerate's device map where modules are known, list planners,
METIS, searches.

What was measured is kept as JSON lines in benchmarks/results/planners.jsonl; an instance that is
named is measured again, with none named those that are missing. Then the page in docs/results
and docs/images/cost-against-size.svg are written from all of it. Ends with 1 where `auto` is above
any planner of its table.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from ceft_pbqp import captured
from harness import DATA, run
from placewright import InfeasibleError, OperatorProblem, solve
from placewright.operators.problem import Links
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.result import relative_gap

HOUSE = Path(__file__).resolve().parents[1]
KEPT = HOUSE / "benchmarks" / "results" / "planners.jsonl"
PAGE = HOUSE / "docs" / "results" / "planners-by-instance.md"
PLOT = HOUSE / "docs" / "images" / "cost-against-size.svg"
MODELS = ("alexnet", "vgg16", "inception_v3", "resnet50", "rnnlm", "gnmt", "bert", "gpt2")
CLUSTERS = {"edge-duo": 2, "edge-quad": 2, "mixed-8": 8}
"""With the batch that is trained there."""

LIFTED = "edge-duo"
"""Without its memory limits, which four of the models break whatever the plan."""

HEAD = """# Planners, instance by instance

`python benchmarks/benchmarks_page.py`: `auto` with {seconds} s per instance, and every planner that
it ran, on two idle cores. Values are seconds by the judge; the bound is the
highest that any planner proved. Captured models are training steps with analytic
profiles (FLOPs and bytes over shares of the presets' rates), not measured ones; batch 2 on
edge-duo and edge-quad, 8 on mixed-8; memory limits hold except on edge-duo, where they are lifted.
`auto` is above no planner in any of the {count} tables: the command fails where it is.

![Makespan over the bound against the number of operators](../images/cost-against-size.svg)
"""

SHOWN = {"auto": "o", "ceft+pbqp": "^", "heft": "s", "best single device": "x"}
"""In the plot, with their markers."""

Record = dict[str, Any]
"""What was measured of an instance."""


def published() -> dict[str, tuple[Path, Links]]:
    """The dag files by name, each with free and with contended links."""
    files = sorted((DATA / "dag").glob("*.json"))
    return {f"{path.stem},{links}": (path, links) for path in files for links in Links}


def every_instance() -> list[str]:
    """By name, dag files first."""
    return [*published(), *(f"{model}@{cluster}" for cluster in CLUSTERS for model in MODELS)]


def problems(wanted: Sequence[str]) -> Iterator[OperatorProblem]:
    """Those named."""
    for name, (path, links) in published().items():
        if name in wanted:
            yield read_dag(path, links).replace(name=name)
    for cluster, batch in CLUSTERS.items():
        names = [f"{model}@{cluster}" for model in MODELS]
        for problem in captured([name for name in names if name in wanted], batch):
            limit = np.inf if cluster == LIFTED else problem.memory_bytes
            yield problem.replace(memory_bytes=np.broadcast_to(limit, problem.m))


def measured(problem: OperatorProblem, seconds: float) -> Record:
    """Result of `auto` on one problem, and of every planner that it ran."""
    result = solve(problem, time_limit_s=seconds)
    bounds = dict(result.bound_names)
    return {
        "instance": problem.name,
        "operators": problem.n,
        "devices": problem.m,
        "seconds": seconds,
        "value": result.value,
        "winner": result.planner,
        "why": result.note,
        "lower_bound": result.lower_bound,
        "bound": max(bounds, key=lambda name: bounds[name]),
        "runtime_s": round(result.runtime_s, 2),
        "planners": [
            {"planner": c.planner, "value": c.value, "fits": c.fits}
            | {"runtime_s": round(c.runtime_s, 3)}
            for c in result.candidates
            if math.isfinite(c.value)
        ],
    }


def records() -> dict[str, Record]:
    """What was measured, by instance, in the order of `every_instance`."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    kept = {item["instance"]: item for item in map(json.loads, lines)}
    return {name: kept[name] for name in every_instance() if name in kept}


def keep(record: Record) -> None:
    """Add to what was measured."""
    found = records() | {record["instance"]: record}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text("".join(json.dumps(item) + "\n" for item in found.values()))


def best(record: Record, *names: str) -> float | None:
    """Least value of these planners whose plans fit; ``only``: of single devices."""
    rows = [r for r in record["planners"] if r["fits"] and r["planner"].split(":")[0] in names]
    return min((r["value"] for r in rows), default=None)


def baseline(record: Record) -> float | None:
    """The better of HEFT and the best single device, where one of them fits."""
    return best(record, "heft", "only")


def page(found: Sequence[Record]) -> str:
    """One row per instance, what they come to, then the planners of each."""
    seconds = "/".join(sorted({f"{r['seconds']:g}" for r in found}, key=float))
    lines = [
        HEAD.format(seconds=seconds, count=len(found)),
        "## `auto`\n",
        "| instance | operators | value s | bound s | gap | won | to HEFT or single |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for r in found:
        known = baseline(r)
        cells = [r["instance"], r["operators"], f"{r['value']:.6g}", f"{r['lower_bound']:.6g}"]
        cells += [percent(r), r["winner"], f"{r['value'] / known:.3f}" if known else "-"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", *totals(found), "", *map(table, found)])


def totals(found: Sequence[Record]) -> Iterator[str]:
    """Mean ratio of contended dag files at CCR 1, median gap of captured models."""
    dags = [r for r in found if "ccr1.0" in r["instance"]]
    contended = [r for r in dags if not r["instance"].endswith(",free")]
    if ratios := [r["value"] / known for r in contended if (known := baseline(r))]:
        yield (
            f"Contended dag files at CCR 1: {fmean(ratios):.3f} of the better of HEFT and the best "
            f"single device, mean over {len(ratios)}."
        )
    models = [r for r in found if "@" in r["instance"]]
    if gaps := [relative_gap(r["value"], r["lower_bound"]) for r in models]:
        middle = f"{100 * median(gaps):.1f} % over {len(gaps)}"
        yield f"Captured models: median gap to the bound {middle}."


def table(record: Record) -> str:
    """Planners of one instance, best first."""
    lines = [
        f"## {record['instance']}\n",
        f"{record['operators']} operators, {record['devices']} devices, bound "
        f"{record['lower_bound']:.6g} s ({record['bound']}). {record['why']}.\n",
        "| planner | value s | gap | time s |",
        "|---|---:|---:|---:|",
        f"| **auto** | {record['value']:.6g} | {percent(record)} | {record['runtime_s']:.1f} |",
    ]
    for r in sorted(record["planners"], key=lambda r: (not r["fits"], r["value"])):
        name = r["planner"] if r["fits"] else f"{r['planner']}, does not fit"
        gap = percent(record, r["value"])
        lines.append(f"| {name} | {r['value']:.6g} | {gap} | {r['runtime_s']:.2f} |")
    return "\n".join(lines) + "\n"


def percent(record: Record, value: float | None = None) -> str:
    """Gap of a value, or that of `auto`, to the record's bound."""
    gap = relative_gap(record["value"] if value is None else value, record["lower_bound"])
    return f"{100 * gap:.1f} %"


def plot(found: Sequence[Record]) -> None:
    """Scatter of value over bound against the number of operators; the same SVG each time."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "placewright"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, marker in SHOWN.items():
        if name == "auto":
            values = [r["value"] for r in found]
        else:
            values = [best(r, "only" if name.startswith("best") else name) for r in found]
        drawn = [
            (r["operators"], value / r["lower_bound"])
            for r, value in zip(found, values, strict=True)
            if value is not None
        ]
        if drawn:
            across, up = zip(*drawn, strict=True)
            axes.scatter(across, up, marker=marker, s=26, label=name, alpha=0.8)
    axes.set(xscale="log", yscale="log", xlabel="operators", ylabel="makespan / lower bound")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})
    pyplot.close(figure)


def main(*instances: str, seconds: float = 10.0) -> int:
    """Measure, write the page and the plot; 1 where `auto` is above a planner."""
    missing = [name for name in every_instance() if name not in records()]
    for problem in problems(instances or missing):
        try:
            record = measured(problem, seconds)
        except InfeasibleError as error:
            print(f"{problem.name}: {error}", file=sys.stderr)
            continue
        keep(record)
        print(f"{problem.name}: {record['value']:.6g}, {record['why']}", flush=True)
    found = list(records().values())
    PAGE.write_text(page(found))
    PLOT.parent.mkdir(exist_ok=True)
    plot(found)
    worse = 0
    for record in found:
        rows = [r for r in record["planners"] if r["fits"] and r["value"] < record["value"]]
        if rows:
            worse += 1
            names = ", ".join(r["planner"] for r in rows)
            print(f"{record['instance']}: auto is above {names}", file=sys.stderr)
    return int(worse > 0)


if __name__ == "__main__":
    run(main)
