"""Latency where accelerators are called through host memory (rules A1 to A6).

The model is that of Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1.

*Calls* are simulated by a compiled kernel.
One pass over operators and tensors. An item of the queue is an operator on a CPU (0 to n - 1) or a
call (n + unit, unit = device * per_device + call), and it waits for tensors and, a call after the
first, for the call before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached
from placewright.operators.costs import Costs, kernel_costs
from placewright.operators.judgement import HOST, OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Communication, Objective, OperatorProblem
from placewright.operators.simulation.loads import (
    StarLoads,
    host_rates,
    stages,
    star_loads,
    star_value,
)
from placewright.operators.sizes import room_bytes


@dataclass(frozen=True, slots=True, eq=False)
class StarSimulation:
    """End of the last operator, start and end of each, shape (n,), and the transfers of calls."""

    value_s: float
    op_start_s: FloatArray
    op_end_s: FloatArray
    transfers: Transfers


def is_star_latency(problem: OperatorProblem) -> bool:
    """Whether the objective is latency, with transfers through host memory."""
    star = problem.communication is Communication.STAR
    return star and problem.objective is Objective.LATENCY


def accelerators(problem: OperatorProblem) -> BoolArray:
    """Shape (m,): which devices are accelerators (rule A1)."""
    return problem.host_seconds_per_byte > 0


def least_tails(problem: OperatorProblem) -> FloatArray:
    """Shape (n,): the least time from the start of each operator to the end.

    No plan is faster: on a CPU a reader starts when its input is there, and a call runs its
    operators one after another, producers first. So from the start of an operator to the end it
    takes at least the operator's time where it is fastest plus the same of some reader.
    """
    p, t = problem, problem.topology
    least = np.where(p.allowed(), p.compute_s, np.inf).min(axis=1)
    tail = np.zeros(p.n)
    for i in t.order[::-1].tolist():
        for k in t.made_by(i).tolist():
            readers = p.readers(k)
            tail[i] = max(tail[i], tail[readers].max(initial=0.0))
        tail[i] += least[i]
    return tail


def units(problem: OperatorProblem, plan: OperatorPlan) -> IntArray:
    """Shape (n,): ``device * most_calls + call`` of each operator, -1 on a CPU."""
    place, most = plan.placement, most_calls(problem)
    call = first_calls(problem, place) if plan.call is None else plan.call
    # Calls are numbered densely where more are allowed than there are operators: arrays have a
    # row per call.
    if most < problem.calls:
        call = _without_gaps(place, call)
    return np.where(accelerators(problem)[place], place * most + call, -1)


def _without_gaps(place: IntArray, call: IntArray) -> IntArray:
    """Shape (n,): how many calls of its device with operators come before each operator's."""
    used, at = np.unique(np.stack([place, call]), axis=1, return_inverse=True)
    # `used` is sorted by device, then call: rows before the device's first are others'.
    first = np.searchsorted(used[0], place)
    return at.ravel() - first


def first_calls(problem: OperatorProblem, place: IntArray) -> IntArray:
    """Shape (n,): the earliest call for each operator, where a plan has none (rule A5).

    Calls past the last one allowed become the last one, which is then refused (rule A6).
    """
    call = np.zeros((problem.n, problem.m), dtype=np.int64)
    if problem.calls == 1:
        return call[:, 0]
    t = problem.topology
    for i in t.order.tolist():
        for k in t.read_by(i).tolist():
            producer = int(problem.tensor_producer[k])
            least = call[producer].copy()
            # `call[i, d]` is the earliest call of d that i could be in: a path that leaves the
            # producer's device can only come back to a later call there.
            least[place[producer]] += place[producer] != place[i]
            np.maximum(call[i], least, out=call[i])
    return np.minimum(call[np.arange(problem.n), place], most_calls(problem) - 1)


def star_latency(problem: OperatorProblem, plan: OperatorPlan) -> StarSimulation:
    """Simulate a plan that `check_plan` has passed.

    Raises `InfeasibleError`: a call would wait for itself.
    """
    place, unit = thawed(plan.placement), units(problem, plan)
    ready_s, begin_s, _ = simulate_calls(calls_of(problem), place, unit)
    stuck = np.flatnonzero(np.isnan(ready_s) & (unit >= 0))
    if len(stuck):
        raise _deadlock(problem, int(place[stuck[0]]), int(stuck[0]))
    # The trace: within a call, inputs come one by one, then operators run, then outputs go.
    clock_s, (entering, leaving) = begin_s.copy(), _crossing(problem, unit)
    incoming = _moved(problem, *entering, clock_s)
    start_s, end_s = _inside(problem, place, unit, ready_s, clock_s)
    outgoing = _moved(problem, *leaving, clock_s)
    return StarSimulation(float(ready_s.max()), start_s, end_s, through_host(incoming, outgoing))


def _deadlock(problem: OperatorProblem, device: int, op: int) -> InfeasibleError:
    name = problem.device_names[device]
    return InfeasibleError(
        f"a call of {name!r} would wait for its own outcome",
        where=f"plan for {problem.name}: {problem.operator_names[op]!r}",
        by=f"{problem.calls} calls per accelerator",
        hint="keep what lies between its operators on the same device, or allow more calls",
    )


def _inside(
    p: OperatorProblem, place: IntArray, unit: IntArray, ready_s: FloatArray, clock_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Start and end of every operator; those of a call one by one, from its clock on."""
    start_s, end_s = np.empty(p.n), np.empty(p.n)
    for i in p.topology.order.tolist():
        took, u = p.compute_s[i, place[i]], unit[i]
        end_s[i] = ready_s[i] if u < 0 else clock_s[u] + took
        start_s[i] = end_s[i] - took if u < 0 else clock_s[u]
        if u >= 0:
            clock_s[u] = end_s[i]
    return start_s, end_s


def _crossing(
    p: OperatorProblem, unit: IntArray
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Tensor and call of all inputs of calls, and of all their outputs; by tensor."""
    tensor = p.consumed
    producer, reader = unit[p.tensor_producer], unit[p.consumers]
    away = reader != producer[tensor]
    enters, leaves = away & (reader >= 0), np.unique(tensor[away])
    count = p.m * most_calls(p)
    once = np.unique(tensor[enters] * count + reader[enters])
    leaves = leaves[producer[leaves] >= 0]
    return (once // count, once % count), (leaves, producer[leaves])


def _moved(
    p: OperatorProblem, tensor: IntArray, unit: IntArray, clock_s: FloatArray
) -> HostTransfers:
    """Transfers of calls, one after another from their clocks on."""
    device = unit // most_calls(p)
    took_s = p.tensor_bytes[tensor] * p.host_seconds_per_byte[device]
    return serialised(tensor, device, took_s, clock_s, unit)


@dataclass(frozen=True, slots=True, eq=False)
class HostTransfers:
    """Transfers between devices and host memory, all in one direction."""

    tensor: IntArray
    device: IntArray
    start_s: FloatArray
    end_s: FloatArray


def serialised(
    tensor: IntArray,
    device: IntArray,
    took_s: FloatArray,
    clock_s: FloatArray,
    clock: IntArray | None = None,
) -> HostTransfers:
    """Transfers one after another, in the order given.

    `clock_s`: when each sequence of transfers may go on; moved on by this function.
    `clock`: index into `clock_s` of each transfer: its device by default.
    """
    start, end = np.empty(len(tensor)), np.empty(len(tensor))
    clocks = (device if clock is None else clock).tolist()
    for x, (at, took) in enumerate(zip(clocks, took_s.tolist(), strict=True)):
        start[x] = clock_s[at]
        end[x] = clock_s[at] = clock_s[at] + took
    return HostTransfers(tensor, device, start, end)


def through_host(incoming: HostTransfers, outgoing: HostTransfers) -> Transfers:
    """Transfers into devices and out of them, by start time."""
    host = np.full(len(incoming.tensor), HOST), np.full(len(outgoing.tensor), HOST)
    tensor = np.concatenate([incoming.tensor, outgoing.tensor])
    source = np.concatenate([host[0], outgoing.device])
    target = np.concatenate([incoming.device, host[1]])
    start = np.concatenate([incoming.start_s, outgoing.start_s])
    end = np.concatenate([incoming.end_s, outgoing.end_s])
    by = np.lexsort((target, tensor, end, start))
    return Transfers(tensor[by], source[by], target[by], start[by], end[by])


@by_reference
class StarCalls(NamedTuple):
    """What the kernel reads of a problem."""

    costs: Costs
    host_seconds_per_byte: FloatArray
    per_device: int


def calls_of(problem: OperatorProblem) -> StarCalls:
    """The arrays of a problem."""
    rates = thawed(problem.host_seconds_per_byte)
    return StarCalls(kernel_costs(problem), rates, most_calls(problem))


def most_calls(problem: OperatorProblem) -> int:
    """How many calls of an accelerator can have operators."""
    return min(problem.calls, problem.n)


@njit_cached
def simulate_calls(
    c: StarCalls, place: IntArray, unit: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Simulate a plan.

    `unit`: Shape (n,): ``device * per_device + call`` of each operator on an accelerator, -1 on a
    CPU.

    Returns
    -------
    ready_s
        Shape (n,): when the outputs of the operator can be read by others; ``nan`` where it waits
        for itself, directly or through other calls.
    begin_s, end_s
        Shape (devices * per_device,): when each call begins (it has all its inputs in host memory)
        and ends.
    """
    n, m = c.costs.compute_s.shape
    q = c.per_device
    units = m * q
    load_s = np.zeros(units)
    waits = np.zeros(n + units, dtype=np.int64)
    for u in range(units):
        # A call waits for the one before it on its device (rule A3), too.
        if u % q > 0:
            waits[n + u] = 1
    for i in range(n):
        if unit[i] >= 0:
            load_s[unit[i]] += c.costs.compute_s[i, place[i]]
    seen = np.full(units, -1, dtype=np.int64)
    for k in range(len(c.costs.producer)):
        _charge(c, k, place, unit, seen, load_s, waits)
    # ``nan`` stays where an operator is in no item that was ever ready (rule A6).
    ready_s = np.full(n, np.nan)
    input_s = np.zeros(n + units)
    begin_s, end_s = np.zeros(units), np.zeros(units)
    queue = np.empty(n + units, dtype=np.int64)
    tail = 0
    for x in range(n + units):
        # Operators on accelerators are done by their calls and never stand in the queue.
        if waits[x] == 0 and (x >= n or unit[x] < 0):
            queue[tail] = x
            tail += 1
    member_offsets, members = _members(unit, units)
    head = 0
    # Topological order of items (Kahn): those that wait for themselves never enter the queue.
    while head < tail:
        x = queue[head]
        head += 1
        if x < n:
            ready_s[x] = input_s[x] + c.costs.compute_s[x, place[x]]
            tail = _deliver(c, x, ready_s[x], unit, waits, input_s, queue, tail)
            continue
        u = x - n
        begin_s[u] = input_s[x]
        end_s[u] = input_s[x] + load_s[u]
        for a in range(member_offsets[u], member_offsets[u + 1]):
            i = members[a]
            ready_s[i] = end_s[u]
            tail = _deliver(c, i, end_s[u], unit, waits, input_s, queue, tail)
        if u % q < q - 1:
            input_s[x + 1] = max(input_s[x + 1], end_s[u])
            waits[x + 1] -= 1
            if waits[x + 1] == 0:
                queue[tail] = x + 1
                tail += 1
    return ready_s, begin_s, end_s


@njit_cached
def _charge(
    c: StarCalls,
    k: int,
    place: IntArray,
    unit: IntArray,
    seen: IntArray,
    load_s: FloatArray,
    waits: IntArray,
) -> None:
    """Add the transfers of tensor k to the calls that pay for them; count the items that wait."""
    producer = c.costs.producer[k]
    home = unit[producer]
    leaves = False
    for b in range(c.costs.offsets[k], c.costs.offsets[k + 1]):
        i = c.costs.consumers[b]
        u = unit[i]
        if u < 0:
            waits[i] += 1
            leaves = True
        elif u != home:
            waits[len(place) + u] += 1
            leaves = True
            # Waits are counted by use, as `_deliver` counts them down; a tensor is paid for once.
            if seen[u] != k:
                seen[u] = k
                load_s[u] += c.costs.tensor_bytes[k] * c.host_seconds_per_byte[place[i]]
    # Of one call, `k` either enters or leaves: sums stay by tensor index (rule A3).
    if leaves and home >= 0:
        load_s[home] += c.costs.tensor_bytes[k] * c.host_seconds_per_byte[place[producer]]


@njit_cached
def _members(unit: IntArray, units: int) -> tuple[IntArray, IntArray]:
    """CSR: the operators of each call."""
    offsets = np.zeros(units + 1, dtype=np.int64)
    for u in unit:
        if u >= 0:
            offsets[u + 1] += 1
    offsets = np.cumsum(offsets)
    at = offsets.copy()
    members = np.empty(offsets[units], dtype=np.int64)
    for i in range(len(unit)):
        if unit[i] >= 0:
            members[at[unit[i]]] = i
            at[unit[i]] += 1
    return offsets, members


@njit_cached
def _deliver(
    c: StarCalls,
    i: int,
    ready_s: float,
    unit: IntArray,
    waits: IntArray,
    input_s: FloatArray,
    queue: IntArray,
    tail: int,
) -> int:
    """Deliver the outputs of operator i to all items that wait for them."""
    n = len(unit)
    for a in range(c.costs.out_offsets[i], c.costs.out_offsets[i + 1]):
        k = c.costs.out_tensors[a]
        for b in range(c.costs.offsets[k], c.costs.offsets[k + 1]):
            j = c.costs.consumers[b]
            x = j if unit[j] < 0 else n + unit[j]
            if unit[j] >= 0 and unit[j] == unit[i]:
                continue
            input_s[x] = max(input_s[x], ready_s)
            waits[x] -= 1
            if waits[x] == 0:
                queue[tail] = x
                tail += 1
    return tail


def judge_star(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """Judge one period of a pipeline (throughput) or one sample (latency)."""
    p, place = problem, plan.placement
    loads = star_loads(p, plan)
    held = np.bincount(place, np.ceil(p.resident_bytes), minlength=p.m).astype(np.int64)
    peak = held[stages(p, plan)[0]]
    over = np.maximum(0, peak - room_bytes(p))
    value, (start, end, transfers) = _simulated(problem, plan, loads)
    return OperatorJudgement(
        problem=p,
        placement=place,
        value=value,
        feasible=not over.any(),
        violation=violation_words(p, over),
        violation_bytes=int(over.sum()),
        op_start_s=start,
        op_end_s=end,
        transfers=transfers,
        peak_bytes=peak,
        busy_s=loads.compute_s,
    )


def _simulated(
    problem: OperatorProblem, plan: OperatorPlan, loads: StarLoads
) -> tuple[float, tuple[FloatArray, FloatArray, Transfers]]:
    """The value; start and end of each operator, and the transfers."""
    if problem.objective is Objective.LATENCY:
        sample = star_latency(problem, plan)
        return sample.value_s, (sample.op_start_s, sample.op_end_s, sample.transfers)
    return star_value(problem, plan), _period(problem, plan.placement, loads)


def _period(
    p: OperatorProblem, place: IntArray, loads: StarLoads
) -> tuple[FloatArray, FloatArray, Transfers]:
    """Each device receives its tensors, runs its operators, and sends its tensors (rule L7)."""
    clock, rates = np.zeros(p.m), host_rates(p, place)
    incoming = _moved_transfers(p, loads.entering, rates, clock)
    start, end = np.empty(p.n), np.empty(p.n)
    for i in p.topology.order:
        d = place[i]
        start[i] = clock[d]
        end[i] = clock[d] = clock[d] + p.compute_s[i, d]
    return start, end, through_host(incoming, _moved_transfers(p, loads.leaving, rates, clock))


def _moved_transfers(
    p: OperatorProblem, crossing: BoolArray, rates: FloatArray, clock: FloatArray
) -> HostTransfers:
    """Transfers between host memory and devices that pay for them."""
    tensor, device = np.nonzero(crossing & (rates > 0))
    return serialised(tensor, device, p.tensor_bytes[tensor] * rates[tensor, device], clock)


def star_scores(
    problem: OperatorProblem, placements: IntArray, calls: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Shape (k,) each: seconds, ``inf`` where a call would wait for itself, and bytes over.

    Parameters
    ----------
    placements
        Shape (k, n), devices that can run the operators.
    calls
        Shape (k, n), the call of each operator, without gaps; ``None`` for the earliest ones.
    """
    p, rows = problem, np.ascontiguousarray(placements, dtype=np.int64)
    held = np.ceil(p.resident_bytes)
    resident = np.array([np.bincount(row, held, p.m) for row in rows]).reshape(-1, p.m)
    over = np.maximum(0, resident.astype(np.int64) - room_bytes(p)).sum(axis=1)
    refused = ~np.isfinite(p.compute_s[np.arange(p.n), rows]).all(axis=1)
    if not is_star_latency(p):
        value_s = np.array([star_value(p, OperatorPlan(row)) for row in rows])
    elif calls is None:
        unit = np.array([units(p, OperatorPlan(row)) for row in rows]).reshape(rows.shape)
        value_s = _ends(calls_of(p), rows, unit)
    else:
        unit = np.where(accelerators(p)[rows], rows * most_calls(p) + calls, -1)
        value_s = _ends(calls_of(p), rows, thawed(unit))
    return np.where(refused, np.inf, value_s), over


@njit_cached
def _ends(c: StarCalls, placements: IntArray, unit: IntArray) -> FloatArray:
    """When the last operator of each placement ends, ``inf`` where one waits for itself."""
    value_s = np.zeros(len(placements))
    for k in range(len(placements)):
        ready_s, _, _ = simulate_calls(c, placements[k], unit[k])
        for end_s in ready_s:
            # ``max`` keeps its first argument where the second is ``nan``.
            if np.isnan(end_s):
                value_s[k] = np.inf
            value_s[k] = max(value_s[k], end_s)
    return value_s
