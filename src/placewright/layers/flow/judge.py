"""Judge of layer ranges: the maximum flow of tokens through the machines.

Each machine is an arc with the tokens/s of the layers that it holds; ``source -> i`` is open where
i begins with layer 0, ``i -> sink`` where it ends with the last one, ``i -> j`` where j begins
where i ends (with partial inference: where it holds the next layer), each with the tokens/s of its
link. Ends grow along every path, so that there are no circles and a path runs every layer once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.layers.flow.kernels import max_flow, workspace
from placewright.layers.flow.problem import FlowProblem, LayerRanges, check_plan
from placewright.numerics.arrays import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class FlowJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Tokens/s.
    carried
        Shape (n,): tokens/s through each machine.
    violation, violation_size
        What keeps every token from passing, and the number of layers that no machine holds, or 1
        where links are missing.
    """

    problem: FlowProblem
    plan: LayerRanges
    value: float
    carried: FloatArray
    violation: str
    violation_size: float

    @property
    def feasible(self) -> bool:
        """Whether any token passes all layers."""
        return not self.violation

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        used = self.carried > 0
        held = np.subtract(self.plan.end, self.plan.start)
        work = float(self.carried @ held)
        return {
            "machines": (float(used.sum()), ""),
            "layers held per layer": (float(held[used].sum()) / self.problem.layers, ""),
            "tokens x layers": (work, ""),
        }

    def trace(self) -> None:
        """Flows have no timeline."""
        return


def judge(problem: FlowProblem, plan: LayerRanges) -> FlowJudgement:
    """Tokens/s of a plan.

    Raises `InputError`: it is no plan of the problem.
    """
    check_plan(problem, plan)
    work, left = workspace(problem.n, problem.layers)
    value = max_flow(
        np.array(plan.start),
        np.array(plan.end),
        problem.rates,
        problem.links,
        problem.layers,
        problem.partial_inference,
        work,
        left,
    )
    carried = left[0, 1 : 2 * problem.n : 2].copy()
    violation, missing = "", 0.0
    if value <= 0:
        held = np.zeros(problem.layers, dtype=bool)
        for s, e in zip(plan.start, plan.end, strict=True):
            held[s:e] = True
        missing = float((~held).sum())
        what = f"no machine holds layer {int(held.argmin())}" if missing else "no links join them"
        missing = missing or 1.0  # a link is
        violation = f"no token passes all {problem.layers} layers: {what}"
    return FlowJudgement(problem, plan, float(value), carried, violation, missing)
