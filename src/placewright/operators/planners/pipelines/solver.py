"""SCIP, as it is inside OR-tools, run so that it can be stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from placewright.solvers.cp_sat import Answer, waited


def run_scip(
    model: Any, hint: Mapping[Any, float], *, seed: int, deadline_s: float, tolerance: float
) -> Answer:
    """Solve a MathOpt model by SCIP on one thread, starting from `hint`.

    By way of `pywraplp`: MathOpt itself stops SCIP too, but not without printing errors.
    """
    from ortools.linear_solver import pywraplp

    left = deadline_s - time.perf_counter()
    if left <= 0:
        return Answer(None, 0.0)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    order = _load(solver, model, hint)
    parameters = {
        "misc/catchctrlc": "FALSE",  # Python's handler is the one that counts
        "limits/gap": 0,
        "numerics/feastol": tolerance,
        "randomization/randomseedshift": seed % 2**31,
    }
    text = "".join(f"{key} = {value}\n" for key, value in parameters.items())
    solver.SetSolverSpecificParametersAsString(text)
    left = deadline_s - time.perf_counter()
    if math.isfinite(left):
        solver.SetTimeLimit(max(1, int(1000 * left)))
    status, interrupted = waited(solver.Solve, solver.InterruptSolve)
    solved = status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    bound = solver.Objective().BestBound() if status != pywraplp.Solver.INFEASIBLE else 0.0
    found = [x.solution_value() for x in solver.variables()] if solved else []
    return Answer(
        values=(lambda x: float(found[order[x.id]])) if solved else None,
        bound=max(0.0, bound) if math.isfinite(bound) else 0.0,
        infeasible=status == pywraplp.Solver.INFEASIBLE,
        interrupted=interrupted,
    )


def _load(solver: Any, model: Any, hint: Mapping[Any, float]) -> dict[int, int]:
    """Give a linear MathOpt model to another solver; the position of each variable by its id."""
    from ortools.linear_solver import linear_solver_pb2

    given, made = model.export_model(), linear_solver_pb2.MPModelProto()
    columns, rows = given.variables, given.linear_constraints
    order = {x: at for at, x in enumerate(columns.ids)}
    price = dict(
        zip(
            given.objective.linear_coefficients.ids,
            given.objective.linear_coefficients.values,
            strict=True,
        )
    )
    for x, low, high, whole in zip(
        columns.ids, columns.lower_bounds, columns.upper_bounds, columns.integers, strict=True
    ):
        made.variable.add(
            lower_bound=low,
            upper_bound=high,
            is_integer=whole,
            objective_coefficient=price.get(x, 0.0),
        )
    row = {}
    for r, low, high in zip(rows.ids, rows.lower_bounds, rows.upper_bounds, strict=True):
        row[r] = made.constraint.add(lower_bound=low, upper_bound=high)
    matrix = given.linear_constraint_matrix
    for r, x, factor in zip(matrix.row_ids, matrix.column_ids, matrix.coefficients, strict=True):
        row[r].var_index.append(order[x])
        row[r].coefficient.append(factor)
    made.solution_hint.var_index.extend(order[x.id] for x in hint)
    made.solution_hint.var_value.extend(hint.values())
    solver.LoadModelFromProto(made)
    return order
