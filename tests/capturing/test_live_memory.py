"""The judged memory of views equals what PyTorch holds."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.operators.judge import judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.profiling.profiler import profile
from small_zoo import small
from tests.capturing.live_memory import peak_bytes
from tests.capturing.models import unseen
from tests.capturing.small_graphs import small_graph, unseen_graph


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "name", ["alexnet", "llama", "gru", "normed", "transposed", "vision transformer"]
)
def test_the_judged_peak_is_what_is_held_to_the_byte(name: str, *, training: bool) -> None:
    """Beside residents, over a step in the program's own order; without views it would be more."""
    made, graph_of = (small, small_graph) if name == "alexnet" else (unseen, unseen_graph)
    source, graph = made(name), graph_of(name, training=training)
    problem = profile(graph, Cluster((Device("a"),), ()), method="analytic")
    problem = problem.replace(resident_bytes=np.zeros(problem.n), compute_s=np.ones((problem.n, 1)))
    plan = OperatorPlan(np.zeros(problem.n), np.arange(problem.n), Dispatch.IN_ORDER)
    held = peak_bytes(graph, initial_state(source, graph.program))
    assert judge(problem, plan).peak_bytes.tolist() == [held]
    unshared = problem.replace(alias_of=np.full(problem.t, -1))
    assert judge(unshared, plan).peak_bytes[0] >= held
