"""HiGHS, for linear programs with whole columns and without."""

from __future__ import annotations

import math
import time
from importlib import import_module
from typing import Any

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.solvers.answer import Answer, waited
from placewright.solvers.linear import LinearProgram


def highs() -> Any:
    """The package, or an error that says how to get it."""
    try:
        return import_module("highspy")
    except ImportError:
        raise MissingDependencyError("highspy", extra="exact", purpose="a linear program") from None


class HighsSolver:
    """HiGHS on one thread, without output; rows and columns may be added between runs.

    Ctrl-C ends a run with what was found, and `interrupted` says so: it is up to the caller to pass
    it on.

    `stoppable`: whether Ctrl-C reaches it; it costs a thread per run.
    `options`: HiGHS's own.
    """

    def __init__(self, *, stoppable: bool = True, **options: Any) -> None:
        self.package = highs()
        self.highs: Any = self.package.Highs()
        self.interrupted, self._stoppable = False, stoppable
        for key, value in ({"output_flag": False, "threads": 1} | options).items():
            self.highs.setOptionValue(key, value)
        self.highs.HandleUserInterrupt = stoppable

    def run(self, limit_s: float) -> Any:
        """Solve within so many seconds; HiGHS's status of the model."""
        until_s = self.highs.getRunTime() + limit_s  # its clock counts earlier runs
        self.highs.setOptionValue("time_limit", min(until_s, self.package.kHighsInf))
        if self._stoppable:
            _, self.interrupted = waited(self.highs.solve, self.highs.cancelSolve)
        else:
            self.highs.run()
        return self.highs.getModelStatus()

    def load(self, program: LinearProgram) -> None:
        """Take in a whole program."""
        package, columns, rows = self.package, program.columns, program.rows
        lp = package.HighsLp()
        lp.num_col_, lp.num_row_ = len(columns.low), len(rows.low)
        lp.col_cost_ = np.array(columns.cost)
        lp.col_lower_, lp.col_upper_ = np.array(columns.low), np.array(columns.high)
        lp.row_lower_, lp.row_upper_ = np.array(rows.low), np.array(rows.high)
        kinds = package.HighsVarType.kContinuous, package.HighsVarType.kInteger
        lp.integrality_ = [kinds[whole] for whole in columns.whole]
        lp.a_matrix_.format_ = package.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *map(len, rows.terms)]).astype(np.int32)
        terms = [term for row in rows.terms for term in row]
        lp.a_matrix_.index_ = np.array([column for column, _ in terms], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([factor for _, factor in terms], dtype=np.float64)
        self.highs.passModel(lp)
        if program.start:
            index = np.array(list(program.start), dtype=np.int32)
            values = np.array(list(program.start.values()))
            self.highs.setSolution(len(index), index, values)


def run_highs(program: LinearProgram, *, seed: int, deadline_s: float, tolerance: float) -> Answer:
    """Solve a program on one thread, beginning at its start; as `placewright.solvers.scip`."""
    left_s = deadline_s - time.perf_counter()
    if left_s <= 0:
        return Answer(None, 0.0)
    solver = HighsSolver(
        random_seed=seed % 2**31,
        mip_rel_gap=0.0,
        mip_abs_gap=0.0,
        primal_feasibility_tolerance=tolerance,
        mip_feasibility_tolerance=tolerance,
    )
    solver.load(program)
    status, ended = solver.run(left_s), solver.package.HighsModelStatus
    info, solution = solver.highs.getInfo(), solver.highs.getSolution()
    values = np.array(solution.col_value) if solution.value_valid else None
    # A linear program has no dual bound: HiGHS says 0.
    bound = info.mip_dual_bound if any(program.columns.whole) else info.objective_function_value
    known = math.isfinite(bound) and status != ended.kInfeasible
    return Answer(
        values=None if values is None else lambda column: float(values[column]),
        bound=max(0.0, bound) if known else 0.0,
        infeasible=status == ended.kInfeasible,
        interrupted=solver.interrupted,
        proved=status == ended.kOptimal,
    )
