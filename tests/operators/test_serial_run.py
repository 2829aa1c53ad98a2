"""A plan for ``overlap serial`` executes serially, with the same results."""

from __future__ import annotations

import numpy as np
import torch

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.operators.run import Runner, execution_order, measured_trace, running
from placewright.profiling.profiler import profile
from placewright.report.trace import Trace

NAMES = "abc"
TRIO = Cluster(
    tuple(Device(n, node=n, speed=1.0 if n == "a" else 0.5) for n in NAMES),
    tuple(Link(s, t, 1e9, 1e-4) for s in NAMES for t in NAMES if s != t),
    name="trio",
)


class Branches(torch.nn.Module):
    """Three towers that could run at the same time, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        first, second, third = (tower(x) for tower in self.towers)
        total: torch.Tensor = first + second + third
        return total


def branches() -> ModelSource:
    """A training step."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 256, generator=generator) for _ in range(2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ModelSource(Branches(), (x,), torch.nn.functional.mse_loss, y)


def overlapping(trace: Trace) -> int:
    """Pairs of operators, in the order of their starts, of which the second starts too early."""
    mine = trace.track < trace.devices
    order = np.argsort(trace.start_s[mine], kind="stable")
    start, end = trace.start_s[mine][order], trace.end_s[mine][order]
    return int((start[1:] < np.maximum.accumulate(end)[:-1]).sum())


def one_step(runner: Runner, problem: OperatorProblem, plan: OperatorPlan) -> Trace:
    """A watched step of the plan, as the problem asks for it."""
    order = execution_order(problem, judge(problem, plan))
    serial = problem.overlap is Overlap.SERIAL
    runner.session.load(plan.placement.tolist(), order, serial=serial)
    runner.session.run(1)
    (record,) = runner.session.run(1, watched=True)
    return measured_trace(problem, record)


def test_no_two_operators_overlap_and_every_bit_is_eagers() -> None:
    """Towers on three workers: serial they take turns, in parallel they do not."""
    source = branches()
    graph = capture_source(source, training=True)
    parallel = profile(graph, TRIO, method="analytic")
    serial = parallel.replace(overlap=Overlap.SERIAL)
    tower = {f"towers.{k}": k for k in range(3)}
    home = np.array([tower.get(op.module[:8], 0) for op in graph.operators])
    groups = {g: home[i] for i, g in reversed(list(enumerate(parallel.colocation.tolist())))}
    plan = OperatorPlan(np.array([groups[g] for g in parallel.colocation.tolist()]))
    assert len(set(plan.placement.tolist())) == 3
    with running(graph, TRIO, initial_state(source, graph.program)) as runner:
        played = one_step(runner, serial, plan)
        # A busy machine may give each tower a turn of its own once.
        beside = (overlapping(one_step(runner, parallel, plan)) > 0 for _ in range(10))
        assert any(beside)
        order = execution_order(serial, judge(serial, plan))
        runner.session.load(plan.placement.tolist(), order, 1, serial=True)
        check = runner.check(source, 1)
    assert len(played.start_s) == serial.n + len(judge(serial, plan).transfers)
    assert overlapping(played) == 0
    assert check.passed, check
