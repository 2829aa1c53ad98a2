"""Why an operator or a module is where it is: its time there, what moving it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import InfeasibleError, UnknownNameError
from placewright.numerics.arrays import BoolArray
from placewright.operators.bottlenecks import Limit, limits
from placewright.operators.causes import causes, turns
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem

if TYPE_CHECKING:
    from placewright.operators.explain_module import ModuleExplanation

SAME_TIME = 1e-9
"""Relative difference below which two times are one."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The plan with the operator (and its group) on another device.

    Attributes
    ----------
    compute_s
        The operator alone, there.
    value_s
        The judge's word on the changed plan, ``inf`` where it cannot be.
    note
        Why it cannot be, empty if it can.
    """

    device: str
    compute_s: float
    value_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about one operator of a plan.

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
        What keeps the operator here, in words.
    limits
        What limits the whole plan: devices and links on the critical path, full memories.
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

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        from placewright.operators.text import explanation_text

        return explanation_text(self)


def explain(
    problem: OperatorProblem, plan: OperatorPlan, name: str
) -> Explanation | ModuleExplanation:
    """Explain an operator or a module of a plan; every alternative is judged, with only it moved.

    Raises
    ------
    UnknownNameError
        The problem has no such operator or module; offers the nearest.
    """
    from placewright.operators.explain_module import explain_module, module_names

    if name in problem.operator_names:
        return explain_operator(problem, plan, name)
    modules = module_names(problem)
    if name in modules:
        return explain_module(problem, plan, name)
    what = "operator or module" if modules else "operator"
    raise UnknownNameError(what, name, [*modules, *problem.operator_names], where=problem.name)


def explain_operator(problem: OperatorProblem, plan: OperatorPlan, operator: str) -> Explanation:
    """Explain one operator that the problem has."""
    op, played = problem.operator_names.index(operator), judge(problem, plan)
    here, group = int(plan.placement[op]), problem.colocation == problem.colocation[op]
    others = [
        moved(problem, plan, group, float(problem.compute_s[op, d]), d)
        for d in range(problem.m)
        if d != here
    ]
    others.sort(key=lambda a: a.value_s)
    critical = critical_spans(played)
    return Explanation(
        operator=operator,
        device=problem.device_names[here],
        compute_s=float(problem.compute_s[op, here]),
        start_s=float(played.op_start_s[op]),
        end_s=float(played.op_end_s[op]),
        critical=bool(critical[op]),
        group=int(group.sum()),
        value_s=float(played.value),
        received=_received(problem, played, op),
        sent=_sent(problem, played, op),
        alternatives=tuple(others),
        binding=_binding(problem, op, float(played.value), others),
        limits=limits(played, critical),
    )


def _binding(
    problem: OperatorProblem, op: int, value_s: float, others: Sequence[Alternative]
) -> str:
    """Why not elsewhere: a pin, no other device, what does not fit, or time."""
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
        return f"nothing: on {near.device} the plan would take {-change:.4g} s less" + because
    if change == 0:
        return f"nothing: on {near.device} the plan would take as long" + because
    return f"time: on {near.device}, the next best, the plan takes {change:.4g} s more" + because


def critical_operators(played: OperatorJudgement) -> BoolArray:
    """Shape (n,): whether an operator is on a gapless chain that ends last."""
    critical: BoolArray = critical_spans(played)[: played.problem.n]
    return critical


def critical_spans(played: OperatorJudgement) -> BoolArray:
    """Whether a span of the trace, operators first, is on a gapless chain that ends last.

    From what ends last, backwards: whatever ended just when a critical span began, on the same
    track (it kept the device or channel busy) or as its cause (a producer or a transfer).
    Spans without length take part like all others.
    """
    trace = played.trace()
    cause, turn = causes(played), turns(played, trace.track)
    last = trace.end_s.max(initial=0.0)
    close = SAME_TIME * max(float(last), 1e-30)
    critical: BoolArray = np.isclose(trace.end_s, last, rtol=0.0, atol=close)
    waiting = np.flatnonzero(critical).tolist()
    by_end = np.argsort(trace.end_s, kind="stable")
    ends = trace.end_s[by_end]
    while waiting:
        span = waiting.pop()
        begin = trace.start_s[span]
        low, high = np.searchsorted(ends, (begin - close, begin + close), side="left")
        for other in by_end[low:high].tolist():
            near = turn[other] == turn[span] or other in cause[span]
            if near and not critical[other] and trace.start_s[other] <= begin:
                critical[other] = True
                waiting.append(other)
    return critical


def moved(
    problem: OperatorProblem, plan: OperatorPlan, moving: BoolArray, own_s: float, device: int
) -> Alternative:
    """The plan with the operators in `moving`, whole groups, on another device.

    Parameters
    ----------
    own_s
        What the operators that are asked about take there.
    """
    name = problem.device_names[device]
    leader = device if plan.replica_of is None else int(plan.replica_of[device])
    if leader != device:
        note = f"it is a copy of {problem.device_names[leader]!r}"
        return Alternative(name, own_s, float("inf"), note)
    placement = np.where(moving, device, plan.placement)
    try:
        played = judge(problem, replace(plan, placement=placement))
    except InfeasibleError as error:
        return Alternative(name, own_s, float("inf"), error.what)
    if not played.feasible:
        return Alternative(name, own_s, float("inf"), played.violation)
    return Alternative(name, own_s, float(played.value))


def _received(problem: OperatorProblem, played: OperatorJudgement, op: int) -> dict[str, str]:
    """Tensors that it waits for from other devices: name -> sending device."""
    topology, place = problem.topology, played.placement
    read = topology.in_tensors[topology.in_offsets[op] : topology.in_offsets[op + 1]].tolist()
    source = {k: int(place[problem.tensor_producer[k]]) for k in read}
    return {
        problem.tensor_names[k]: problem.device_names[d]
        for k, d in source.items()
        if d != place[op]
    }


def _sent(
    problem: OperatorProblem, played: OperatorJudgement, op: int
) -> dict[str, tuple[str, ...]]:
    topology, place = problem.topology, played.placement
    made = topology.out_tensors[topology.out_offsets[op] : topology.out_offsets[op + 1]].tolist()
    sent = {}
    for k in made:
        readers = problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]
        targets = sorted(set(place[readers].tolist()) - {int(place[op])})
        if targets:
            sent[problem.tensor_names[k]] = tuple(problem.device_names[d] for d in targets)
    return sent
