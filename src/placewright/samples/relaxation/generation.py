"""Column generation: a master with some of the moves, and multipliers that ask for more."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from placewright.planning.contract import Progress, silent
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.master import Master
from placewright.samples.relaxation.pricing import bound_and_columns, price
from placewright.samples.relaxation.program import Moves, Program

TOLERANCE = 2e-4
"""Relative distance of the master's value from the bound at which the generation stops."""

PER_NODE = 5
"""Columns that join per round, out of and into each node."""

MISSED = 1e-6
"""Samples in the wrong place that are the solver's rounding."""

SUMMED = 1e-9
"""Taken off the bound: the judge sums in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """A master with as many columns as it took, or as there was time for.

    Attributes
    ----------
    bound
        Of the program's value, in its unit of time; true at every moment.
    finished
        Whether value and bound have met.
    """

    master: Master
    bound: float
    finished: bool

    @property
    def misses(self) -> bool:
        """Whether samples stay in the wrong place, where no further column can help."""
        return self.finished and self.master.missing > MISSED


def generate_columns(
    program: Program,
    moves: Moves,
    deadline_s: float,
    progress: Progress = silent,
    *,
    slack: float | None = None,
    most_missing: float = math.inf,
) -> Generated:
    """Begin with `moves`, add those that pay, end when no more than `TOLERANCE` is to be gained.

    Parameters
    ----------
    slack, most_missing
        See `placewright.samples.relaxation.master.Master`.
    """
    start = time.perf_counter()
    master = Master(program, slack=slack, most_missing=most_missing)
    master.add(moves)
    bound, finished, present = 0.0, False, _Present(program.problem, moves)
    while master.solve(deadline_s):
        pricing = price(program, master.prices())
        proved, found, _ = bound_and_columns(pricing, PER_NODE)
        bound = max(bound, proved * (1.0 - SUMMED))
        progress(
            what=f"{len(master.moves)} moves",
            value=math.inf,
            bound=bound,
            elapsed_s=time.perf_counter() - start,
        )
        fresh = present.add(found)
        finished = master.value_s <= bound * (1.0 + TOLERANCE) or len(fresh) == 0
        if finished or time.perf_counter() > deadline_s:
            break
        master.add(fresh)
    return Generated(master, bound, finished)


class _Present:
    """Which columns the master has; reduced costs near zero may ask for one again."""

    def __init__(self, problem: SampleProblem, moves: Moves) -> None:
        self._here = np.zeros((problem.n, problem.n, problem.k), dtype=np.bool_)
        self.add(moves)

    def add(self, moves: Moves) -> Moves:
        """Those of `moves` that are new."""
        at = (moves.source, moves.target, moves.sample_class)
        new = ~self._here[at]
        self._here[at] = True
        return Moves(*(entries[new] for entries in at))
