"""Explanation of where a module runs: operators by device, traffic, the effect of moving it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from placewright.errors import InfeasibleError, InputError
from placewright.numerics.arrays import BoolArray
from placewright.operators.critical_path import critical_operators
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True)
class Alternative:
    """The plan with the operator (and its group) on another device.

    Attributes
    ----------
    compute_s
        The operator alone, there.
    value_s
        Value of the changed plan, ``inf`` where it cannot be.
    note
        Why it cannot be, empty if it can.
    """

    device: str
    compute_s: float
    value_s: float
    note: str = ""


def moved(
    problem: OperatorProblem, plan: OperatorPlan, moving: BoolArray, own_s: float, device: int
) -> Alternative:
    """The plan with the operators in `moving`, whole groups, on another device.

    `own_s`: compute time of the explained operators there.
    """
    name = problem.device_names[device]
    leader = device if plan.replica_of is None else int(plan.replica_of[device])
    if leader != device:
        note = f"it is a copy of {problem.device_names[leader]!r}"
        return Alternative(name, own_s, float("inf"), note)
    placement = np.where(moving, device, plan.placement)
    try:
        judged = judge(problem, replace(plan, placement=placement))
    except (InfeasibleError, InputError) as error:  # a fixed order may not suit other devices
        return Alternative(name, own_s, float("inf"), error.what)
    if not judged.feasible:
        return Alternative(name, own_s, float("inf"), judged.violation)
    return Alternative(name, own_s, float(judged.value))


@dataclass(frozen=True, slots=True)
class ModulePart:
    """The part of a module that is on one device."""

    operators: int
    seconds: float
    resident_bytes: float


@dataclass(frozen=True, slots=True)
class ModuleExplanation:
    """Placement of the operators under a module path, and its alternatives.

    Attributes
    ----------
    parts
        By device.
    bytes_in, bytes_out
        Of tensors that come from operators outside, or that operators outside read, by the device
        of those operators; a tensor counts once per device.
    start_s, end_s
        First start and last end of its operators.
    critical
        How many of its operators are on the critical path.
    together
        Operators that must move with it although they are outside of it.
    alternatives
        The plan with the whole module on one device, best first.
    """

    module: str
    operators: int
    parts: Mapping[str, ModulePart]
    bytes_in: Mapping[str, float]
    bytes_out: Mapping[str, float]
    start_s: float
    end_s: float
    critical: int
    together: int
    value_s: float
    alternatives: tuple[Alternative, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        from placewright.operators.text import module_explanation_text

        return module_explanation_text(self)


def module_names(problem: OperatorProblem) -> dict[str, None]:
    """Paths of all modules that operators belong to, and of their parents, in order."""
    found: dict[str, None] = {}
    for path in dict.fromkeys(problem.operator_modules):
        parts = path.split(".") if path else []
        for k in range(1, len(parts) + 1):
            found[".".join(parts[:k])] = None
    return found


def explain_module(problem: OperatorProblem, plan: OperatorPlan, module: str) -> ModuleExplanation:
    """Explain a module that `module_names` knows; every alternative is judged."""
    judged = judge(problem, plan)
    mine = np.array(
        [path == module or path.startswith(f"{module}.") for path in problem.operator_modules]
    )
    moving = np.isin(problem.colocation, problem.colocation[mine])
    others = [
        moved(problem, plan, moving, float(problem.compute_s[mine, d].sum()), d)
        for d in range(problem.m)
        if (plan.placement[moving] != d).any()
    ]
    others.sort(key=lambda a: a.value_s)
    into, out = _exchanged(judged, mine)
    return ModuleExplanation(
        module=module,
        operators=int(mine.sum()),
        parts=_parts(judged, mine),
        bytes_in=into,
        bytes_out=out,
        start_s=float(judged.op_start_s[mine].min()),
        end_s=float(judged.op_end_s[mine].max()),
        critical=int(critical_operators(judged)[mine].sum()),
        together=int((moving & ~mine).sum()),
        value_s=float(judged.value),
        alternatives=tuple(others),
    )


def _parts(judged: OperatorJudgement, mine: BoolArray) -> dict[str, ModulePart]:
    p, place = judged.problem, judged.placement
    seconds = p.compute_s[np.arange(p.n), place]
    on = {d: mine & (place == d) for d in range(p.m)}
    return {
        p.device_names[d]: ModulePart(
            int(here.sum()), float(seconds[here].sum()), float(p.resident_bytes[here].sum())
        )
        for d, here in on.items()
        if here.any()
    }


def _exchanged(
    judged: OperatorJudgement, mine: BoolArray
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes in by the device that makes them, bytes out by the devices that read them."""
    p, place = judged.problem, judged.placement
    readers = p.consumed
    inside_made = mine[p.tensor_producer]
    entering = np.unique(readers[mine[p.consumers] & ~inside_made[readers]])
    leaving = ~mine[p.consumers] & inside_made[readers]
    pairs = np.stack([readers[leaving], place[p.consumers[leaving]]], axis=1)
    tensor, target = np.unique(pairs, axis=0).reshape(-1, 2).T
    into = _summed(p, place[p.tensor_producer[entering]], p.tensor_bytes[entering])
    return into, _summed(p, target, p.tensor_bytes[tensor])


def _summed(p: OperatorProblem, device: Any, size: Any) -> dict[str, float]:
    total = np.bincount(device, weights=size, minlength=p.m)
    return {p.device_names[d]: float(total[d]) for d in np.flatnonzero(total).tolist()}
