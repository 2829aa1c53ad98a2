"""What no plan of wing 1 can beat."""

from __future__ import annotations

from placewright.operators._ceft import ceft
from placewright.operators.problem import OperatorProblem


def bounds(problem: OperatorProblem) -> dict[str, float]:
    """Lower bounds by name, seconds."""
    return {"ceft": ceft(problem).critical_s}
