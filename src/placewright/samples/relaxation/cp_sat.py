"""A `Master` in whole numbers, solved by CP-SAT: its rows times a power of two, rounded apart.

CP-SAT knows integers only. Rows of whole numbers (stock, storage, steps) stay as they are; the
others are scaled by ``2**k`` and every entry is rounded to the side on which the row admits more,
times to the next tick. What is optimal in whole numbers is therefore a lower bound on every plan,
and off by less than a tick per sample that moves. The scale is such that no row can add up to more
than `MOST`, whatever the variables are: 64-bit numbers cannot overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.samples.relaxation.master import Master
from placewright.solvers.answer import installed
from placewright.solvers.cp_sat import run_cp_sat

MOST = 2.0**52
FINEST = 2.0**36
"""Ticks that the largest time may have: finer ones slow the search down and prove no more."""

WORKERS = 1
"""More of them search the ticks one by one; one branches on the moves, and ends."""

MOST_WORK = 600.0
"""CP-SAT's deterministic seconds where there is no deadline: without a start it may not end."""

SUMMED = 1e-9
"""Taken off what is proved: the judge sums in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeRows:
    """``low <= matrix @ x <= high`` and ``cost @ x`` in 64-bit numbers, a row's entries together.

    `top`: largest value of each column.
    `scale`: ticks of a second.
    """

    start: IntArray
    column: IntArray
    entry: IntArray
    low: FloatArray
    high: FloatArray
    cost: IntArray
    top: IntArray
    scale: float


def solve_whole(
    master: Master, flow: FloatArray | None, deadline_s: float, gap: float, seed: int
) -> tuple[IntArray, float] | None:
    """Samples per move and what was proved, seconds; ``None`` where nothing was found in time.

    `flow`: shape (moves,): a plan to start from.
    Raises `MissingDependencyError`: OR-tools is not installed.
    """
    if not installed():
        raise MissingDependencyError("ortools", extra="exact", purpose="whole samples by CP-SAT")
    rows = whole_rows(master)
    model, x = _model(rows)
    if flow is not None:
        for variable, count in zip(x[master.first_move :], flow.tolist(), strict=True):
            model.add_hint(variable, round(count))
    work = math.inf if math.isfinite(deadline_s) else MOST_WORK
    answer = run_cp_sat(
        model, seed=seed, deadline_s=deadline_s, workers=WORKERS, work=work, gap=gap
    )
    master.runner.interrupted = answer.interrupted
    if answer.values is None:
        return None
    count = np.array([round(answer.values(v)) for v in x[master.first_move :]], dtype=np.int64)
    ticks = answer.bound - master.program.times  # each time was rounded up
    proved_s = ticks / rows.scale * (1.0 - SUMMED) + master.program.constant_s
    return count, max(proved_s, 0.0)


def whole_rows(master: Master) -> WholeRows:
    """The master's rows in whole numbers, without the column for samples in the wrong place."""
    lp = master.solver.getLp()
    row, column, entry = _by_row(master, lp)
    low, high = np.array(lp.row_lower_), np.array(lp.row_upper_)
    times = master.program.times
    top = _tops(master)
    kept = column != master.first_move - 1
    row, column, entry = row[kept], column[kept], entry[kept]
    timed = column < times
    # The most that each row can add up to without its time, which sets the scale.
    reach = np.bincount(row, np.where(timed, 0.0, np.abs(entry) * top[column]), len(low))
    reach += np.maximum(_finite(low), _finite(high))
    whole = _all_whole(row, entry, low, high, np.unique(row[timed]))
    latest_s = float(reach[row[timed]].max(initial=1e-9))
    cost = np.array(lp.col_cost_)
    cost[master.first_move - 1] = 0.0
    worst = max(2.0 * reach[~whole].max(initial=0.0), times * latest_s + float(cost @ top))
    scale = 2.0 ** math.floor(math.log2(min(MOST / worst, FINEST / latest_s)))
    top[:times] = math.ceil(scale * latest_s) + 1
    factor = np.where(whole, 1.0, scale)[row]
    factor[timed] = 1.0  # times are in ticks
    # Rows have one side each: more is admitted above a lower limit, less below an upper one.
    side = np.isfinite(low)[row]
    scaled = entry * factor
    entry = np.where(side, np.ceil(scaled), np.floor(scaled)).astype(np.int64)
    by_row = np.where(whole, 1.0, scale)
    cost = np.floor(cost * scale)
    cost[:times] = 1.0
    return WholeRows(
        np.searchsorted(row, np.arange(len(low) + 1)),
        column,
        entry,
        np.floor(low * by_row),
        np.ceil(high * by_row),
        cost.astype(np.int64),
        top.astype(np.int64),
        scale,
    )


def _by_row(master: Master, lp: Any) -> tuple[IntArray, IntArray, FloatArray]:
    """Row, column and value of HiGHS's entries, row by row."""
    held = lp.a_matrix_
    inner, value = np.array(held.index_, dtype=np.int64), np.array(held.value_)
    start = np.array(held.start_, dtype=np.int64)
    size = start[1:] - start[:-1]
    outer = np.repeat(np.arange(len(size)), size)
    by_column = held.format_ == master.package.MatrixFormat.kColwise
    row, column = (inner, outer) if by_column else (outer, inner)
    order = np.lexsort((column, row))
    return row[order], column[order], value[order]


def _tops(master: Master) -> FloatArray:
    """The most that each column can be worth; times come later."""
    program, moves = master.program, master.moves
    p = program.problem
    stock = np.broadcast_to(p.samples.sum(axis=0), p.samples.shape) if p.relay else program.stock
    before = np.zeros(master.first_move)
    before[program.times : -1] = float(p.held.sum())
    return np.concatenate([before, stock[moves.source, moves.sample_class].astype(np.float64)])


def _all_whole(
    row: IntArray, entry: FloatArray, low: FloatArray, high: FloatArray, timed: IntArray
) -> BoolArray:
    """Rows of whole numbers in which no time stands."""
    broken = np.bincount(row, entry != np.rint(entry), len(low)) > 0
    for limit in (low, high):
        broken |= np.isfinite(limit) & (limit != np.rint(limit))
    broken[timed] = True
    whole: BoolArray = ~broken
    return whole


def _finite(limit: FloatArray) -> FloatArray:
    return np.where(np.isfinite(limit), np.abs(limit), 0.0)


def _model(rows: WholeRows) -> tuple[Any, list[Any]]:
    """The CP-SAT model and its variables, one per column."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = [model.new_int_var(0, top, "") for top in rows.top.tolist()]
    for r, (begin, end) in enumerate(zip(rows.start[:-1], rows.start[1:], strict=True)):
        terms = [x[c] for c in rows.column[begin:end].tolist()]
        total = cp_model.LinearExpr.weighted_sum(terms, rows.entry[begin:end].tolist())
        if np.isfinite(rows.low[r]):
            model.add(total >= int(rows.low[r]))
        if np.isfinite(rows.high[r]):
            model.add(total <= int(rows.high[r]))
    model.minimize(cp_model.LinearExpr.weighted_sum(x, rows.cost.tolist()))
    return model, x
