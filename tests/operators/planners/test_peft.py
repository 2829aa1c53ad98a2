"""PEFT: its table by plain recursion, its paper's guarantee, the library's makespans."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem
from placewright.operators.costs import kernel_costs
from placewright.operators.judge import judge
from placewright.operators.planners.lists.insertion import optimistic_costs
from placewright.operators.planners.lists.planners import PEFT
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context
from tests.operators.planners.test_heft import paper
from tests.published import published

LIBRARY = {
    "layered_n100_ccr0.2_s0": 637.70,
    "layered_n100_ccr1.0_s0": 749.22,
    "layered_n100_ccr5.0_s0": 740.86,
    "layered_n1000_ccr1.0_s0": 6130.85,
    "layered_n10000_ccr1.0_s0": 61510.55,
    "narrow_n100_ccr1.0_s7": 917.40,
    "narrow_n1000_ccr1.0_s7": 8915.33,
}


def table(p: OperatorProblem, work: np.ndarray) -> list[list[float]]:
    """The optimistic cost table by its definition."""
    known: dict[int, list[float]] = {}

    def move(k: int, a: int, b: int) -> float:
        return 0.0 if a == b else p.latency_s[a, b] + p.tensor_bytes[k] * p.seconds_per_byte[a, b]

    def row(i: int) -> list[float]:
        if i not in known:
            after = [
                (k, int(j))
                for k in range(p.t)
                if p.tensor_producer[k] == i
                for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
            ]
            known[i] = [
                max(
                    (
                        min(move(k, a, b) + (row(j)[b] + work[j, b]) for b in range(p.m))
                        for k, j in after
                    ),
                    default=0.0,
                )
                for a in range(p.m)
            ]
        return known[i]

    return [row(i) for i in range(p.n)]


def test_the_table_is_its_definition() -> None:
    """Equal to plain recursion, bit for bit."""
    for seed in range(100):
        problem = random_problem(seed)
        work = np.where(problem.allowed(), problem.compute_s, np.inf)
        fast = optimistic_costs(kernel_costs(problem), work)
        assert fast.tolist() == table(problem, work)


def test_the_example_of_heft_is_not_worse() -> None:
    """On the example of the HEFT paper, with equal links, PEFT's table starts at its exit."""
    problem = paper()
    plan = PEFT(problem, Context())
    assert judge(problem, plan).value <= 86


@pytest.mark.parametrize("name", LIBRARY)
def test_as_good_as_the_library(name: str) -> None:
    """Within 1 % of the best-kept library's makespan, or better."""
    problem = read_dag(published(f"dag/{name}.json"))
    assert judge(problem, PEFT(problem, Context())).value <= 1.01 * LIBRARY[name]
