"""Explanation of where an operator or a module runs, and of what limits a plan.

Of an operator: its time there, the cost of moving it. Of a module: operators by device, traffic,
the effect of moving it. Of a plan: its critical path, and what limits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.numerics.arrays import BoolArray, IntArray
from placewright.operators.judge import judge
from placewright.operators.judgement import HOST, OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import (
    Communication,
    Links,
    Objective,
    OperatorProblem,
    Overlap,
)
from placewright.operators.simulation.loads import link_loads, link_period_s
from placewright.operators.simulation.star import accelerators, is_star_latency
from placewright.report.text import bare_numbers, seconds


@checked
@dataclass(frozen=True, slots=True)
class OperatorExplanation:
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
    makespan_s
        Of one sample; equals `value_s` for latency.
    binding
        What keeps the operator on its device.
    limits
        What limits the whole plan: devices and links on the critical path, or the busiest of a
        stream, and full memories.
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
    makespan_s: float
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
) -> OperatorExplanation | ModuleExplanation:
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


def explain_operator(
    problem: OperatorProblem, plan: OperatorPlan, operator: str
) -> OperatorExplanation:
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
    return OperatorExplanation(
        operator=operator,
        device=problem.device_names[here],
        compute_s=float(problem.compute_s[op, here]),
        start_s=float(judged.op_start_s[op]),
        end_s=float(judged.op_end_s[op]),
        critical=bool(critical[op]),
        group=int(group.sum()),
        value_s=float(judged.value),
        makespan_s=judged.makespan_s,
        received=_received(problem, judged, op),
        sent=_sent(problem, judged, op),
        alternatives=tuple(others),
        binding=_binding(problem, op, float(judged.value), others),
        limits=limits(judged, plan, critical),
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
    makespan_s, dimensionless
        As of `OperatorExplanation`.
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
    makespan_s: float
    alternatives: tuple[Alternative, ...]
    dimensionless: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        from placewright.operators.text import module_explanation_text

        with bare_numbers(self.dimensionless):
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
        makespan_s=judged.makespan_s,
        alternatives=tuple(others),
        dimensionless=problem.dimensionless,
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


SAME_TIME = 1e-9
"""Relative difference below which two times are one."""

NEARLY_FULL = 0.9
"""Share of a device's memory from which it is named among the limits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that the plan's time hangs on.

    Attributes
    ----------
    kind
        ``"compute"``, ``"link"`` or ``"memory"``.
    name
        The device or the channel.
    share
        Of `of` that is spent there; for memory, of the bytes in use at the peak.
    of
        The critical path, or the period of a stream of samples.
    """

    kind: str
    name: str
    share: float
    of: str = "critical path"

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %"
        if self.kind == "memory":
            return f"memory of {self.name} is {percent} full"
        return f"{self.kind} on {self.name}: {percent} of the {self.of}"


def limits(judged: OperatorJudgement, plan: OperatorPlan, critical: BoolArray) -> tuple[Limit, ...]:
    """What takes the plan's time, the largest share first, then devices that are nearly full.

    `critical`: one entry per span of the trace. Several paths may be critical: the shares then add
    up to more than one, and with free links, where transfers overlap, a single one may be above it.
    """
    p = judged.problem
    stream = p.objective is Objective.THROUGHPUT and p.communication is Communication.PAIRWISE
    found = _of_the_period(p, plan) if stream else _of_the_path(judged, critical)
    return (*found, *_full(judged))


def _of_the_period(p: OperatorProblem, plan: OperatorPlan) -> list[Limit]:
    """Devices and channels by their load; channels of free links have none that counts."""
    loads, period_s = link_loads(p, plan), link_period_s(p, plan)
    free = p.links is Links.FREE and p.overlap is Overlap.PARALLEL
    channel_s = np.zeros_like(loads.channel_s) if free else loads.channel_s
    share = np.concatenate([loads.device_s, channel_s]) / max(period_s, 1e-300)
    names = (*p.device_names, *p.channel_names)
    return [
        Limit("compute" if k < p.m else "link", names[k], float(share[k]), "period")
        for k in np.argsort(-share, kind="stable").tolist()
        if share[k] > 0
    ]


def _of_the_path(judged: OperatorJudgement, critical: BoolArray) -> list[Limit]:
    """Tracks on the critical path."""
    trace = judged.trace()
    length = np.where(critical, trace.end_s - trace.start_s, 0.0)
    spent = np.bincount(trace.track, length, minlength=len(trace.tracks))
    total = trace.duration_s
    return [
        Limit("compute" if k < trace.devices else "link", trace.tracks[k], float(spent[k] / total))
        for k in np.argsort(-spent, kind="stable").tolist()
        if total > 0 and spent[k] > 0
    ]


def _full(judged: OperatorJudgement) -> list[Limit]:
    p = judged.problem
    share = judged.peak_bytes / np.maximum(p.memory_bytes, 1)
    near = np.flatnonzero(share >= NEARLY_FULL).tolist()
    return [Limit("memory", p.device_names[d], float(share[d])) for d in near]


def critical_operators(judged: OperatorJudgement) -> BoolArray:
    """Shape (n,): whether an operator is on a gapless chain that ends last."""
    critical: BoolArray = critical_spans(judged)[: judged.problem.n]
    return critical


def critical_spans(judged: OperatorJudgement) -> BoolArray:
    """Whether a span of the trace, operators first, is on a gapless chain that ends last.

    From what ends last, backwards: whatever ended just when a critical span began, on the same
    track (it kept the device or channel busy) or as its cause (a producer or a transfer).
    Spans without length take part like all others.
    """
    trace = judged.trace()
    cause, turn = _causes(judged), _turns(judged, trace.track)
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
        # As arrays: thousands of operators without length may end at one time.
        before = by_end[low:high]
        before = before[~critical[before] & (trace.start_s[before] <= begin)]
        near = turn[before] == turn[span]
        if cause[span]:
            near |= np.isin(before, list(cause[span]))
        critical[before[near]] = True
        waiting += before[near].tolist()
    return critical


def waited_for(judged: OperatorJudgement) -> IntArray:
    """For every span of the trace, operators first, the one whose end it waited for; -1: none.

    Of its causes and of what held its track before it, the one that ended last.
    """
    trace = judged.trace()
    turn = _turns(judged, trace.track)
    found = np.full(len(turn), -1)
    order = np.lexsort((trace.end_s, trace.start_s, turn))
    before, after = order[:-1], order[1:]
    close = SAME_TIME * max(trace.duration_s, 1e-30)
    held = (turn[before] == turn[after]) & (trace.end_s[before] <= trace.start_s[after] + close)
    found[after[held]] = before[held]
    end_s = trace.end_s.tolist()
    for span, causes in enumerate(_causes(judged)):
        last = max(sorted(causes), key=end_s.__getitem__, default=-1)
        if last >= 0 and (found[span] < 0 or end_s[last] >= end_s[found[span]]):
            found[span] = last
    return found


def _causes(judged: OperatorJudgement) -> list[set[int]]:
    """For every span of the trace, operators first, the spans whose tensors it waits for."""
    if judged.problem.communication is Communication.STAR:
        return _through_host(judged)
    p, moves = judged.problem, judged.transfers
    arrival = {
        (int(k), int(d)): p.n + i
        for i, (k, d) in enumerate(zip(moves.tensor, moves.target, strict=True))
    }
    found: list[set[int]] = []
    for op in range(p.n):
        device = int(judged.placement[op])
        read = p.topology.read_by(op).tolist()
        found.append({arrival.get((k, device), int(p.tensor_producer[k])) for k in read})
    return found + [{int(p.tensor_producer[k])} for k in moves.tensor.tolist()]


def _turns(judged: OperatorJudgement, track: IntArray) -> IntArray:
    """The resource that each span holds: its track, or the device that is called.

    The whole system where one operator or transfer runs at a time. A CPU beside called accelerators
    does any number of things at once: none waits for another.
    """
    p = judged.problem
    if p.communication is not Communication.STAR:
        return np.zeros_like(track) if p.overlap is Overlap.SERIAL else track
    device = track % p.m
    free = is_star_latency(p) & ~accelerators(p)[device]
    return np.where(free, -1 - np.arange(len(track)), device)


def _through_host(judged: OperatorJudgement) -> list[set[int]]:
    """A call waits for all that it takes in, and what it makes is there when it has ended."""
    p, moves, place = judged.problem, judged.transfers, judged.placement
    taken = moves.source == HOST
    brought = [set((p.n + np.flatnonzero(moves.source == d)).tolist()) for d in range(p.m)]
    pays = p.host_seconds_per_byte > 0
    maker = p.tensor_producer
    made: list[set[int]] = [
        brought[place[i]] if pays[place[i]] else {int(i)} for i in maker.tolist()
    ]
    needs: list[set[int]] = [set() for _ in range(p.m)]
    for k, d in zip(moves.tensor[taken].tolist(), moves.target[taken].tolist(), strict=True):
        needs[d] |= made[k]
    found: list[set[int]] = []
    for op in range(p.n):
        waits = set() if pays[place[op]] else {x for k in p.topology.read_by(op) for x in made[k]}
        found.append(waits)
    return found + [needs[d] if d != HOST else set() for d in moves.target.tolist()]
