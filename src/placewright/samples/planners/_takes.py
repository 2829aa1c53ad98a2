"""Why a planner cannot take a problem."""

from __future__ import annotations

import numpy as np

from placewright.samples.problem import SampleProblem


def without_mix(problem: SampleProblem) -> str | None:
    """Planners that know samples and no classes."""
    return "a label mix needs lp or ilp" if np.isfinite(problem.label_mix) else None
