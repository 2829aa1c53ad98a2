"""Whether any plan at all keeps storage, protection and label mix, as the judge sees them.

The same program of a problem in which nothing takes time and nothing has a price: what is left of
its value is samples in the wrong place, and Lagrange's bound above 0 proves that no plan does
without them, however long it takes.
"""

from __future__ import annotations

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.generation import MISSED, SUMMED, generate_columns
from placewright.samples.relaxation.master import ALLOWED
from placewright.samples.relaxation.program import Moves, Program, program_of


def check_possible(program: Program, moves: Moves, deadline_s: float) -> Moves:
    """`moves` and those that it takes to have every sample in its place.

    Raises
    ------
    InfeasibleError
        Proved: no plan has.
    """
    problem = program.problem
    found = generate_columns(program_of(_timeless(problem)), moves, deadline_s, slack=ALLOWED)
    if found.bound > MISSED + SUMMED * float(problem.held.sum()):
        raise InfeasibleError(
            "no plan keeps storage, protection and label mix",
            where=problem.name,
            by=f"at least {found.bound:.3g} samples are in the wrong place",
            hint="widen label_mix, raise a storage, or protect less",
        )
    return found.master.moves


def _timeless(problem: SampleProblem) -> SampleProblem:
    none = np.zeros(problem.n)
    return problem.replace(
        seconds_per_sample=none,
        fixed_s=none,
        send_s=_free(problem.send_s),
        receive_s=_free(problem.receive_s),
        price_s=np.zeros_like(problem.price_s),
        sync_s=0.0,
    )


def _free(port_s: FloatArray) -> FloatArray:
    """No time over links that are there."""
    free: FloatArray = np.where(np.isfinite(port_s), 0.0, np.inf)
    return free
