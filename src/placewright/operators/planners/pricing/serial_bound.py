"""What no plan beats where one thing runs at a time: a PBQP in which readers share a transfer."""

from __future__ import annotations

import math

from placewright.operators.planners.pricing.graph import placement_pbqp
from placewright.operators.planners.pricing.priced import PricingContext
from placewright.solvers.pbqp import solve_pbqp

ROUNDING = 1e-9
"""Of the bound: what sums in another order can differ by."""


def serial_bound(d: PricingContext, deadline_s: float) -> float:
    """Seconds; 0 where nothing was proved in time or within the branches."""
    costs = d.costs(d.problem.compute_s)
    pbqp = placement_pbqp(d.problem, d.graph, costs, fanout=0.0)
    proved = solve_pbqp(pbqp, branch_limit=d.branch_limit, deadline_s=deadline_s).lower_bound
    return max(0.0, proved * (1 - ROUNDING)) if math.isfinite(proved) else 0.0
