"""CP-SAT and SCIP, both as they are inside OR-tools, run so that they can be stopped.

A solver works in a thread of its own while the main thread waits, so that Ctrl-C reaches it: the
solver is told to stop and its best answer so far is taken.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MISSING = "ortools is not installed (pip install 'placewright[exact]')"
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver claims.

    Attributes
    ----------
    values
        The value of a variable; ``None`` where there is no solution.
    bound
        Of the objective, in its unit; zero where nothing was proved.
    infeasible
        Whether it claims that there is no solution at all.
    interrupted
        Whether somebody pressed Ctrl-C.
    """

    values: Callable[[Any], float] | None
    bound: float
    infeasible: bool = False
    interrupted: bool = False


def installed() -> bool:
    """Whether OR-tools is there."""
    return importlib.util.find_spec("ortools") is not None


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
    status, interrupted = _waited(lambda: solver.solve(model), solver.stop_search)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        values=solver.value if solved else None,
        bound=max(0.0, solver.best_objective_bound) if solved else 0.0,
        infeasible=status == cp_model.INFEASIBLE,
        interrupted=interrupted,
    )


def _waited(work: Callable[[], Any], stop: Callable[[], Any]) -> tuple[Any, bool]:
    """What `work` returns, and whether Ctrl-C came: then `stop` was called."""
    done, found = threading.Event(), list[Any]()

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:  # handed on to the waiting thread
            found.append(error)
        finally:
            done.set()

    threading.Thread(target=body, daemon=True).start()
    interrupted = False
    try:
        while not done.wait(_TICK_S):
            pass
    except KeyboardInterrupt:
        interrupted = True
        stop()
        done.wait()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0], interrupted


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
    status, interrupted = _waited(solver.Solve, solver.InterruptSolve)
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
