"""Moves of whole samples, by HiGHS."""

from __future__ import annotations

import math

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Proposal
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.generation import MISSED
from placewright.samples.relaxation.master import ALLOWED, WHOLE_SLACK, Master
from placewright.samples.relaxation.program import Moves, in_units, program_of

GAP = 1e-4
"""Relative distance from its bound at which HiGHS stops."""


def whole_plan(
    problem: SampleProblem,
    moves: Moves,
    deadline_s: float,
    *,
    start: FloatArray | None = None,
    every: bool = False,
) -> Proposal[SamplePlan]:
    """The best plan of whole samples that uses only `moves`, as good as time and Ctrl-C allow.

    `start`: shape (moves,): a plan to start from.
    `every`: whether `moves` are all moves there are, so that the solver's bound holds for every
    plan. With a label mix none is claimed: solvers keep the mix by a hair more than the judge.
    Raises `InfeasibleError`: nothing was found.
    Raises `MissingDependencyError`: HiGHS is not installed.
    """
    scaled, units = in_units(problem)
    program = program_of(scaled)
    # First with a hair less than the judge allows a label mix; a plan may need all of it.
    for slack in (WHOLE_SLACK, ALLOWED) if program.mixed else (WHOLE_SLACK,):
        most_missing = MISSED if program.mixed else math.inf
        master = Master(program, whole=True, gap=GAP, slack=slack, most_missing=most_missing)
        master.add(moves)
        if start is not None:
            master.start_from(start)
        master.solve(deadline_s)
        # Samples in the wrong place: no plan, whatever it costs.
        if master.answer.values is not None and master.missing <= MISSED:
            proved = every and not program.mixed
            return _proposal(master, master.proved_s / units if proved else 0.0)
        if master.answer.interrupted:
            raise KeyboardInterrupt
    raise InfeasibleError("no plan of whole samples was found", where=problem.name)


def _proposal(master: Master, proved_s: float) -> Proposal[SamplePlan]:
    count = np.rint(master.flow()).astype(np.int64)
    kept, moves = np.flatnonzero(count), master.moves
    plan = SamplePlan(moves.source[kept], moves.target[kept], count[kept], moves.sample_class[kept])
    return Proposal(plan, proved_s, interrupted=master.answer.interrupted)
