"""Throughput: the loads of devices and channels per sample (rules L1 to L7).

Over links, a device pays for its compute and a channel for what it carries: they work side by
side. Through host memory (star), a device pays for its compute and for every tensor that enters or
leaves it. Pipelines may have stages on several devices and passes that do not mix
(`OperatorProblem.pipeline`). Without these, loads over links are compiled:
`placewright.operators.simulation.rounds.period`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import linked
from placewright.operators.judgement import OperatorJudgement, violation_words
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.operators.sizes import room_bytes


@dataclass(frozen=True, slots=True, eq=False)
class StarLoads:
    """Seconds per sample on each device, shape (m,); incoming and outgoing tensors, (t, m)."""

    compute_s: FloatArray
    transfer_s: FloatArray
    sync_s: FloatArray
    entering: BoolArray
    leaving: BoolArray

    @property
    def load_s(self) -> FloatArray:
        """Compute, transfers and synchronisation."""
        return self.compute_s + self.transfer_s + self.sync_s


def star_value(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The largest load, or the sum of the largest of each pass (rule L4)."""
    if not problem.pipeline.diffmaxima:
        return float(star_loads(problem, plan).load_s.max())
    passes = (star_loads(problem, plan, late=late) for late in (False, True))
    return float(sum(part.load_s.max() for part in passes))


def star_loads(
    problem: OperatorProblem, plan: OperatorPlan, *, late: bool | None = None
) -> StarLoads:
    """Loads through host memory; with `late`, those of the backward or the forward pass alone."""
    p, place = problem, plan.placement
    entering, leaving = _crossings(p, place)
    took = p.compute_s[np.arange(p.n), place]
    tensor, device = np.nonzero(entering | leaving)
    paid = p.tensor_bytes[tensor] * host_rates(p, place)[tensor, device]
    if late is not None:
        took = np.where(p.is_backward == late, took, 0.0)
        paid = np.where(p.is_backward[p.tensor_producer[tensor]] == late, paid, 0.0)
    leader, copies = stages(p, plan)
    compute = np.bincount(place, took, minlength=p.m).astype(np.float64)
    transfer = np.bincount(device, paid, minlength=p.m).astype(np.float64)
    return StarLoads(
        compute_s=(compute / copies)[leader],
        transfer_s=(transfer / copies)[leader],
        sync_s=np.zeros(p.m) if late is False else sync_s(p, plan),
        entering=entering,
        leaving=leaving,
    )


def stages(problem: OperatorProblem, plan: OperatorPlan) -> tuple[IntArray, IntArray]:
    """Shape (m,) each: the device whose stage each has, and on how many devices that stage is."""
    own = np.arange(problem.m)
    leader = own if plan.replica_of is None else plan.replica_of
    copies = np.bincount(leader, minlength=problem.m)[leader]
    return leader, copies


def shares(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Shape (m,): which part of the samples each device of a stage takes (rule L5)."""
    leader, copies = stages(problem, plan)
    if not problem.pipeline.by_speed:
        found: FloatArray = 1.0 / copies
        return found
    took = stage_s(problem, plan)
    speed = np.array([1.0 / s if s > 0 else 1.0 for s in took.tolist()])
    total = np.bincount(leader, speed, minlength=problem.m)[leader]
    part: FloatArray = speed / total
    return part


def stage_s(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Shape (m,): seconds that each device takes for the operators of its stage."""
    leader, _ = stages(problem, plan)
    # `cumsum` adds from left to right (rule N1), `sum` eight or more in pairs.
    rows = [problem.compute_s[plan.placement == leader[d], d] for d in range(problem.m)]
    return np.array([float(np.cumsum(row)[-1]) if len(row) else 0.0 for row in rows])


def sync_s(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Shape (m,): seconds per sample to keep copies equal (rule L5)."""
    leader, copies = stages(problem, plan)
    held = np.bincount(plan.placement, np.ceil(problem.resident_bytes), problem.m)[leader]
    ring: FloatArray = 2.0 * (copies - 1) / copies
    return ring * problem.pipeline.sync_seconds_per_byte * held


def host_rates(p: OperatorProblem, place: IntArray) -> FloatArray:
    """Shape (t, m): seconds per byte of each tensor on each device (rules L2 and L6)."""
    host = np.broadcast_to(p.host_seconds_per_byte, (p.t, p.m))
    if not p.pipeline.cluster:
        return host
    cluster = np.array(p.pipeline.cluster)
    touched = np.zeros((p.t, p.m), dtype=np.bool_)
    tensor = p.consumed
    touched[tensor, place[p.consumers]] = True
    touched[np.arange(p.t), place[p.tensor_producer]] = True
    same = (cluster[:, None] == cluster) & (cluster >= 0)
    # Devices that touch each tensor and are in the cluster of d: all of them, or the host rate.
    inside = touched.astype(np.int64) @ same
    within = (inside == touched.sum(axis=1)[:, None]) & (cluster >= 0)
    return np.where(within, cluster_rates(p), host)


def cluster_rates(problem: OperatorProblem) -> FloatArray:
    """Shape (m,): seconds per byte of tensors that stay in a device's cluster, if it is in one."""
    p, pipeline = problem, problem.pipeline
    if not pipeline.cluster:
        return p.host_seconds_per_byte
    within = np.minimum(np.array(pipeline.cluster_seconds_per_byte), p.host_seconds_per_byte)
    return np.where(np.array(pipeline.cluster) < 0, p.host_seconds_per_byte, within)


def _crossings(p: OperatorProblem, placement: IntArray) -> tuple[BoolArray, BoolArray]:
    """Shape (t, m) each: which tensors enter and which leave a device."""
    tensor = p.consumed
    home, reader = placement[p.tensor_producer], placement[p.consumers]
    away = reader != home[tensor]
    entering = np.zeros((p.t, p.m), dtype=np.bool_)
    entering[tensor[away], reader[away]] = True
    leaving = np.zeros((p.t, p.m), dtype=np.bool_)
    leaving[tensor[away], home[tensor[away]]] = True
    return entering, leaving


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoads:
    """Seconds per sample over links: of each device, shape (m,), and of each channel (rule L1)."""

    device_s: FloatArray
    channel_s: FloatArray

    def period_s(self, problem: OperatorProblem) -> float:
        """Seconds from one sample to the next, by what works side by side in this problem."""
        if problem.overlap is Overlap.SERIAL:
            # `cumsum` adds from left to right (rule N1), `sum` eight or more in pairs.
            return float(np.concatenate([self.device_s, self.channel_s]).cumsum()[-1])
        if problem.links is Links.FREE:
            return float(self.device_s.max())
        return float(max(self.device_s.max(), self.channel_s.max(initial=0.0)))


def link_period_s(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """As `star_value`, over links."""
    passes = (False, True) if problem.pipeline.diffmaxima else (None,)
    return sum(link_loads(problem, plan, late=late).period_s(problem) for late in passes)


def link_loads(
    problem: OperatorProblem, plan: OperatorPlan, *, late: bool | None = None
) -> LinkLoads:
    """Loads over links; with `late`, those of the backward or the forward pass alone.

    Sums run in the order of rule L3, so that without copies they are those of the kernel.
    """
    p, place = problem, plan.placement
    leader, copies = stages(p, plan)
    part = shares(p, plan)
    if p.pipeline.by_speed:
        device = stage_s(p, plan) * part
    else:
        took = p.compute_s[np.arange(p.n), place]
        took = took if late is None else np.where(p.is_backward == late, took, 0.0)
        device = (np.bincount(place, took, p.m) / copies)[leader].astype(np.float64)
    channel = np.zeros(len(p.channel_names))
    for k, a, b in zip(*_sent(p, place, late), strict=True):
        link = np.ix_(np.flatnonzero(leader == a), np.flatnonzero(leader == b))
        took = p.latency_s[link] + p.tensor_bytes[k] * p.seconds_per_byte[link]
        if p.pipeline.by_speed:
            took *= part[link[0]] * part[link[1]]
        else:
            took /= took.size
        np.add.at(channel, p.channel[link], took)
    return LinkLoads(device if late is False else device + sync_s(p, plan), channel)


def _sent(
    p: OperatorProblem, place: IntArray, late: bool | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Tensor, source and target of every transfer: tensors by index, targets by first reader."""
    tensor = p.consumed
    # Each use as one number, tensor * m + target; `first` is the first reader's place in the list.
    pairs, first = np.unique(tensor * p.m + place[p.consumers], return_index=True)
    sent = pairs[np.argsort(first)]
    tensor, target = sent // p.m, sent % p.m
    source = place[p.tensor_producer[tensor]]
    moved = source != target
    if late is not None:
        moved &= p.is_backward[p.tensor_producer[tensor]] == late
    return tensor[moved], source[moved], target[moved]


def is_pipeline(problem: OperatorProblem) -> bool:
    """Whether throughput is the objective, with copies of stages or passes that do not mix."""
    return problem.objective is Objective.THROUGHPUT and not problem.pipeline.plain


def as_pipeline(judgement: OperatorJudgement, plan: OperatorPlan) -> OperatorJudgement:
    """A judgement with the value of the pipeline; copies need the memory of their stage."""
    p = judgement.problem
    leader, _ = stages(p, plan)
    peak = judgement.peak_bytes[leader]
    over = np.maximum(0, peak - room_bytes(p))
    apart = _unlinked_copies(p, plan, leader)
    return replace(
        judgement,
        value=np.inf if apart else link_period_s(p, plan),
        peak_bytes=peak,
        feasible=not (over.any() or apart),
        violation="; ".join(x for x in (violation_words(p, over), apart) if x),
        violation_bytes=int(over.sum()),
    )


def _unlinked_copies(p: OperatorProblem, plan: OperatorPlan, leader: IntArray) -> str:
    """Which two devices of stages that exchange a tensor have no link; empty where all have one."""
    pair, names = linked(p), p.device_names
    for _, a, b in zip(*_sent(p, plan.placement, None), strict=True):
        ends = np.ix_(np.flatnonzero(leader == a), np.flatnonzero(leader == b))
        if not pair[ends].all():
            at = np.argwhere(~pair[ends])[0]
            return f"no link from {names[ends[0][at[0], 0]]!r} to {names[ends[1][0, at[1]]]!r}"
    return ""
