"""Compare models placed on two and three workers with eager PyTorch over ten steps.

    python benchmarks/models.py
    python benchmarks/models.py --only llama --only "decode" --json results.json

Each model is cut into as many stretches of operators as there are workers, in the order of its
first operators, and every output, parameter, buffer and changed input is compared after every
step. What comes out is one of three: equal (or within the rounding that is documented for such
devices), refused with the message printed, or WRONG; with a WRONG one the exit code is 1.
With ``--json`` results are kept model by model, and models already there are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from model_cases.cases import CASES, Case
from placewright import (
    Cluster,
    Device,
    Graph,
    ModelSource,
    OperatorPlan,
    OperatorProblem,
    PlacewrightError,
    capture_source,
    initial_state,
    profile,
    running,
)
from placewright.numerics.arrays import IntArray

SEED = 3


def split(problem: OperatorProblem, devices: int) -> IntArray:
    """Device of every operator: colocation groups in topological order, cut into equal parts."""
    groups = problem.colocation
    first = np.full(int(groups.max()) + 1, problem.n)
    np.minimum.at(first, groups, np.argsort(problem.topology.order))
    ranked = np.argsort(first, kind="stable")
    before = np.cumsum(np.bincount(groups)[ranked]) - 1
    device = np.empty(len(first), dtype=np.int64)
    device[ranked] = before * devices // problem.n
    placed: IntArray = device[groups]
    return placed


def compared(source: ModelSource, graph: Graph, devices: int, steps: int) -> dict[str, Any]:
    """What a check of one split says."""
    cluster = Cluster(tuple(Device(f"d{i}") for i in range(devices)), name="workers")
    problem = profile(graph, cluster, method="analytic")
    plan = OperatorPlan(split(problem, devices))
    with running(graph, cluster, initial_state(source, graph.program)) as runner:
        runner.load(problem, plan, SEED)
        check = runner.check(source, SEED, cluster.devices, steps)
    return {
        "workers_used": len(set(plan.placement.tolist())),
        "tensors_sent": int(sum(len(part.receives) for part in runner.session.parts)),
        "max_abs_error": check.max_abs_error,
        "tolerance": check.tolerance.relative,
        "steps": check.steps,
        "passed": check.passed,
        "check": str(check),
    }


def outcome(case: Case, workers: list[int], steps: int) -> dict[str, Any]:
    """The row of one model."""
    start = time.perf_counter()
    row: dict[str, Any] = {"name": case.name, "training": case.training, "runs": {}}
    try:
        source = case.source()
        graph = capture_source(source, training=case.training)
        row["operators"] = len(graph.operators)
        for devices in workers:
            row["runs"][str(devices)] = compared(source, graph, devices, steps)
    except PlacewrightError as error:
        row["refused"] = str(error)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["outcome"] = verdict(row)
    row["seconds"] = time.perf_counter() - start
    return row


def verdict(row: dict[str, Any]) -> str:
    """``equal``, ``within rounding``, ``refused`` or ``WRONG``."""
    if "error" in row:
        return "WRONG"
    if "refused" in row:
        named = "next:" in row["refused"] and "model " in row["refused"]
        return "refused" if named else "WRONG"
    if not all(run["passed"] for run in row["runs"].values()):
        return "WRONG"
    exact = all(run["max_abs_error"] == 0.0 for run in row["runs"].values())
    return "equal" if exact else "within rounding"


def line(row: dict[str, Any], workers: list[int]) -> str:
    """A row of the table."""
    cells = []
    for devices in workers:
        run = row["runs"].get(str(devices))
        sent = f"{run['max_abs_error']:g} ({run['tensors_sent']} sent)" if run else ""
        cells.append(sent)
    what = row["outcome"]
    if "error" in row or "refused" in row:
        what += ": " + " ".join(row.get("error", row.get("refused", "")).split())
    kind = "training" if row["training"] else "inference"
    return " | ".join(
        [f"| {row['name']}", kind, str(row.get("operators", "")), *cells, f"{what} |"]
    )


def main() -> None:
    """Print the table; exit 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="names that contain it")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results and go on there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = args.json is not None and args.json.exists()
    rows: dict[str, Any] = json.loads(args.json.read_text()) if kept else {}
    columns = [f"{n} workers" for n in args.workers]
    print("| " + " | ".join(["model", "step", "operators", *columns, "outcome"]) + " |")
    print("|" + "---|" * (4 + len(columns)))
    for case in CASES.values():
        if args.only and not any(text in case.name for text in args.only):
            continue
        if case.name not in rows:
            rows[case.name] = outcome(case, args.workers, args.steps)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1))
        print(line(rows[case.name], args.workers), flush=True)
    outcomes = [row["outcome"] for row in rows.values()]
    counted = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    print(f"\n{len(rows)} models: " + ", ".join(f"{n} {name}" for name, n in counted.items()))
    sys.exit("WRONG" in outcomes)


if __name__ == "__main__":
    main()
