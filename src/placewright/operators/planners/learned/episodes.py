"""Episodes of DOPPLER, compiled: one ready operator after the other gets a device.

An episode keeps an estimated schedule, from which the features of each device come. Devices are
chosen by a policy's network, by the rule of a critical-path teacher, or given by a known placement.
The trace of choices and features lets a network compute their likelihood afterwards in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_nogil
from placewright.operators.costs import groups_of
from placewright.operators.planners.annealing import draw, group_members
from placewright.operators.planners.learned.calls import over_links
from placewright.operators.problem import OperatorProblem

DEVICE_FEATURES = (
    "load",
    "free from",
    "inputs there at",
    "start",
    "end, above the least",
    "transfers in",
    "siblings there",
    "compute time",
    "share of inputs there",
    "memory used",
)
LOAD, FREE, INPUTS, START, END, SENT, SIBLINGS, COMPUTE, SHARE, MEMORY = range(10)
"""Columns of `EpisodeTrace.seen`. A sibling of v makes another input of a consumer of v: where it
is, that consumer will want v's output to be."""

RULES = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.25), (0.5, 0.0), (1.0, 1.0), (1.0, 0.25))
"""Weights of siblings and of transfers in rules of critical-path teachers."""

NO_RULE, NOT_FORCED = np.zeros(0), np.zeros(0, dtype=np.int64)
"""Where a policy decides; where devices are chosen."""

FINE = 1 << 24
"""Steps of a random number in [0, 1)."""


@by_reference
class EpisodeInstance(NamedTuple):
    """The arrays of a problem that episodes need. Edges are pairs of a tensor and a consumer.

    Attributes
    ----------
    out_start, out_edge, in_start, in_edge
        CSR by operator; `source` and `target` are the ends of each edge.
    priority
        Shape (n,), upward rank: mean compute times and mean transfers, seconds.
    unit_s, whole_s
        Seconds of a typical heavy operator, and of all work over the devices.
    by_load
        Whether starts ignore inputs, as in the released code.
    """

    compute_s: FloatArray
    source: IntArray
    target: IntArray
    edge_bytes: FloatArray
    out_start: IntArray
    out_edge: IntArray
    in_start: IntArray
    in_edge: IntArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    group: IntArray
    allowed: BoolArray
    resident_bytes: FloatArray
    memory_bytes: FloatArray
    topological: IntArray
    priority: FloatArray
    mean_s: FloatArray
    edge_s: FloatArray
    unit_s: float
    whole_s: float
    by_load: bool


@by_reference
class EpisodeTrace(NamedTuple):
    """Choices and features of an episode, by operator; written by `simulate_episode`.

    Attributes
    ----------
    place, step, ready
        Shape (n,): device; when it was chosen, and from which step on it could have been.
    seen
        Shape (n, m, features): features of each device when the operator was placed.
    open
        Shape (n, m): devices that could be chosen.
    """

    place: IntArray
    step: IntArray
    ready: IntArray
    seen: FloatArray
    open: BoolArray


class EncodedPolicy(NamedTuple):
    """A policy's encoding: scores of operators, and a network from device features to logits.

    ``logit = seen @ linear + relu(node[v] + seen @ hidden + mean of node_sum) @ out``
    """

    score: FloatArray
    node: FloatArray
    held: FloatArray
    hidden: FloatArray
    out: FloatArray
    linear: FloatArray


def no_policy(n: int) -> EncodedPolicy:
    """Zeros, for episodes in which a rule or a placement decides."""
    wide = np.zeros((n, 1))
    features = len(DEVICE_FEATURES)
    return EncodedPolicy(
        np.zeros(n), wide, wide, np.zeros((features, 1)), np.zeros(1), np.zeros(features)
    )


def episode_instance(problem: OperatorProblem, *, by_load: bool = False) -> EpisodeInstance:
    """The arrays of a problem."""
    p, groups = problem, groups_of(problem)
    source, target = p.consumed_from, np.array(p.consumers)
    size = p.tensor_bytes[p.consumed]
    out, into = group_members(source, p.n), group_members(target, p.n)
    latency_s, seconds_per_byte = over_links(p)
    pairs = ~np.eye(p.m, dtype=np.bool_) & np.isfinite(seconds_per_byte + latency_s)
    latency = float(latency_s[pairs].mean()) if pairs.any() else 0.0
    per_byte = float(seconds_per_byte[pairs].mean()) if pairs.any() else 0.0
    finite = np.isfinite(p.compute_s)
    mean_s = np.where(finite, p.compute_s, 0.0).sum(axis=1) / finite.sum(axis=1)
    edge_s = latency + size * per_byte
    rank = np.zeros(p.n)
    for i in p.topology.order[::-1].tolist():
        edges = out[1][out[0][i] : out[0][i + 1]]
        rank[i] = mean_s[i] + max((edge_s[e] + rank[target[e]] for e in edges.tolist()), default=0)
    # The root of the mean square: many small operators hardly count. Never zero, as it divides.
    unit = float(np.sqrt((mean_s**2).mean())) or float(edge_s.max(initial=0.0)) or 1.0
    return EpisodeInstance(
        thawed(p.compute_s),
        source,
        target,
        size,
        *out,
        *into,
        thawed(latency_s),
        thawed(seconds_per_byte),
        groups.group,
        groups.allowed,
        thawed(p.resident_bytes),
        thawed(p.memory_bytes),
        thawed(p.topology.order),
        rank,
        mean_s,
        edge_s,
        unit,
        float(mean_s.sum()) / p.m or 1.0,
        by_load,
    )


def new_trace(n: int, m: int) -> EpisodeTrace:
    """An empty trace."""
    return EpisodeTrace(
        place=np.zeros(n, dtype=np.int64),
        step=np.zeros(n, dtype=np.int64),
        ready=np.zeros(n, dtype=np.int64),
        seen=np.zeros((n, m, len(DEVICE_FEATURES))),
        open=np.zeros((n, m), dtype=np.bool_),
    )


@njit_nogil
def simulate_episode(
    b: EpisodeInstance,
    policy: EncodedPolicy,
    rule: FloatArray,
    forced: IntArray,
    noise: float,
    random: IntArray,
    t: EpisodeTrace,
) -> None:
    """Run one episode and record it in `t`.

    Parameters
    ----------
    rule
        Weights of siblings and of transfers in the teacher's rule, least ``end - w0 siblings +
        w1 transfers`` (in units); empty where `policy` decide.
    forced
        Shape (n,), the device of each operator; empty where they are chosen.
    noise
        Scale of Gumbel noise on scores and logits; 1 draws from the policy, 0 takes its best.
    random
        One number, the random state.
    """
    n, m = b.compute_s.shape
    end, free, load = np.zeros(n), np.zeros(m), np.zeros(m)
    used, held = np.zeros(m), np.zeros((m, policy.held.shape[1]))
    count, home = np.zeros(m), np.full(len(b.allowed), -1)
    missing, ready, size = np.zeros(n, dtype=np.int64), np.empty(n, dtype=np.int64), 0
    key = np.empty(n)
    ranked = len(rule) > 0 or len(forced) > 0  # scores are seconds: no noise
    t.place[:] = -1
    for i in b.topological:
        missing[i] = b.in_start[i + 1] - b.in_start[i]
        if missing[i] == 0:
            ready[size] = i
            t.ready[i] = 0
            size += 1
    for step in range(n):
        best = 0
        for x in range(size):
            i = ready[x]
            key[x] = policy.score[i]
            if noise > 0 and not ranked:
                key[x] += noise * _gumbel(random)
            if key[x] > key[best]:
                best = x
        v = ready[best]
        size -= 1
        # Moved up, not swapped: the order of `ready` decides ties and which noise an operator
        # draws.
        for x in range(best, size):
            ready[x] = ready[x + 1]
        t.step[v] = step
        g = b.group[v]
        _write_features(b, v, end, free, load, used, t)
        for d in range(m):
            t.open[v, d] = b.allowed[g, d] and (home[g] < 0 or home[g] == d)
        if len(forced) > 0:
            d = forced[v]
        else:
            d = _choose(policy, rule, noise, random, held, count, v, t)
        t.place[v] = d
        home[g] = d
        # The estimated schedule itself: only the feature START ignores inputs where `by_load` is
        # set.
        start = max(free[d], t.seen[v, d, INPUTS] * b.whole_s)
        end[v] = start + b.compute_s[v, d]
        free[d] = end[v]
        load[d] += b.compute_s[v, d]
        used[d] += b.resident_bytes[v]
        held[d] += policy.held[v]
        count[d] += 1.0
        for x in range(b.out_start[v], b.out_start[v + 1]):
            j = b.target[b.out_edge[x]]
            missing[j] -= 1
            if missing[j] == 0:
                ready[size] = j
                # With `step` it says which operators could have been chosen at each step, so that
                # the likelihood of all choices is computed afterwards in one pass.
                t.ready[j] = step + 1
                size += 1


def ruled_episode(
    b: EpisodeInstance, siblings: float, transfers: float, noise: float, random: IntArray
) -> EpisodeTrace:
    """A critical-path teacher: highest rank first, best device by a rule; ties at random.

    `noise`: zero for ties by device.
    """
    n, m = b.compute_s.shape
    trace, policy = new_trace(n, m), no_policy(n)
    policy.score[:] = b.priority
    rule = np.array([siblings, transfers])
    simulate_episode(b, policy, rule, NOT_FORCED, noise, random, trace)
    return trace


def ruled_placements(
    problem: OperatorProblem, rules: Sequence[tuple[float, float]] = RULES
) -> IntArray:
    """Shape (rules, n): where critical-path teachers place operators, ties by device."""
    instance, random = episode_instance(problem), np.ones(1, dtype=np.int64)
    return np.stack([ruled_episode(instance, *rule, 0.0, random).place for rule in rules])


@njit_nogil
def _gumbel(random: IntArray) -> float:
    return -np.log(-np.log((draw(random, 0, FINE) + 0.5) / FINE))  # type: ignore[no-any-return]


@njit_nogil
def _write_features(
    b: EpisodeInstance,
    v: int,
    end: FloatArray,
    free: FloatArray,
    load: FloatArray,
    used: FloatArray,
    t: EpisodeTrace,
) -> None:
    """Features of every device for operator `v`."""
    m = b.compute_s.shape[1]
    inputs = b.in_start[v + 1] - b.in_start[v]
    least = np.inf
    for d in range(m):
        arrive, sent, share, siblings = 0.0, 0.0, 0.0, 0.0
        for x in range(b.in_start[v], b.in_start[v + 1]):
            e = b.in_edge[x]
            a = t.place[b.source[e]]
            took = 0.0
            if a == d:
                share += 1.0
            else:
                took = b.latency_s[a, d] + b.edge_bytes[e] * b.seconds_per_byte[a, d]
            # Features must stay finite for the network: a hundred times all work stands for never.
            if took == np.inf:
                took = 100.0 * b.whole_s
            sent += took
            arrive = max(arrive, end[b.source[e]] + took)
        for x in range(b.out_start[v], b.out_start[v + 1]):
            e = b.out_edge[x]
            c = b.target[e]
            for y in range(b.in_start[c], b.in_start[c + 1]):
                f = b.in_edge[y]
                if f != e and t.place[b.source[f]] == d:
                    siblings += min(b.edge_s[e], b.edge_s[f])
        compute = b.compute_s[v, d]
        if compute == np.inf:
            compute = 100.0 * b.whole_s
        start = load[d] if b.by_load else max(free[d], arrive)
        s = t.seen[v, d]
        s[LOAD], s[FREE], s[INPUTS] = load[d] / b.whole_s, free[d] / b.whole_s, arrive / b.whole_s
        s[START], s[END] = start / b.whole_s, (start + compute) / b.unit_s
        s[SENT], s[SIBLINGS] = sent / b.unit_s, siblings / b.unit_s
        s[COMPUTE] = compute / b.unit_s
        s[SHARE] = share / inputs if inputs else 0.0
        # A device may have no memory at all, and compiled code raises where it divides by zero.
        s[MEMORY] = (used[d] + b.resident_bytes[v]) / max(b.memory_bytes[d], 1.0)
        least = min(least, s[END])
    for d in range(m):
        t.seen[v, d, END] -= least


@njit_nogil
def _choose(
    policy: EncodedPolicy,
    rule: FloatArray,
    noise: float,
    random: IntArray,
    held: FloatArray,
    count: FloatArray,
    v: int,
    t: EpisodeTrace,
) -> int:
    """The device of `v`, by the teacher's rule or by the policy's policy."""
    m, width = t.open.shape[1], len(policy.out)
    best, most = -1, -np.inf
    for d in range(m):
        if not t.open[v, d]:
            continue
        s = t.seen[v, d]
        value = 0.0
        if len(rule) > 0:
            value = rule[0] * s[SIBLINGS] - rule[1] * s[SENT] - s[END]
            # Too little to change an order, enough to break ties.
            value += 1e-6 * noise * draw(random, 0, FINE) / FINE
        else:
            for f in range(len(s)):
                value += s[f] * policy.linear[f]
            for h in range(width):
                x = policy.node[v, h]
                if count[d] > 0:
                    x += held[d, h] / count[d]
                for f in range(len(s)):
                    x += s[f] * policy.hidden[f, h]
                if x > 0:
                    value += x * policy.out[h]
            value += noise * _gumbel(random) if noise > 0 else 0.0
        if value > most:
            best, most = d, value
    return best
