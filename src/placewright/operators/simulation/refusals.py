"""Why the judge cannot play a plan, in words."""

from __future__ import annotations

from placewright.errors import InfeasibleError, InputError
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.full.state import SimulatorState
from placewright.operators.simulation.modes import NO_KERNEL, NO_LINK


def refusal(
    p: OperatorProblem, board: SimulatorState, code: int, plan: OperatorPlan
) -> InputError | InfeasibleError:
    """An error in words.

    Parameters
    ----------
    board
        As the play left it.
    code
        What the play said (`placewright.operators.simulation.modes`).
    """
    w, _, o = board
    culprit, where = int(w[o.culprit]), f"plan for {p.name}"
    if code == NO_LINK:
        tensor, target = int(w[o.move_tensor + culprit]), int(w[o.move_target + culprit])
        source = int(plan.placement[p.tensor_producer[tensor]])
        return InfeasibleError(
            f"no link from {p.device_names[source]!r} to {p.device_names[target]!r} "
            f"for tensor {p.tensor_names[tensor]!r}",
            where=where,
            hint="add a link to the cluster or keep both operators on one device",
        )
    if code == NO_KERNEL:
        device = p.device_names[int(plan.placement[culprit])]
        return InfeasibleError(
            f"{p.operator_names[culprit]!r} cannot run on {device!r}", where=where
        )
    return InputError(
        f"the order contradicts the graph: {p.operator_names[culprit]!r} waits forever",
        where=where,
        hint="list producers before their consumers",
    )
