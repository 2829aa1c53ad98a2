"""The rule of accelerate's ``device_map="auto"``, as a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from placewright.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.setup import within_memory
from placewright.operators.planners.m_topo import filled_in_order
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.structure.groups import groups_of
from placewright.planning import Context


@final
@dataclass(frozen=True, slots=True)
class AccelerateAuto:
    """Devices filled in their order by what lives on them; never a look at time. O(n m).

    What ``infer_auto_device_map`` of Hugging Face accelerate does with modules
    (https://huggingface.co/docs/accelerate/concept_guides/big_model_inference): the next one goes
    to the current device if it fits, else to the next device, and there is no way back.

    Departures: it works on operators in topological order; with unlimited memory all of it is on
    the first device; where activations do not fit beside the weights the budgets shrink.
    """

    @property
    def name(self) -> str:
        """``accelerate-auto``."""
        return "accelerate-auto"

    def supports(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links."""
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            A group that no device can run.
        """
        groups = groups_of(problem)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            device = filled_in_order(problem, groups, groups.resident_bytes, budget_bytes)
            return OperatorPlan(device[groups.group])

        return within_memory(problem, build, context.deadline_s)
