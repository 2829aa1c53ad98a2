"""CP-SAT, as it is inside OR-tools."""

from __future__ import annotations

import math
import time
from typing import Any

from placewright.solvers.answer import Answer, waited


def run_cp_sat(
    model: Any,
    *,
    seed: int,
    deadline_s: float,
    workers: int,
    presolve: bool = True,
    work: float = math.inf,
    gap: float = 0.0,
) -> Answer:
    """Solve a CP-SAT model; the same answer every time where it ends before the deadline.

    It also ends after `work`, CP-SAT's deterministic time, about seconds, and where value and
    bound are within the relative `gap`.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.random_seed = seed % 2**31
    parameters.num_workers = workers
    parameters.cp_model_presolve = presolve
    # Workers take turns in a fixed order; else threads would race and answers vary.
    parameters.interleave_search = workers > 1
    parameters.catch_sigint_signal = False
    parameters.relative_gap_limit = gap
    left = deadline_s - time.perf_counter()
    if left <= 0:
        return Answer(None, 0.0)
    if math.isfinite(left):
        parameters.max_time_in_seconds = left
    if math.isfinite(work):
        parameters.max_deterministic_time = work
    status, interrupted = waited(lambda: solver.solve(model), solver.stop_search)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        values=solver.value if solved else None,
        bound=max(0.0, solver.best_objective_bound) if solved else 0.0,
        infeasible=status == cp_model.INFEASIBLE,
        interrupted=interrupted,
        proved=status == cp_model.OPTIMAL,
    )
