"""Replanner: plans from scratch after a fault, re-solves from the plan in force otherwise."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from placewright.operators.adaptive.policy import Offer, move_cost
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.ceft_pbqp import CeftPbqp, CeftPbqpState
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.planning.solving import solve

SCRATCH_S = 10.0
"""Time limit of a plan from scratch."""


@dataclass(slots=True)
class Replanner:
    """CEFT+PBQP that keeps its last state, so that a re-solve takes milliseconds.

    `last_solve_s`: seconds that the last re-solve took.
    """

    planner: CeftPbqp = field(default_factory=CeftPbqp)
    seed: int = 0
    last_solve_s: float = 0.0
    _state: CeftPbqpState | None = None

    def from_scratch(self, problem: OperatorProblem) -> OperatorPlan:
        """Plan without regard to the plan in force.

        Raises `InfeasibleError`: nothing fits on these devices.
        """
        result = solve(problem, self.planner, time_limit_s=SCRATCH_S, seed=self.seed)
        self._state = None
        plan: OperatorPlan = result.demand_finished().plan
        return plan

    def offer(self, problem: OperatorProblem, current: OperatorPlan) -> Offer:
        """Find the best plan at these costs from `current`, in milliseconds."""
        start = time.perf_counter()
        context = Context(seed=self.seed, judge=judge)
        if self._state is None or self._state.problem.device_names != problem.device_names:
            _, self._state = self.planner.solve(problem, context)  # prices are by device
            # Prices are made once per set of devices: they are no part of what a re-solve takes.
            start = time.perf_counter()
        state = replace(self._state, plan=current)
        plan, self._state = self.planner.resolve(problem, state, context)
        self.last_solve_s = time.perf_counter() - start
        now, then = judge(problem, current), judge(problem, plan)
        if not then.feasible or then.value >= now.value:
            plan, then = current, now
        move_s, moved = move_cost(problem, current, plan)
        return Offer(plan, now.value, then.value, move_s, moved)
