"""Mathematical programs: linear ones, with whole columns and without, by HiGHS; CP-SAT's models.

    min  cost x      rows:  low <= a x <= high,      columns:  low <= x <= high, some of them whole

A `LinearProgram` is built from blocks. `columns` and `rows` return arrays of numbers, in the shape
that was asked for and -1 where there is none; `enter` puts factors where rows and columns meet, by
NumPy's rules of broadcasting:

    program = LinearProgram()
    x = program.columns((tasks, machines), high=1.0, whole=True, name="x")
    once = program.rows(tasks, low=1.0, high=1.0)
    program.enter(once[:, None], x, 1.0)
    share = program.solve(deadline_s)["x"]

Blocks rather than HiGHS's own expressions: 100,000 rows of two columns take 6.2 s in expressions
and 0.02 s in arrays. After a solve more columns and rows may be added, and it goes on from there.

Solvers work in a thread of their own while the main thread waits: on Ctrl-C the solver is stopped
and its best answer so far is taken.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray

_TICK_S = 0.1

NO_BOUND = 1e30
"""HiGHS's numbers from here on stand for infinity."""

BYTES_PER_ENTRY = 300
"""What HiGHS needs of memory for each entry, column and row: measured are 75 MB for 273,000."""

Shape = int | tuple[int, ...]
Progress = Callable[[float, float], None]
"""Called with the value of the best solution so far, infinite without one, and the bound."""


class Size(NamedTuple):
    """How large a program is."""

    columns: int
    rows: int
    entries: int

    @property
    def memory_bytes(self) -> int:
        """About what HiGHS needs to solve it as a linear program; branching needs more."""
        return BYTES_PER_ENTRY * (self.columns + self.rows + self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What HiGHS claims.

    Attributes
    ----------
    blocks
        Numbers of the columns of every block, by its name.
    values
        Of the columns; ``None`` where there is no solution.
    multipliers
        Of the rows; ``None`` with whole columns, or where there are none.
    value, bound
        Of the objective: infinite without a solution, minus infinity where nothing was proved.
    infeasible
        Whether it claims that there is no solution at all.
    proved
        Whether it claims that no solution is better.
    interrupted
        Whether Ctrl-C ended it.
    """

    blocks: Mapping[str, IntArray] = field(default_factory=dict)
    values: FloatArray | None = None
    multipliers: FloatArray | None = None
    value: float = math.inf
    bound: float = -math.inf
    infeasible: bool = False
    proved: bool = False
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Relative distance of value and bound."""
        distance = self.value - self.bound
        return distance / max(abs(self.value), 1e-300) if math.isfinite(distance) else math.inf

    def __getitem__(self, name: str) -> FloatArray:
        """Values of a block in its shape, minus infinity where it has no column."""
        assert self.values is not None, "there is no solution to read"
        at = self.blocks[name]
        return np.where(at >= 0, self.values[at], -np.inf)


class LinearProgram:
    """A program under construction, in HiGHS, on one thread and without output.

    Parameters
    ----------
    seed
        Of HiGHS's choices; the same one gives the same answer where no limit ends the search.
    gap
        Relative distance of value and bound at which branching ends.
    tolerance
        By how much a whole column may differ from a whole number.
    stoppable
        Whether Ctrl-C reaches a solve; it costs a thread per solve.
    options
        Others of HiGHS's.

    Raises
    ------
    MissingDependencyError
        HiGHS is not installed.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        gap: float = 0.0,
        tolerance: float = 1e-6,
        stoppable: bool = True,
        **options: Any,
    ) -> None:
        require("highspy", "a linear program")
        self._package = importlib.import_module("highspy")
        self._highs: Any = self._package.Highs()
        self._highs.HandleUserInterrupt = self._stoppable = stoppable
        self._blocks, self._start = dict[str, IntArray](), list[tuple[IntArray, FloatArray]]()
        self._columns, self._rows = (
            _Table(low=float, high=float, cost=float),
            _Table(low=float, high=float),
        )
        self._entries = _Table(row=np.int64, column=np.int64, value=float)
        self._whole = np.zeros(0, np.int64)
        self.slowest_s = 0.0
        self.set(output_flag=False, threads=1, random_seed=seed % 2**31)
        self.set(mip_rel_gap=gap, mip_abs_gap=0.0, mip_feasibility_tolerance=tolerance, **options)

    def set(self, **options: Any) -> None:
        """Set options of HiGHS's."""
        for key, value in options.items():
            self._highs.setOptionValue(key, value)

    @property
    def size(self) -> Size:
        """Columns, rows and entries so far."""
        return Size(len(self._columns), len(self._rows), len(self._entries))

    def columns(
        self,
        shape: Shape = (),
        low: ArrayLike = 0.0,
        high: ArrayLike = math.inf,
        *,
        cost: ArrayLike = 0.0,
        whole: bool = False,
        where: ArrayLike = True,
        name: str = "",
    ) -> IntArray:
        """New columns, -1 where not `where`.

        `name`: where `Solution` has their values; to a block that is there they are appended.
        """
        new = _numbers(shape, where, len(self._columns))
        self._columns.add(new >= 0, low=low, high=high, cost=cost)
        if whole:
            self._whole = np.append(self._whole, new[new >= 0])
        if name:
            there = self._blocks.get(name)
            self._blocks[name] = new if there is None else np.concatenate([there, new])
        return new

    def rows(
        self,
        shape: Shape = (),
        low: ArrayLike = -math.inf,
        high: ArrayLike = math.inf,
        *,
        where: ArrayLike = True,
    ) -> IntArray:
        """New rows without entries, -1 where not `where`."""
        new = _numbers(shape, where, len(self._rows))
        self._rows.add(new >= 0, low=low, high=high)
        return new

    def enter(self, rows: IntArray, columns: IntArray | int, values: ArrayLike) -> None:
        """Add `values` to the factors where rows and columns meet; at -1 there is nothing to add.

        Of an entry, the row or the column must be new since the last solve.
        """
        row, column, value = np.broadcast_arrays(rows, columns, values)
        there = (row >= 0) & (column >= 0) & (value != 0)
        self._entries.add(there, row=row, column=column, value=value)

    def require_whole(self, columns: IntArray) -> None:
        """Have these columns whole from now on."""
        self._whole = np.append(self._whole, columns[columns >= 0])

    def limit(self, columns: IntArray, high: float) -> None:
        """Have no more than `high` of these columns from now on."""
        self.load()
        self._columns["high"][columns] = high
        low = self._columns["low"][columns]
        self._highs.changeColsBounds(
            len(columns), columns.astype(np.int32), low, np.full(len(columns), high)
        )

    def start(self, columns: IntArray, values: ArrayLike) -> None:
        """Begin the next solve at these values; HiGHS finds those of other columns."""
        column, value = np.broadcast_arrays(columns, np.asarray(values, dtype=np.float64))
        self._start.append((column[column >= 0], value[column >= 0]))

    def solve(
        self, deadline_s: float = math.inf, least_s: float = 0.0, progress: Progress | None = None
    ) -> Solution:
        """Solve until ``time.perf_counter()`` is `deadline_s`, but for `least_s` at least."""
        self.load()
        begun_s = time.perf_counter()
        left_s = max(least_s, deadline_s - begun_s)
        if left_s <= 0:
            return Solution(self._blocks)
        until_s = self._highs.getRunTime() + left_s  # HiGHS's clock counts earlier runs
        self.set(time_limit=min(until_s, self._package.kHighsInf))
        interrupted = self._run(progress)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - begun_s)
        return self._answer(interrupted)

    def proved(
        self, multipliers: FloatArray, most: FloatArray | None = None
    ) -> tuple[float, FloatArray]:
        """A bound on the objective that holds whatever the multipliers are, and reduced costs.

            sum over rows of y * (the side of the row that binds) + sum over columns of the least of
            (cost - y A) x with x between the column's bounds

        (Neumaier, Shcherbina, Math. Program. 99, 2004, doi:10.1007/s10107-003-0433-3).

        `most`: of each column, where the rows imply more than its own bound says.
        """
        y, low, high = multipliers, self._rows["low"], self._rows["high"]
        # A multiplier of the wrong sign for a one-sided row would bring in an infinite side.
        y = np.where((y > 0) & np.isinf(low) | (y < 0) & np.isinf(high), 0.0, y)
        side = np.where(y > 0, low, np.where(y < 0, high, 0.0))
        entries, count = self._entries, len(self._columns)
        priced = np.bincount(entries["column"], entries["value"] * y[entries["row"]], count)
        reduced = self._columns["cost"] - priced
        least, most = self._columns["low"], self._columns["high"] if most is None else most
        at = np.where(reduced < 0, most, np.where(reduced > 0, least, 0.0))
        return float(y @ side + reduced @ at), reduced

    def broken(self, values: FloatArray) -> FloatArray:
        """By how much these values of the columns break each row; 0 or less where they do not."""
        of = self._entries
        total = np.bincount(of["row"], of["value"] * values[of["column"]], len(self._rows))
        broken: FloatArray = np.maximum(self._rows["low"] - total, total - self._rows["high"])
        return broken

    def load(self) -> None:
        """Give HiGHS what it does not have yet: columns, then rows, each with its entries."""
        first_column, first_row = self._highs.getNumCol(), self._highs.getNumRow()
        row, column, value = self._entries.new()
        of_row = row >= first_row
        # An entry of an old row and an old column would be lost: HiGHS calls it another thing.
        assert (of_row | (column >= first_column)).all(), "a row and a column that are both old"
        low, high, cost = self._columns.new()
        if len(low):
            by = column[~of_row] - first_column, row[~of_row], value[~of_row]
            self._check(self._highs.addCols(len(low), cost, low, high, *_compressed(len(low), *by)))
        low, high = self._rows.new()
        if len(low):
            by = row[of_row] - first_row, column[of_row], value[of_row]
            self._check(self._highs.addRows(len(low), low, high, *_compressed(len(low), *by)))
        kind = int(self._package.HighsVarType.kInteger)
        if len(self._whole):
            whole = self._whole.astype(np.int32)
            kinds = np.full(len(whole), kind, np.uint8)
            self._highs.changeColsIntegrality(len(whole), whole, kinds)
            if self._highs.version().startswith("1.14."):
                # Its presolve calls plans optimal which are not, where columns that need not be
                # whole stand beside whole ones (issues 2957, 3043 of ERGO-Code/HiGHS).
                self.set(presolve="off")
        if self._start:
            at, value = (np.concatenate(part) for part in zip(*self._start, strict=True))
            self._highs.setSolution(len(at), at.astype(np.int32), value)
            self._start.clear()

    def _check(self, status: Any) -> None:
        """HiGHS leaves out all that it is given with a number that it does not take."""
        refused = status == self._package.HighsStatus.kError
        assert not refused, f"HiGHS takes factors up to 1e15 and costs up to 1e20: {self.size}"

    def _run(self, progress: Progress | None) -> bool:
        """Whether Ctrl-C ended it."""
        if not self._stoppable:
            self._highs.run()
            return False
        said = list[tuple[float, float]]()

        def listen(event: Any) -> None:
            out = event.data_out
            said.append((float(out.mip_primal_bound), float(out.mip_dual_bound)))

        def report() -> None:
            # In this thread, not in the solver's: the console is not for both of them.
            if said and progress is not None:
                progress(*said.pop())
                said.clear()

        channels = (self._highs.cbMipLogging, self._highs.cbMipImprovingSolution)
        for channel in channels if progress is not None else ():
            channel.subscribe(listen)
        try:
            return waited(self._highs.solve, self._highs.cancelSolve, report)[1]
        finally:
            for channel in channels if progress is not None else ():
                channel.unsubscribe(listen)

    def _answer(self, interrupted: bool) -> Solution:
        """HiGHS's, with infinities where it has nothing to say."""
        status, ended = self._highs.getModelStatus(), self._package.HighsModelStatus
        info, solution, whole = self._highs.getInfo(), self._highs.getSolution(), len(self._whole)
        value, optimal = float(info.objective_function_value), status == ended.kOptimal
        bound = float(info.mip_dual_bound) if whole else value if optimal else -math.inf
        infeasible = bool(status == ended.kInfeasible)
        return Solution(
            blocks=self._blocks,
            values=np.array(solution.col_value) if solution.value_valid else None,
            multipliers=np.array(solution.row_dual) if solution.dual_valid and not whole else None,
            value=value if solution.value_valid else math.inf,
            bound=math.inf if infeasible else bound if abs(bound) < NO_BOUND else -math.inf,
            infeasible=infeasible,
            proved=bool(optimal),
            interrupted=interrupted,
        )


class _Table:
    """Arrays of one length by name, which grow in blocks."""

    def __init__(self, **kinds: type) -> None:
        self._blocks: dict[str, list[Any]] = {name: [np.zeros(0, kinds[name])] for name in kinds}
        self._length = self._taken = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> Any:
        """The whole array."""
        blocks = self._blocks[name]
        if len(blocks) > 1:
            blocks[:] = [np.concatenate(blocks)]
        return blocks[0]

    def add(self, there: BoolArray, **values: ArrayLike) -> None:
        """Append the values that are there."""
        for name, value in values.items():
            self._blocks[name].append(np.broadcast_to(value, there.shape)[there])
        self._length += int(there.sum())

    def new(self) -> tuple[Any, ...]:
        """What was added since the last call."""
        since, self._taken = self._taken, self._length
        return tuple(self[name][since:] for name in self._blocks)


def _numbers(shape: Shape, where: ArrayLike, first: int) -> IntArray:
    """Numbers from `first` on, -1 where not `where`."""
    there = np.broadcast_to(np.asarray(where, dtype=np.bool_), shape)
    return np.where(there, first - 1 + np.cumsum(there).reshape(there.shape), -1)


def _compressed(count: int, major: IntArray, minor: IntArray, value: FloatArray) -> tuple[Any, ...]:
    """Entries, starts, minor numbers and values by major number, as HiGHS takes them."""
    pair = major.astype(np.int64) * (int(minor.max(initial=0)) + 1) + minor
    _, first, same = np.unique(pair, return_index=True, return_inverse=True)
    if len(first) < len(pair):  # factors that meet are added up, where the first one stands
        at = np.argsort(first)
        major, minor = major[first[at]], minor[first[at]]
        value = np.bincount(same.ravel(), value, len(first)).astype(np.float64)[at]
    order = np.argsort(major, kind="stable")
    begin = np.searchsorted(major[order], np.arange(count)).astype(np.int32)
    return len(order), begin, minor[order].astype(np.int32), value[order].astype(np.float64)


@dataclass(frozen=True, slots=True)
class CpSatAnswer:
    """What CP-SAT claims.

    Attributes
    ----------
    values
        The value of a variable; ``None`` where there is no solution.
    bound
        Of the objective, in its unit; zero where nothing was proved.
    infeasible
        Whether it claims that there is no solution at all.
    interrupted
        Whether Ctrl-C ended it.
    proved
        Whether it claims that no solution of its model is better.
    """

    values: Callable[[Any], float] | None
    bound: float
    infeasible: bool = False
    interrupted: bool = False
    proved: bool = False


def run_cp_sat(
    model: Any,
    *,
    seed: int,
    deadline_s: float,
    workers: int = 1,
    presolve: bool = True,
    work: float = math.inf,
    gap: float = 0.0,
) -> CpSatAnswer:
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
        return CpSatAnswer(None, 0.0)
    if math.isfinite(left):
        parameters.max_time_in_seconds = left
    if math.isfinite(work):
        parameters.max_deterministic_time = work
    status, interrupted = waited(lambda: solver.solve(model), solver.stop_search)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return CpSatAnswer(
        values=solver.value if solved else None,
        bound=max(0.0, solver.best_objective_bound) if solved else 0.0,
        infeasible=status == cp_model.INFEASIBLE,
        interrupted=interrupted,
        proved=status == cp_model.OPTIMAL,
    )


def installed(package: str) -> bool:
    """Whether HiGHS (``highspy``) or OR-tools (``ortools``) is there."""
    return importlib.util.find_spec(package) is not None


def missing(package: str) -> str:
    """What to say where it is not."""
    return f"{package} is not installed (pip install 'placewright[exact]')"


def require(package: str, purpose: str) -> None:
    """Raise `MissingDependencyError` where it is not installed."""
    if not installed(package):
        raise MissingDependencyError(package, extra="exact", purpose=purpose)


def waited(
    work: Callable[[], Any], stop: Callable[[], Any], tick: Callable[[], None] | None = None
) -> tuple[Any, bool]:
    """The result of `work`, and whether Ctrl-C came; `stop` is called then, `tick` meanwhile."""
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
            if tick is not None:
                tick()
    except KeyboardInterrupt:
        interrupted = True
        # The solver ends by itself soon after: its answer so far is wanted, so wait for it.
        stop()
        done.wait()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0], interrupted
