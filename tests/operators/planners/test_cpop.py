"""CPOP: the critical path on one device, the paper's example and published values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.operators.conformance import named_instances
from placewright.operators.judge import judge
from placewright.operators.planners.lists.insertion import set_up
from placewright.operators.planners.lists.planners import CPOP, RANKS, RankTables, path_device
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context
from tests.operators.planners.test_heft import paper
from tests.published import published

LIBRARY = {
    "layered_n100_ccr0.2_s0": 702.67,
    "layered_n100_ccr1.0_s0": 805.59,
    "layered_n1000_ccr1.0_s0": 6460.19,
    "narrow_n100_ccr1.0_s7": 1022.82,
    "narrow_n1000_ccr1.0_s7": 9260.74,
    "layered_n100_ccr5.0_s0": 973.45,
    "layered_n10000_ccr1.0_s0": 62887.93,
}


def test_the_papers_example() -> None:
    """Priority 108 along 0, 1, 8, 9, all on the second device; length 86."""
    problem = paper()
    tables = RankTables(set_up(problem))
    priority, path = RANKS["through"](tables), tables.path
    assert path.tolist() == [0, 1, 8, 9]
    assert priority[path] == pytest.approx(108)
    plan = replace(CPOP, transfers=("different",))(problem, Context())
    assert plan.placement[path].tolist() == [1, 1, 1, 1]
    assert judge(problem, plan).value == 86


def test_a_chain_is_all_critical() -> None:
    """Five of five: the downward rank adds the producer's cost, not the operator's own."""
    tables = RankTables(set_up(named_instances()["chain"]))
    assert tables.path.tolist() == [0, 1, 2, 3, 4]
    assert np.ptp(RANKS["through"](tables)) < 1e-12
    assert tables.downward.tolist() == [0.0, 3.5, 7.0, 10.5, 14.0]


def test_the_path_goes_to_a_device_that_can_run_it() -> None:
    """Least sum of times, among the devices that can run most of the path."""
    inf = float("inf")
    setup = set_up(named_instances()["chain"].replace(compute_s=[[2.0, 3.0]] * 4 + [[inf, 3.0]]))
    assert path_device(setup, RankTables(setup).path) == 1


@pytest.mark.parametrize("name", LIBRARY)
def test_as_good_as_the_library(name: str) -> None:
    """Within 1 % of the best-kept library's makespan, or better."""
    problem = read_dag(published(f"dag/{name}.json"))
    assert judge(problem, CPOP(problem, Context())).value <= 1.01 * LIBRARY[name]
