"""Queue search against enumeration, and never worse than its start."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from placewright.operators.instances import tiny
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lns import Lns
from placewright.operators.planners.queue_search import QueueSearch
from placewright.operators.planners.search import Search
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.dag import read_dag
from placewright.planning.contract import Context, proposal_of
from placewright.planning.solving import solve
from tests.operators.simulation.test_first_come import queued

SMALL = QueueSearch(effort=4e5, length=2000)


def found(problem: OperatorProblem, seed: int = 0, **known: object) -> OperatorPlan:
    """The plan of a short search."""
    plan: OperatorPlan = proposal_of(SMALL(problem, Context(seed=seed, **known))).plan  # type: ignore[arg-type]
    return plan


def blocks(tmp_path: Path, seed: int, devices: int = 4) -> OperatorProblem:
    """A generated tensor program: products of blocks, then sums, transfers four times as dear."""
    rng = np.random.default_rng(seed)
    tasks, edges = [], []
    layer = [f"p{i}" for i in range(12)]
    tasks += [{"name": x, "cost": int(rng.integers(50, 100)), "kind": "product"} for x in layer]
    for depth in range(3):
        sums = [f"s{depth}_{i}" for i in range(6)]
        for i, name in enumerate(sums):
            tasks.append({"name": name, "cost": 1 + 60 * (depth % 2), "kind": "sum"})
            edges += [(x, name) for x in {layer[i], layer[(i + 5) % len(layer)]}]
        layer = sums
    cost = {task["name"]: task["cost"] for task in tasks}
    names = [f"gpu{d}" for d in range(devices)]
    data = {
        "nodes": [{"name": d, "speed": 10**10} for d in names],
        "links": [
            {"source": a, "target": b, "speed": 10**10} for a, b in itertools.combinations(names, 2)
        ],
        "tasks": tasks,
        "dependencies": [{"source": a, "target": b, "size": 4 * cost[a]} for a, b in edges],
    }
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps(data))
    return read_dag(path, queues="first-come")


def test_it_finds_the_optimum_of_small_problems() -> None:
    """Brute force over all placements."""
    for seed in range(6):
        problem = queued(seed, ticks=seed % 2 == 0, n=7)
        rows = list(itertools.product(range(problem.m), repeat=problem.n))
        least = evaluate_many(problem, rows)[0].min()
        assert judge(problem, found(problem)).value == least


def test_groups_pins_and_refusals_are_kept() -> None:
    """`check_plan`, which the judge calls, passes; what starts it is never made worse."""
    problem = tiny(
        [[1.0, 2.0, 1.0]] * 7 + [[1.0, np.inf, 3.0]],
        [(0, 1.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3]), (4, 2.0, [5, 6, 7])],
        links="free",
        queues="first-come",
        colocation=[0, 1, 0, 3, 4, 5, 4, 7],
        pinned=[-1, 1, -1, -1, 2, -1, -1, -1],
    )
    incumbent = OperatorPlan([0, 1, 0, 0, 2, 0, 2, 0])
    plan = found(problem, incumbent=incumbent)
    assert judge(problem, plan).value <= judge(problem, incumbent).value


def test_the_seed_fixes_the_plan(tmp_path: Path) -> None:
    """Twice the same placement, and another seed is allowed to differ."""
    problem = blocks(tmp_path, 1)
    assert problem.ticks_per_s == 1e10
    plans = [found(problem, seed).placement.tolist() for seed in (3, 3)]
    assert plans[0] == plans[1]


def test_auto_beats_list_schedules_where_transfers_are_dear(tmp_path: Path) -> None:
    """On a generated program: below HEFT's placement and the best device, at or above the bound."""
    problem = blocks(tmp_path, 2)
    result = solve(problem, time_limit_s=2.0)
    values = {c.planner: c.value for c in result.candidates}
    assert result.value < min(values["heft"], values["round-robin"], values["only:gpu0"])
    assert result.lower_bound <= result.value
    assert Search().unsupported_reason(problem) is not None
    assert Lns().unsupported_reason(problem) is not None


def test_ctrl_c_keeps_the_best() -> None:
    """Interrupted in its first progress report, it returns what it has."""
    problem = queued(5, ticks=True)

    def stop(**_: object) -> None:
        raise KeyboardInterrupt

    proposal = proposal_of(SMALL(problem, Context(progress=stop)))
    assert proposal.interrupted
    judge(problem, proposal.plan)


def test_priority_queues_are_left_to_search() -> None:
    """Refused by name."""
    reason = QueueSearch().unsupported_reason(queued(1, ticks=True).replace(queues="priority"))
    assert reason is not None
    assert "search" in reason
    with pytest.raises(Exception, match="queue-search"):
        solve(tiny([[1.0, 1.0]] * 2, links="free"), "queue-search")
