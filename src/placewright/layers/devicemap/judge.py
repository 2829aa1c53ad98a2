"""What a device map is worth: seconds per token, tokens/s, time to first token, memory.

And `lower_bound_s`, which no device map can beat: every layer on some device, memory in sum, no
transfers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem
from placewright.numerics.arrays import FloatArray
from placewright.report.text import size


@dataclass(frozen=True, slots=True)
class RangeCost:
    """Bytes and seconds of one range.

    Attributes
    ----------
    over_bytes
        What it needs beyond the memory that the device may use, 0 where it fits.
    token_s
        Of one stream; `prefill_s` of one prompt.
    """

    weight_bytes: float
    disk_bytes: float
    cache_bytes: float
    workspace_bytes: float
    over_bytes: float
    token_s: float
    prefill_s: float

    @property
    def memory_bytes(self) -> float:
        """All that it keeps in memory."""
        return self.weight_bytes + self.cache_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True)
class MapJudgement:
    """The value of a plan.

    Attributes
    ----------
    problem
        What was asked.
    value
        Seconds per token of one stream, or seconds per token of all users together.
    token_s, tokens_per_s, first_token_s
        Of one stream alone; of all users at a time; of one prompt.
    groups
        Into how many groups the users are cut, one on each device at a time, for `tokens_per_s`.
    """

    problem: MapProblem
    plan: MapPlan
    value: float
    token_s: float
    tokens_per_s: float
    first_token_s: float
    groups: int
    costs: tuple[RangeCost, ...]

    @property
    def feasible(self) -> bool:
        """Whether every device has the memory, and there is a link where tokens or prompts pass."""
        return self.violation_size <= 0

    @property
    def violation(self) -> str:
        """The device that lacks most memory; empty where nothing is wrong."""
        if self.violation_size > 1:
            over, device = max(
                (cost.over_bytes, each.device)
                for each, cost in zip(self.plan.ranges, self.costs, strict=True)
            )
            return f"{size(over)} too much on {self.problem.cluster.devices[device].name}"
        return "devices without a link between them" if self.violation_size else ""

    @property
    def violation_size(self) -> float:
        """Bytes that are too much, and 1 where a link is missing."""
        over = sum(max(1.0, cost.over_bytes) for cost in self.costs if cost.over_bytes > 0)
        # Prompts pass cuts that no generated token passes, such as those of an encoder.
        linked = math.isfinite(self.value) and math.isfinite(self.first_token_s)
        return 1.0 + over if over else float(not linked)

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        return {
            "tokens/s of all users": (self.tokens_per_s, ""),
            "time per token of one stream": (self.token_s, "s"),
            "first token": (self.first_token_s, "s"),
        }

    def trace(self) -> None:
        """A token passes the devices one after another: there is no timeline."""
        return


def judge(problem: MapProblem, plan: MapPlan) -> MapJudgement:
    """The value of a plan.

    Raises `InputError`: its ranges are not all layers in order, or a device has two.
    """
    _check(problem, plan)
    costs = tuple(_cost(problem, each) for each in plan.ranges)
    token_s = step_s(problem, plan, 1)[0]
    first_s = sum(cost.prefill_s for cost in costs)
    hop_s = problem.hop_s(problem.prompt or 1)
    for a, b in zip(plan.ranges, plan.ranges[1:], strict=False):
        first_s += float(hop_s[a.device, b.device])
    first_s += float(problem.answer_s(1)[plan.ranges[-1].device])
    per_token_s, groups = min(
        (period_s(problem, plan, g) / problem.users, g) for g in group_counts(problem)
    )
    value = token_s if problem.objective == "latency" else per_token_s
    rate = 1.0 / per_token_s if per_token_s > 0 else math.inf
    return MapJudgement(problem, plan, value, token_s, rate, first_s, groups, costs)


def group_counts(problem: MapProblem) -> list[int]:
    """Numbers of groups that differ in the size of a group; more than devices gain nothing."""
    found: dict[int, int] = {}
    for groups in range(1, min(problem.users, problem.m) + 1):
        found.setdefault(-(-problem.users // groups), groups)
    return list(found.values())


def period_s(problem: MapProblem, plan: MapPlan, groups: int) -> float:
    """Seconds in which every user gets a token.

    A group of users passes the devices one after another and begins again when its token is known;
    groups follow each other, each device, each transfer and the process that chooses tokens
    serves one at a time. The period is the time of one passage, or that of the busiest of them for
    all groups.
    """
    users = -(-problem.users // groups)
    total, longest = step_s(problem, plan, users, busy=problem.users > 1)
    return max(total, groups * longest)


def step_s(
    problem: MapProblem, plan: MapPlan, users: int, *, busy: bool = False
) -> tuple[float, float]:
    """Seconds of one passage of so many users, and of its longest part.

    `busy`: other devices compute meanwhile.
    """
    decode_s, hop_s = problem.decode_s(users, busy=busy), problem.hop_s(users)
    visit_s = problem.visit_s(users, busy=busy)
    parts = []
    for k, each in enumerate(plan.ranges):
        parts.append(_stage_s(problem, each, decode_s, visit_s))
        if k:
            crossed = problem.crossed[each.start]
            parts.append(float(hop_s[plan.ranges[k - 1].device, each.device]) if crossed else 0.0)
    first, last = plan.ranges[0].device, plan.ranges[-1].device
    back_s = float(problem.return_s(users, busy=busy)[last, first])
    # Without measured times it is a latency, in which nobody is busy.
    longest = max(parts) if problem.times is None else max(*parts, back_s)
    return sum(parts) + back_s, longest


def _stage_s(
    problem: MapProblem, each: LayerRange, decode_s: FloatArray, visit_s: FloatArray
) -> float:
    """Seconds of a device for a step; a measured visit may be shorter than its layers."""
    own = float(decode_s[each.device, each.start : each.end].sum())
    return max(0.0, own + float(visit_s[each.device])) + _disk_s(problem, each, decoding=True)


def _disk_s(problem: MapProblem, each: LayerRange, *, decoding: bool) -> float:
    if not each.from_disk:
        return 0.0
    held = problem.held_bytes(each.start, each.end)
    layers = range(each.end - each.from_disk, each.end)
    read = sum(
        held[k - each.start] for k in layers if problem.model.layers[k].decodes or not decoding
    )
    return float(read * problem.disk_s_per_byte[each.device])


def _cost(problem: MapProblem, each: LayerRange) -> RangeCost:
    start, end, kept = each.start, each.end, each.end - each.start - each.from_disk
    held = problem.held_bytes(start, end)
    weights, disk = float(held[:kept].sum()), float(held[kept:].sum())
    buffer = float(held[kept:].max()) if each.from_disk else 0.0
    cache = float(problem.cache[start:end].sum())
    workspace = float(problem.workspace[start:end].max()) + buffer
    room = float(problem.capacity[each.device])
    # Sums of bytes are rounded: a plan that fits exactly must not fail by the last digit.
    over = weights + cache + workspace - room
    over = 0.0 if over <= 1e-9 * room else over
    prefill = float(problem.prefill_s[each.device, start:end].sum())
    return RangeCost(
        weights,
        disk,
        cache,
        workspace,
        over,
        _stage_s(problem, each, problem.decode_s(1), problem.visit_s(1)),
        prefill + _disk_s(problem, each, decoding=False),
    )


def _check(problem: MapProblem, plan: MapPlan) -> None:
    at, used = 0, set()
    for each in plan.ranges:
        wrong = each.start != at or not each.start < each.end <= problem.n
        if wrong or each.device in used or not 0 <= each.from_disk <= each.end - each.start:
            raise InputError(
                "ranges must be consecutive, each on a device of its own",
                where=f"{problem.model.name}: layers {each.start} to {each.end}",
                by=f"expected to begin at {at}",
                hint="give every layer to one device, in order",
            )
        at = each.end
        used.add(each.device)
    if at != problem.n:
        raise InputError(
            "a plan must place every layer",
            where=problem.model.name,
            by=f"{at} of {problem.n}",
            hint="give the last layers to a device, too",
        )


STEPS = 300
"""Of subgradients."""


def lower_bound_s(problem: MapProblem) -> float:
    """Seconds per token (of one stream, or of all users together) that no plan is below.

    Give every layer to any device, whole, and ask only that the bytes of weights and caches on a
    device be at most its memory. For prices q >= 0 of memory and p >= 0 of passages, sum 1 with
    those of the devices' loads, min over devices of (p's seconds + q's bytes), summed over layers,
    less q's memory, is a lower bound by weak duality; subgradient steps raise it. For one stream
    the load is the sum of all devices. With groups of users the period is at least the passage
    and `groups` times the load of each device. Weights from disk need no memory and take the time
    to read them. Transfers, workspaces and the order of layers are left out.
    """
    if problem.objective == "latency":
        return _dual(problem, 1, 1)
    return min(period_bound_s(problem, groups) for groups in group_counts(problem)) / problem.users


def period_bound_s(problem: MapProblem, groups: int) -> float:
    """Lower bound on the period with this number of groups."""
    return _dual(problem, -(-problem.users // groups), groups)


def _dual(problem: MapProblem, users: int, groups: int) -> float:
    """Lower bound on max(sum of all seconds, groups x the busiest device's seconds)."""
    m, n = problem.m, problem.n
    seconds = problem.decode_s(users, busy=problem.busy)
    held = problem.weights - problem.shared + problem.cache
    decoded = np.array([layer.decodes for layer in problem.model.layers])
    read = np.where(decoded, problem.weights, 0.0)
    with_disk = np.flatnonzero(np.isfinite(problem.disk_s_per_byte))
    rows = [seconds, seconds[with_disk] + read * problem.disk_s_per_byte[with_disk, None]]
    time = np.concatenate(rows)  # (m + disks, n)
    of = np.concatenate([np.arange(m), with_disk])
    memory = np.concatenate([np.ones(m), np.zeros(len(with_disk))])[:, None] * held
    room = np.where(np.isfinite(problem.capacity), problem.capacity, held.sum())
    scale = max(float(time.min(axis=0).sum()), 1e-30)
    price = np.zeros(m)  # seconds per share of a device's memory
    share = np.zeros(m)  # of the loads, beside 1 - sum for the passage
    if groups > 1:
        share = _by_speed(seconds)
    best = 0.0
    for step in range(1, STEPS + 1):
        passage = max(0.0, 1.0 - share.sum())
        cost = time * (passage + groups * share[of])[:, None]
        cost = cost + memory * (price / room)[of][:, None]
        chosen = cost.argmin(axis=0)
        best = max(best, float(cost[chosen, np.arange(n)].sum() - price.sum()))
        used = np.bincount(of[chosen], memory[chosen, np.arange(n)], m) / room - 1.0
        price = np.maximum(0.0, price + scale / step**0.7 * used)
        if groups > 1:
            load = np.bincount(of[chosen], time[chosen, np.arange(n)], m)
            slope = (groups * load - load.sum()) / scale
            share = np.maximum(0.0, share + 0.1 / step**0.7 * slope)
            share = share / max(1.0, share.sum())
    # A device takes less than its layers by this much at most, and `groups` times that in a period.
    visit_s = problem.visit_s(users, busy=problem.busy)
    return max(0.0, best + groups * float(np.minimum(visit_s, 0.0).sum()))


def _by_speed(seconds: FloatArray) -> FloatArray:
    """Shares proportional to the devices' speeds on the whole model."""
    speed = 1.0 / np.maximum(seconds.sum(axis=1), 1e-30)
    found: FloatArray = speed / speed.sum()
    return found
