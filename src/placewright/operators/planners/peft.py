"""PEFT: predict earliest finish time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.ranks import optimistic_costs
from placewright.operators.planners.lists.scheduling import priority_sequence
from placewright.operators.planners.lists.setup import set_up, within_memory
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class Peft:
    """Ready operators by mean optimistic cost, each where finish plus optimistic cost is least.

    Arabnejad, Barbosa, IEEE TPDS 25(3), 2014, doi 10.1109/TPDS.2013.57. O(e m^2) and the gap
    search. The optimistic cost table says how long the way from an operator to the end takes
    at best, if it runs on a device.

    Departures: those of HEFT here; the table takes the transfer between the very devices where
    the paper takes the mean over links (equal where links are alike; on links of unlike speed
    the mean is up to 5 % worse on the dag instances, and blind to missing links).
    """

    @property
    def name(self) -> str:
        """``peft``."""
        return "peft"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links."""
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            An operator that no linked device can run.
        """
        setup = set_up(problem)
        allowed = setup.groups.allowed[setup.groups.group]
        work = np.where(allowed, problem.compute_s, np.inf)
        table = optimistic_costs(setup.costs, work)
        rank = np.where(allowed & np.isfinite(table), table, 0.0).sum(axis=1) / allowed.sum(axis=1)
        sequence = priority_sequence(setup.costs, -rank)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            return setup.schedule(sequence, budget_bytes, ahead_s=table)

        return within_memory(problem, build, context.deadline_s)
