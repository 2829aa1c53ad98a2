"""Explanation of where an operator or a module runs: its time there, the cost of moving it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from placewright.errors import UnknownNameError
from placewright.io.arguments import checked
from placewright.operators.critical_path import Limit, critical_spans, limits
from placewright.operators.explain_module import (
    Alternative,
    ModuleExplanation,
    explain_module,
    module_names,
    moved,
)
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.report.text import bare_numbers, seconds


@checked
@dataclass(frozen=True, slots=True)
class Explanation:
    """Placement of one operator of a plan, and its alternatives.

    Attributes
    ----------
    critical
        Whether it is on a chain of operators and transfers without a gap that ends last.
    group
        How many operators move with it, itself included.
    sent
        Tensors of it that cross devices: name -> receiving devices.
    alternatives
        Best first.
    binding
        What keeps the operator on its device.
    limits
        What limits the whole plan: devices and links on the critical path, full memories.
    dimensionless
        Whether the problem's costs have no unit.
    """

    operator: str
    device: str
    compute_s: float
    start_s: float
    end_s: float
    critical: bool
    group: int
    value_s: float
    received: Mapping[str, str]
    sent: Mapping[str, tuple[str, ...]]
    alternatives: tuple[Alternative, ...]
    binding: str = ""
    limits: tuple[Limit, ...] = ()
    dimensionless: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        from placewright.operators.text import explanation_text

        with bare_numbers(self.dimensionless):
            return explanation_text(self)


def explain(
    problem: OperatorProblem, plan: OperatorPlan, name: str
) -> Explanation | ModuleExplanation:
    """Explain an operator or a module of a plan; every alternative is judged, with only it moved.

    Raises `UnknownNameError`: the problem has no such operator or module; offers the nearest.
    """
    if name in problem.operator_names:
        with bare_numbers(problem.dimensionless):
            return explain_operator(problem, plan, name)
    modules = module_names(problem)
    if name in modules:
        return explain_module(problem, plan, name)
    what = "operator or module" if modules else "operator"
    raise UnknownNameError(what, name, [*modules, *problem.operator_names], where=problem.name)


def explain_operator(problem: OperatorProblem, plan: OperatorPlan, operator: str) -> Explanation:
    """Explain one operator that the problem has."""
    op, judged = problem.operator_names.index(operator), judge(problem, plan)
    here, group = int(plan.placement[op]), problem.colocation == problem.colocation[op]
    others = [
        moved(problem, plan, group, float(problem.compute_s[op, d]), d)
        for d in range(problem.m)
        if d != here
    ]
    others.sort(key=lambda a: a.value_s)
    critical = critical_spans(judged)
    return Explanation(
        operator=operator,
        device=problem.device_names[here],
        compute_s=float(problem.compute_s[op, here]),
        start_s=float(judged.op_start_s[op]),
        end_s=float(judged.op_end_s[op]),
        critical=bool(critical[op]),
        group=int(group.sum()),
        value_s=float(judged.value),
        received=_received(problem, judged, op),
        sent=_sent(problem, judged, op),
        alternatives=tuple(others),
        binding=_binding(problem, op, float(judged.value), others),
        limits=limits(judged, critical),
        dimensionless=problem.dimensionless,
    )


def _binding(
    problem: OperatorProblem, op: int, value_s: float, others: Sequence[Alternative]
) -> str:
    """The reason against other devices: a pin, missing support, memory, or time."""
    group = problem.colocation == problem.colocation[op]
    if (problem.pinned[group] >= 0).any():
        return "it, or an operator of its group, is pinned here"
    blocked = [a for a in others if a.value_s == float("inf")]
    because = "".join(f"; {a.device} is out: {a.note}" for a in blocked[:1])
    if len(blocked) == len(others):
        return "no other device can take it" + because
    near = others[0]
    change = near.value_s - value_s
    if change < 0:
        return f"nothing: on {near.device} the plan would take {seconds(-change)} less" + because
    if change == 0:
        return f"nothing: on {near.device} the plan would take as long" + because
    return f"time: on {near.device}, the next best, the plan takes {seconds(change)} more" + because


def _received(problem: OperatorProblem, judged: OperatorJudgement, op: int) -> dict[str, str]:
    """Tensors that it waits for from other devices: name -> sending device."""
    place = judged.placement
    read = problem.topology.read_by(op).tolist()
    source = {k: int(place[problem.tensor_producer[k]]) for k in read}
    return {
        problem.tensor_names[k]: problem.device_names[d]
        for k, d in source.items()
        if d != place[op]
    }


def _sent(
    problem: OperatorProblem, judged: OperatorJudgement, op: int
) -> dict[str, tuple[str, ...]]:
    place, sent = judged.placement, {}
    for k in problem.topology.made_by(op).tolist():
        targets = sorted(set(place[problem.readers(k)].tolist()) - {int(place[op])})
        if targets:
            sent[problem.tensor_names[k]] = tuple(problem.device_names[d] for d in targets)
    return sent
