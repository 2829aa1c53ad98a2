"""Moves of whole samples, by HiGHS or by CP-SAT."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Proposal
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.cp_sat import solve_whole
from placewright.samples.relaxation.generation import MISSED
from placewright.samples.relaxation.master import ALLOWED, WHOLE_SLACK, Master
from placewright.samples.relaxation.program import Moves, in_units, program_of

Engine = Literal["highs", "cp-sat"]

GAP = 1e-4
"""Relative distance from its bound at which a solver stops."""


def whole_plan(
    problem: SampleProblem,
    moves: Moves,
    deadline_s: float,
    *,
    start: FloatArray | None = None,
    every: bool = False,
    engine: Engine = "highs",
    seed: int = 0,
) -> Proposal[SamplePlan]:
    """The best plan of whole samples that uses only `moves`, as good as time and Ctrl-C allow.

    `start`: shape (moves,): a plan to start from.
    `every`: whether `moves` are all moves there are, so that the solver's bound holds for every
    plan. With a label mix none is claimed: solvers keep the mix by a hair more than the judge.
    Raises `InfeasibleError`: nothing was found.
    Raises `MissingDependencyError`: the engine is not installed.
    """
    scaled, units = in_units(problem)
    program = program_of(scaled)
    # First with a hair less than the judge allows a label mix; a plan may need all of it.
    for slack in (WHOLE_SLACK, ALLOWED) if program.mixed else (WHOLE_SLACK,):
        most_missing = MISSED if program.mixed else math.inf
        master = Master(program, whole=True, slack=slack, most_missing=most_missing)
        master.add(moves)
        if engine == "highs":
            found = _by_highs(master, start, deadline_s)
        else:
            found = solve_whole(master, start, deadline_s, GAP, seed)
        if found is not None:
            count, proved = found
            return _proposal(master, count, proved / units if every and not program.mixed else 0.0)
        if master.interrupted:
            raise KeyboardInterrupt
    raise InfeasibleError("no plan of whole samples was found", where=problem.name)


def _proposal(master: Master, count: IntArray, proved_s: float) -> Proposal[SamplePlan]:
    kept, moves = np.flatnonzero(count), master.moves
    plan = SamplePlan(moves.source[kept], moves.target[kept], count[kept], moves.sample_class[kept])
    return Proposal(plan, proved_s, interrupted=master.interrupted)


def _by_highs(
    master: Master, start: FloatArray | None, deadline_s: float
) -> tuple[IntArray, float] | None:
    master.solver.setOptionValue("mip_rel_gap", GAP)
    if start is not None:
        master.start_from(start)
    master.solve(deadline_s)
    # Samples in the wrong place: no plan, whatever it costs.
    if not master.has_answer or master.missing > MISSED:
        return None
    return np.rint(master.flow()).astype(np.int64), master.proved_s
