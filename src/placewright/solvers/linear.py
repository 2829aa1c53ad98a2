"""Linear programs with whole columns, built up column by column and row by row.

    min  cost x      rows:  low <= a x <= high,      columns:  low <= x <= high, some of them whole

`placewright.solvers.scip` and `placewright.solvers.highs` solve them: a back end reads the lists,
in which a column is its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from placewright.solvers.answer import Answer

INF = float("inf")

Term = tuple[float, int | None]
"""A factor and a column; a column that is ``None`` is zero and left out."""


@dataclass(slots=True)
class Columns:
    """Bounds and cost of every column, and whether it is whole."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)


@dataclass(slots=True)
class Rows:
    """Sides of every row, and its factors by column, ascending."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    terms: list[list[tuple[int, float]]] = field(default_factory=list)


@dataclass(slots=True)
class LinearProgram:
    """A program under construction.

    `start`: values of some columns from which a solver begins.
    """

    columns: Columns = field(default_factory=Columns)
    rows: Rows = field(default_factory=Rows)
    start: dict[int, float] = field(default_factory=dict)

    def column(
        self, low: float = 0.0, high: float = 1.0, *, cost: float = 0.0, whole: bool = False
    ) -> int:
        """A new column."""
        c = self.columns
        c.low.append(low)
        c.high.append(high)
        c.cost.append(cost)
        c.whole.append(whole)
        return len(c.low) - 1

    def binary(self) -> int:
        """A new column that is 0 or 1."""
        return self.column(whole=True)

    def row(self, *terms: Term, low: float = -INF, high: float = INF) -> None:
        """A new row; factors of one column are added up."""
        joined: dict[int, float] = {}
        for factor, column in terms:
            if column is not None:
                joined[column] = joined.get(column, 0.0) + factor
        self.rows.low.append(low)
        self.rows.high.append(high)
        self.rows.terms.append(sorted((c, factor) for c, factor in joined.items() if factor))


class BackEnd(Protocol):
    """A solver of linear programs; one may stand for another."""

    def __call__(
        self, program: LinearProgram, *, seed: int, deadline_s: float, tolerance: float
    ) -> Answer:
        """Solve on one thread, beginning at the program's start.

        `tolerance` is by how much a row may be broken, in its unit.
        """
        ...
