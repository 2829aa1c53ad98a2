"""Contiguous throughput: chains of down-sets of a contracted graph, and a CP-SAT model of stages.

The chain is found by dynamic programming, compiled.
``best[s, I]`` is the least max load with which the devices counted by state s can hold ideal I:
the minimum over kinds k and ideals J inside I of max(best[s - k, J], load of I - J on kind k).
With clusters, what stays in one is paid as if it left: the result is then an upper bound.
All J inside I are met by a walk that takes away one last node at a time, so that the load follows
in a few steps; a branch ends where its work or its bytes are too much for every kind. What a stage
holds is kept for every step of the walk: going back takes nothing off a sum, so no number, however
large, rounds the others away.

``le[v][s]``: node v is on one of the stages 0..s; a forward edge (u, v) says ``le[v][s] =>
le[u][s]``. Every stage is of one kind, or closed; stages are in the order of the chain, so that
nothing is left of the symmetry between devices that are alike. A hyperedge is cut by a stage that
holds some of its members and not all. With clusters, ``within[v][g]`` says that the stage of node
v is in cluster g; a stage there pays the host's rate instead of the cluster's for each hyperedge
that it touches and of which some member is outside g.

Loads are in whole numbers, rounded down, so that the least T is a lower bound. A load loses less
than one unit for each of its terms: that is what a proof of the least T leaves open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_inline
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.solvers.programs import run_cp_sat

MOST_CELLS = 40_000_000
"""States times ideals of a table: 24 bytes each."""
_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class IdealChain:
    """Stages of the nodes, shape (N,), the kind of each stage, the largest load."""

    value_s: float
    stage: IntArray
    kinds: tuple[int, ...]


class NoTimeLeftError(Exception):
    """The deadline came before the table was full."""


def best_chain(
    c: Contraction, lattice: IdealLattice, limit: float, deadline_s: float = float("inf")
) -> IdealChain | None:
    """The least max load of any chain in the lattice, ``None`` if none is within `limit`.

    Raises `NoTimeLeftError` (at the deadline).
    """
    states, loads = states_of(c.counts), loads_of(c)
    ideals = len(lattice.offsets) - 1
    best = np.full((len(states.digits), ideals), np.inf)
    # State s means at most these devices: with nothing to hold, none of them is loaded.
    best[:, 0] = 0.0
    came_from = np.zeros(best.shape, dtype=np.int64)
    came_by = np.zeros(best.shape, dtype=np.int64)
    seen = np.full(ideals, -1)
    for first in range(1, ideals, _BATCH):
        last = min(first + _BATCH, ideals)
        fill(lattice, loads, states, limit, first, last, best, came_from, came_by, seen)
        if time.perf_counter() > deadline_s:
            raise NoTimeLeftError
    state = int(best[:, -1].argmin())
    if not np.isfinite(best[state, -1]):
        return None
    value, at = float(best[state, -1]), ideals - 1
    from_end, kinds = np.full(c.nodes, -1), list[int]()
    while at > 0:
        below, kind = int(came_from[state, at]), int(came_by[state, at])
        from_end[_between(lattice, at, below)] = len(kinds)
        kinds.append(kind)
        state, at = state - int(loads.taken[kind]), below
    return IdealChain(value, len(kinds) - 1 - from_end, tuple(kinds[::-1]))


def lattice_of(c: Contraction, most: int, deadline_s: float = float("inf")) -> IdealLattice | None:
    """All ideals of the forward graph; ``None`` where there are more than `most`, or no time."""
    before = [0] * c.nodes
    for a, b in c.edges.tolist():
        # Ideals are bit masks of nodes; Python's whole numbers have as many bits as it takes.
        before[b] |= 1 << a
    position, layer = {0: 0}, [0]
    offsets, below, removed = [0, 0], list[int](), list[int]()
    for _ in range(c.nodes):
        links: dict[int, list[tuple[int, int]]] = {}
        for ideal in layer:
            for v in _addable(ideal, before, c.nodes):
                links.setdefault(ideal | 1 << v, []).append((position[ideal], v))
            if len(position) + len(links) > most or time.perf_counter() > deadline_s:
                return None
        # Layer by layer: ideals with one node more, each with all ways down from it.
        layer = list(links)
        for ideal, parts in links.items():
            position[ideal] = len(position)
            below += [part[0] for part in parts]
            removed += [part[1] for part in parts]
            offsets.append(len(below))
    return IdealLattice(*(np.array(x, dtype=np.int64) for x in (offsets, below, removed)))


def _addable(ideal: int, before: list[int], count: int) -> Iterator[int]:
    """Nodes outside whose producers are all inside."""
    left = ~ideal & ((1 << count) - 1)
    while left:
        low = left & -left
        v = low.bit_length() - 1
        if before[v] & ~ideal == 0:
            yield v
        left ^= low


def _between(lattice: IdealLattice, top: int, bottom: int) -> IntArray:
    """The nodes of `top` that are not in `bottom`."""
    return np.setdiff1d(_nodes(lattice, top), _nodes(lattice, bottom))


def _nodes(lattice: IdealLattice, ideal: int) -> IntArray:
    found = []
    while ideal > 0:
        found.append(int(lattice.removed[lattice.offsets[ideal]]))
        ideal = int(lattice.below[lattice.offsets[ideal]])
    return np.array(found, dtype=np.int64)


LARGEST = float(np.finfo(np.float64).max)
"""Seconds; more is ``inf``, which says that it cannot be."""


class IdealLattice(NamedTuple):
    """Ideals, smaller ones first, the empty one at 0, the full one last.

    `offsets`, `below`, `removed`: CSR: the ideals that lack one node of this one, and which.
    """

    offsets: IntArray
    below: IntArray
    removed: IntArray


class Loads(NamedTuple):
    """A contraction's arrays as the kernel reads them; ``work`` is ``inf`` where not allowed.

    ``taken[k]`` is what a stage of kind k adds to the number of a state.
    """

    work: FloatArray
    resident: FloatArray
    memory: FloatArray
    rate: FloatArray
    touch_offsets: IntArray
    touched: IntArray
    sizes: IntArray
    moved: FloatArray
    pool: IntArray
    copies: IntArray
    taken: IntArray


class States(NamedTuple):
    """Counts of used devices per pool as one number: ``sum(count[p] * stride[p])``."""

    digits: IntArray
    stride: IntArray


def loads_of(c: Contraction) -> Loads:
    """Hyperedges by node."""
    pairs = [(v, e) for e, members in enumerate(c.members) for v in members]
    by_node = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return Loads(
        work=c.work_s,
        resident=c.resident_bytes,
        memory=c.memory_bytes,
        rate=c.host_rate,
        touch_offsets=np.searchsorted(by_node[:, 0], np.arange(c.nodes + 1)).astype(np.int64),
        touched=np.ascontiguousarray(by_node[:, 1]),
        sizes=np.array([len(members) for members in c.members], dtype=np.int64),
        moved=c.moved_bytes,
        pool=np.ascontiguousarray(c.pool),
        copies=np.ascontiguousarray(c.copies),
        taken=states_of(c.counts).stride[c.pool] * c.copies,
    )


def states_of(counts: tuple[int, ...]) -> States:
    """Every way to use up to `counts` devices of each pool."""
    # Mixed radix: digit p of a state's number counts used devices of pool p.
    sizes = np.array(counts) + 1
    stride = np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64)
    numbers = np.arange(int(np.prod(sizes)))
    digits = (numbers[:, None] // stride) % sizes
    return States(np.ascontiguousarray(digits, dtype=np.int64), stride)


def chain(order: IntArray) -> IdealLattice:
    """The lattice of a line: its ideals are its prefixes."""
    count = len(order)
    offsets = np.concatenate([[0], np.arange(count + 1)]).astype(np.int64)
    return IdealLattice(offsets, np.arange(count), np.asarray(order, dtype=np.int64))


@njit_cached
def fill(
    lattice: IdealLattice,
    loads: Loads,
    states: States,
    limit: float,
    first: int,
    last: int,
    best: FloatArray,
    came_from: IntArray,
    came_by: IntArray,
    seen: IntArray,
) -> None:
    """Fill columns `first` to `last` of `best` with choices that load no device above `limit`."""
    nodes, kinds = loads.work.shape
    inside = np.zeros(len(loads.sizes), dtype=np.int64)
    work, load = np.zeros((nodes + 1, kinds)), np.zeros(kinds)
    held, moved, lost = np.zeros(nodes + 1), np.zeros(nodes + 1), np.zeros(nodes + 1)
    limit = min(limit, LARGEST)
    stack = np.zeros(nodes + 1, dtype=np.int64)
    cursor = np.zeros(nodes + 1, dtype=np.int64)
    # A depth-first walk from `ideal` down: `stack` has the ideals on the way, `cursor` where each
    # of them goes on. Row `depth` of `work`, `held`, `moved` and `lost` is what the stage holds
    # that was taken off `ideal` so far.
    for ideal in range(first, last):
        inside[:] = 0
        depth = 0
        stack[0], cursor[0] = ideal, lattice.offsets[ideal]
        while depth >= 0:
            at = stack[depth]
            # All below `at` is done: put the node back whose removal led here.
            if cursor[depth] == lattice.offsets[at + 1]:
                depth -= 1
                if depth >= 0:
                    v = lattice.removed[cursor[depth] - 1]
                    for x in range(loads.touch_offsets[v], loads.touch_offsets[v + 1]):
                        inside[loads.touched[x]] -= 1
                continue
            step = cursor[depth]
            cursor[depth] += 1
            below, v = lattice.below[step], lattice.removed[step]
            # Each ideal below is met once, whichever way leads to it: the stage is the same set.
            if seen[below] == ideal:
                continue
            seen[below] = ideal
            more = depth + 1
            held[more] = held[depth] + loads.resident[v]
            open_kinds = 0
            for k in range(kinds):
                work[more, k] = work[depth, k] + loads.work[v, k]
                if work[more, k] <= limit and held[more] <= loads.memory[k]:
                    open_kinds += 1
            # Work and bytes only grow further down, so that no kind opens again. What is moved may
            # shrink, and ends no branch.
            if open_kinds == 0:
                continue
            total, rest = moved[depth], lost[depth]
            for x in range(loads.touch_offsets[v], loads.touch_offsets[v + 1]):
                e = loads.touched[x]
                # A hyperedge is paid for while some of its members, and not all, are in the stage.
                if inside[e] == 0:
                    total, rest = _plus(total, rest, loads.moved[e])
                inside[e] += 1
                if inside[e] == loads.sizes[e]:
                    total, rest = _plus(total, rest, -loads.moved[e])
            moved[more], lost[more] = total, rest
            for k in range(kinds):
                load[k] = work[more, k] + (total + rest) * loads.rate[k]
                if held[more] > loads.memory[k] or load[k] > limit:
                    load[k] = np.inf
            _relax(states, loads, load, ideal, below, best, came_from, came_by)
            depth = more
            stack[depth], cursor[depth] = below, lattice.offsets[below]


@njit_inline
def _plus(total: float, lost: float, x: float) -> tuple[float, float]:
    """One more term of a sum, and of what rounding has lost of it (Knuth's two-sum).

    A hyperedge far larger than the rest comes and goes, and leaves the rest as it was.
    """
    rounded = total + x
    kept = rounded - total
    return rounded, lost + ((total - (rounded - kept)) + (x - kept))


@njit_cached
def _relax(
    states: States,
    loads: Loads,
    load: FloatArray,
    ideal: int,
    below: int,
    best: FloatArray,
    came_from: IntArray,
    came_by: IntArray,
) -> None:
    for k in range(len(load)):
        if load[k] == np.inf:
            continue
        for s in range(len(states.digits)):
            if states.digits[s, loads.pool[k]] < loads.copies[k]:
                continue
            # Columns of smaller ideals are complete: ideals are numbered by size.
            value = max(best[s - loads.taken[k], below], load[k])
            if value < best[s, ideal]:
                best[s, ideal] = value
                came_from[s, ideal] = below
                came_by[s, ideal] = k


RESOLUTION = 2.0**25
"""Whole numbers up to the incumbent's load. Not more: the presolve of CP-SAT (9.15) has called
feasible models infeasible where coefficients were 2**30 and larger."""


@dataclass(frozen=True, slots=True, eq=False)
class _StageModel:
    """The CP-SAT model and its variables: ``below[v][s]``, ``on[v][s]``, ``kind[s][k]``.

    ``far[g][e][s]``: if stage s is in cluster g, it touches hyperedge e, which leaves g.
    """

    model: Any
    below: list[list[Any]]
    on: list[list[Any]]
    kind: list[list[Any]]
    cut: list[list[Any]]
    far: dict[int, list[list[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What CP-SAT found.

    Attributes
    ----------
    chain
        The best chain, its value is left to others; ``None`` where there is none.
    bound_s
        No chain has a smaller largest load.
    resolution_s
        Where the search came to its end: the most that rounding can have taken from the load of
        `chain`, so that its value is at most ``bound_s + resolution_s``; else zero.
    interrupted
        Whether Ctrl-C came.
    """

    chain: IdealChain | None
    bound_s: float
    resolution_s: float = 0.0
    interrupted: bool = False


def best_stages(
    c: Contraction, start: IdealChain | None, *, seed: int, deadline_s: float, workers: int
) -> Stages:
    """The best chain of stages, and what is proved about it.

    `start`: a chain whose value, which is that of `c`, no better one exceeds.
    """
    top = c.most_s if start is None else start.value_s
    scale = RESOLUTION / top if top > 0 else 1.0
    m = _build(c, top, scale)
    if start is not None:
        _hint(c, m, start)
    answer = run_cp_sat(m.model, seed=seed, deadline_s=deadline_s, workers=workers)
    # Presolve has been wrong before on large coefficients (see `RESOLUTION`).
    if answer.infeasible and start is not None:  # which the start disproves
        answer = run_cp_sat(
            m.model, seed=seed, deadline_s=deadline_s, workers=workers, presolve=False
        )
    if answer.values is None:
        return Stages(None, answer.bound / scale, interrupted=answer.interrupted)
    stage = [next(s for s, x in enumerate(row) if answer.values(x)) for row in m.on]
    kinds = [next((k for k, x in enumerate(row) if answer.values(x)), -1) for row in m.kind]
    lost_s = _terms(c) / scale if answer.proved else 0.0
    return Stages(_chain(stage, kinds), answer.bound / scale, lost_s, answer.interrupted)


def _terms(c: Contraction) -> int:
    """The most terms that the objective can have: each loses less than one unit."""
    rates = 2 if (c.cluster >= 0).any() else 1
    return (c.nodes + rates * len(c.members)) * (2 if c.diffmaxima else 1)


def _chain(stage: list[int], kinds: list[int]) -> IdealChain:
    """Without the stages that nothing is on."""
    used = sorted(set(stage))
    return IdealChain(
        math.inf,
        np.array([used.index(s) for s in stage], dtype=np.int64),
        tuple(kinds[s] for s in used),
    )


def _build(c: Contraction, top: float, scale: float) -> _StageModel:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    stages, kinds = sum(c.counts), len(c.pool)
    most = int(top * scale) + 1
    parts = [model.new_int_var(0, most, "") for _ in range(2 if c.diffmaxima else 1)]
    m = _StageModel(
        model,
        [[model.new_bool_var("") for _ in range(stages - 1)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(kinds)] for _ in range(stages)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in c.members],
        {},
    )
    _order(c, m)
    _kinds(c, m)
    _cuts(c, m)
    for g in sorted({*c.cluster.tolist()} - {-1}):
        _leave(c, m, g)
    backward_s, sent = c.backward_s, c.backward_bytes
    forward = c.work_s - np.where(np.isfinite(c.work_s), backward_s, 0.0), c.moved_bytes - sent
    passes = (forward, (backward_s, sent)) if c.diffmaxima else ((c.work_s, c.moved_bytes),)
    for s in range(stages):
        for k in range(kinds):
            for part, (work, moved) in zip(parts, passes, strict=True):
                _load(c, m, (s, k), (work[:, k] * scale, moved * scale), part)
            _memory(c, m, s, k)
    model.minimize(sum(parts))
    return m


def _order(c: Contraction, m: _StageModel) -> None:
    stages = len(m.kind)
    for v in range(c.nodes):
        # `below[v]` rises from 0 to 1 once: the step is the stage that v is on.
        edge = [0, *m.below[v], 1]
        for s in range(stages):
            m.model.add(m.on[v][s] == edge[s + 1] - edge[s])
        for s in range(stages - 2):
            m.model.add_implication(m.below[v][s], m.below[v][s + 1])
    for u, v in c.edges.tolist():
        for s in range(stages - 1):
            m.model.add_implication(m.below[v][s], m.below[u][s])


def _kinds(c: Contraction, m: _StageModel) -> None:
    """Stages of a kind, or closed: then nothing is on them, and so on none after them."""
    for s, row in enumerate(m.kind):
        m.model.add_at_most_one(row)
        for v in range(c.nodes):
            m.model.add_bool_or([*row, ~m.on[v][s]])
        if s:
            m.model.add(sum(row) <= sum(m.kind[s - 1]))
    for p, count in enumerate(c.counts):
        taken = [
            int(c.copies[k]) * row[k]
            for row in m.kind
            for k in np.flatnonzero(c.pool == p).tolist()
        ]
        m.model.add(sum(taken) <= count)


def _cuts(c: Contraction, m: _StageModel) -> None:
    for members, cut in zip(c.members, m.cut, strict=True):
        one = members[0]
        for other in members[1:]:
            for s, x in enumerate(cut):
                m.model.add_bool_or([~m.on[one][s], m.on[other][s], x])
                m.model.add_bool_or([~m.on[other][s], m.on[one][s], x])


def _leave(c: Contraction, m: _StageModel, g: int) -> None:
    """Which hyperedges that a stage in cluster g touches have members outside of g."""
    inside = [sum(row[k] for k in np.flatnonzero(c.cluster == g).tolist()) for row in m.kind]
    within = [m.model.new_bool_var("") for _ in range(c.nodes)]
    for v, x in enumerate(within):
        for s, there in enumerate(inside):
            m.model.add(x == there).only_enforce_if(m.on[v][s])
    m.far[g] = [[m.model.new_bool_var("") for _ in m.kind] for _ in c.members]
    for members, row in zip(c.members, m.far[g], strict=True):
        for s, x in enumerate(row):
            for v in members:
                for u in members:
                    if u != v:
                        m.model.add_bool_or([~m.on[v][s], within[u], x])


def _load(
    c: Contraction,
    m: _StageModel,
    at: tuple[int, int],
    costs: tuple[FloatArray, FloatArray],
    largest: Any,
) -> None:
    """Work and cut hyperedges of stage s are within T where it is of kind k; costs are scaled."""
    from ortools.sat.python import cp_model

    (s, k), (work, moved) = at, costs
    terms: list[tuple[Any, int]] = []
    top = RESOLUTION * (1 + 1e-9)
    for v in range(c.nodes):
        # Too much alone, so that no coefficient is above `RESOLUTION`.
        if work[v] > top:
            m.model.add_implication(m.on[v][s], ~m.kind[s][k])
        else:
            terms.append((m.on[v][s], int(work[v])))
    g, far_rate = int(c.cluster[k]), float(c.host_rate[k])
    near_rate = far_rate if g < 0 else min(far_rate, float(c.cluster_rate[k]))
    near = _units(moved * near_rate)
    terms += [(cut[s], cost) for cut, cost in zip(m.cut, near, strict=True)]
    if g >= 0:
        # What leaves the cluster pays the near rate as a cut and the rest here.
        more = _units(moved * (far_rate - near_rate))
        terms += [(far[s], cost) for far, cost in zip(m.far[g], more, strict=True)]
    some = [(x, cost) for x, cost in terms if cost > 0]
    load = cp_model.LinearExpr.weighted_sum([x for x, _ in some], [cost for _, cost in some])
    m.model.add(load <= largest).only_enforce_if(m.kind[s][k])


def _units(scaled: FloatArray) -> list[int]:
    """Rounded down; just too many for any stage where it is more than that."""
    units: list[int] = np.minimum(scaled, 2 * RESOLUTION).astype(np.int64).tolist()
    return units


def _memory(c: Contraction, m: _StageModel, s: int, k: int) -> None:
    if c.resident_bytes.sum() <= c.memory_bytes[k]:
        return
    need = [int(b) for b in c.resident_bytes]
    held = sum(b * m.on[v][s] for v, b in enumerate(need) if b)
    m.model.add(held <= int(c.memory_bytes[k])).only_enforce_if(m.kind[s][k])


def _hint(c: Contraction, m: _StageModel, start: IdealChain) -> None:
    kinds = [*start.kinds, *([-1] * (len(m.kind) - len(start.kinds)))]
    for v, at in enumerate(start.stage.tolist()):
        for s, x in enumerate(m.on[v]):
            m.model.add_hint(x, at == s)
        for s, x in enumerate(m.below[v]):
            m.model.add_hint(x, at <= s)
    for s, row in enumerate(m.kind):
        for k, x in enumerate(row):
            m.model.add_hint(x, kinds[s] == k)
    for members, row in zip(c.members, m.cut, strict=True):
        for s, x in enumerate(row):
            inside = sum(int(start.stage[v]) == s for v in members)
            m.model.add_hint(x, 0 < inside < len(members))
