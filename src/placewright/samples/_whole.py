"""Moves of whole samples by HiGHS."""

from __future__ import annotations

import numpy as np

from placewright.arrays import FloatArray
from placewright.errors import InfeasibleError
from placewright.samples._master import Master
from placewright.samples._program import Moves, program_of
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem

GAP = 1e-4
"""Relative distance from its bound at which HiGHS stops."""


def whole_plan(
    problem: SampleProblem,
    moves: Moves,
    deadline_s: float,
    *,
    start: FloatArray | None = None,
    every: bool = False,
) -> SamplePlan:
    """The best plan of whole samples that uses only `moves`, as good as time allows.

    Parameters
    ----------
    start
        Shape (moves,): a plan to start from.
    every
        Whether `moves` are all moves there are, so that HiGHS's bound holds for every plan.

    Raises
    ------
    InfeasibleError
        Nothing was found.
    """
    master = Master(program_of(problem), whole=True)
    master.add(moves)
    master.solver.setOptionValue("mip_rel_gap", GAP)
    if start is not None:
        master.start_from(start)
    master.solve(deadline_s)
    if not master.has_answer or master.missing > 1e-6:
        raise InfeasibleError("no plan of whole samples was found", where=problem.name)
    count = np.rint(master.flow()).astype(np.int64)
    kept = np.flatnonzero(count)
    return SamplePlan(
        moves.source[kept],
        moves.target[kept],
        count[kept],
        moves.sample_class[kept],
        master.proved_s if every else 0.0,
    )
