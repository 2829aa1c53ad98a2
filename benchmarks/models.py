"""Compare placed models, and what is done around them, with eager PyTorch.

    python benchmarks/models.py
    python benchmarks/models.py --only llama --only "decode" --json results.json

Operator by operator each model is cut into as many stretches as there are workers, in the order of
its first operators; every output, parameter, buffer and changed input is compared after each of ten
steps. Layer by layer (``layers``) it is split along samples over two workers, else it is a pipeline
of two stages, else one worker has it; loss, gradients and updates of two steps are compared. A
situation is what a loop or a process does around a placed model: it changes weights between steps,
sets modes, or calls a model of another framework.

What comes out is one of three: equal (or within the rounding that is documented), refused with the
message printed, or WRONG, which a traceback is too; with a WRONG one the exit code is 1.
With ``--json`` results are kept model by model, and models already there are not run again.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import Table, run
from model_cases.cases import CASES, Case
from placewright import Cluster, Device, OperatorPlan, OperatorProblem, PlacewrightError, profile
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.errors import UnsupportedError
from placewright.graph.graph import Graph
from placewright.layers.execution.session import LayerSession
from placewright.layers.execution.stage_orders import TracedModel, demand_executable
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.run import MOST_ERROR, checked
from placewright.numerics.arrays import IntArray
from placewright.operators.run import running

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


def compared_layers(source: ModelSource) -> dict[str, Any]:
    """Steps of the first of three plans that computes what one process computes."""
    model = TracedModel(source)
    last, batch = len(model.layers) - 1, model.batch
    plans = [LayerPlan((Stage(0, last, (Replica((0,), batch),)),))]
    if last > 0:
        ends = ((0, last // 2, 0), (last // 2 + 1, last, 1))
        stages = tuple(Stage(a, b, (Replica((w,), batch),)) for a, b, w in ends)
        plans.insert(0, LayerPlan(stages))
    if batch > 1:
        shares = (Replica((0,), batch - batch // 2), Replica((1,), batch // 2))
        plans.insert(0, LayerPlan((Stage(0, last, shares),)))
    for plan in plans:
        try:
            demand_executable(model, plan, 2, exact=True)
            break
        except UnsupportedError:
            if plan is plans[-1]:
                raise
    cluster = Cluster((Device("d0", node="m"), Device("d1", node="n")), name="workers")
    with LayerSession(model, cluster, optimizer="sgd", lr=0.1) as session:
        absolute, relative = checked(session, plan)
    used = sorted({w for s in plan.stages for w in s.workers})
    return {
        "workers_used": len(used),
        "max_abs_error": absolute,
        "tolerance": MOST_ERROR,
        "passed": relative <= MOST_ERROR,
        "plan": f"{len(plan.stages)} stages, shares {plan.stages[0].shares}",
    }


def outcome(case: Case, workers: Sequence[int], steps: int) -> dict[str, Any]:
    """The row of one model or situation."""
    start = time.perf_counter()
    row: dict[str, Any] = {"name": case.name, "step": case.step, "runs": {}}
    try:
        _compare(case, workers, steps, row)
    except PlacewrightError as error:
        row["refused"] = str(error)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["outcome"] = verdict(row)
    row["seconds"] = time.perf_counter() - start
    return row


def _compare(case: Case, workers: Sequence[int], steps: int, row: dict[str, Any]) -> None:
    if case.compare is not None:
        off = case.compare()
        row["runs"]["2"] = {"max_abs_error": off, "passed": off == 0.0}
    elif case.step == "layers":
        row["runs"]["2"] = compared_layers(case.source())
    else:
        source = case.source()
        graph = capture_source(source, training=case.training)
        row["operators"] = len(graph.operators)
        for devices in workers:
            row["runs"][str(devices)] = compared(source, graph, devices, steps)


def verdict(row: dict[str, Any]) -> str:
    """``equal``, ``within rounding``, ``refused`` or ``WRONG``."""
    if "error" in row:
        return "WRONG"
    if "refused" in row:
        named = "next:" in row["refused"] and "should not happen" not in row["refused"]
        return "refused" if named else "WRONG"
    if not all(run["passed"] for run in row["runs"].values()):
        return "WRONG"
    exact = all(run["max_abs_error"] == 0.0 for run in row["runs"].values())
    return "equal" if exact else "within rounding"


def cells_of(row: dict[str, Any], workers: Sequence[int]) -> list[Any]:
    """A row of the table."""
    cells = [row["name"], row["step"], row.get("operators", "")]
    for devices in workers:
        found = row["runs"].get(str(devices))
        sent = f" ({found['tensors_sent']} sent)" if found and "tensors_sent" in found else ""
        cells.append(f"{found['max_abs_error']:.2g}{sent}" if found else "")
    said = " ".join(row.get("error", row.get("refused", "")).split())
    return [*cells, f"{row['outcome']}: {said}" if said else row["outcome"]]


def main(
    *,
    only: tuple[str, ...] = (),
    steps: int = 10,
    workers: tuple[int, ...] = (2, 3),
    json_: Path | None = None,
) -> int:
    """Print the table; 1 if anything is wrong."""
    warnings.simplefilter("ignore")
    kept = json_ is not None and json_.exists()
    rows: dict[str, Any] = json.loads(json_.read_text()) if json_ and kept else {}
    columns = [f"{n} workers" for n in workers]
    table = Table("model", "step", "operators", *columns, "outcome", left=4 + len(columns))
    for case in CASES.values():
        if not only or any(text in case.key for text in only):
            if case.key not in rows:
                rows[case.key] = outcome(case, workers, steps)
                if json_ is not None:
                    json_.write_text(json.dumps(rows, indent=1))
            table.row(*cells_of(rows[case.key], workers))
    counted = Counter(row["outcome"] for row in rows.values())
    models = len({row["name"] for row in rows.values()})
    each = ", ".join(f"{n} {name}" for name, n in counted.items())
    print(f"\n{models} models and situations, {len(rows)} comparisons: {each}")
    return int(counted["WRONG"] > 0)


if __name__ == "__main__":
    run(main)
