"""Exact throughput of pipelines over links.

Annealing looks for a start: one node at a time goes to another device, compiled.
The energy is the sum over devices and channels, and over passes where they do not mix, of
(load / scale) to a high power, which follows the largest load and still sees the others. Moves that
overfill a memory, that need a link that is not there, or that close a cycle between devices where
plans must be contiguous, are not made.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.annealing import csr, energy_rise, pick_node
from placewright.operators.planners.contiguous_dp import line_or_none
from placewright.operators.planners.pipelines.contraction import contract
from placewright.operators.planners.pipelines.links import (
    Pairs,
    best_pairs,
    contract_pairs,
    star_stand_in,
    too_large,
)
from placewright.operators.problem import Objective, OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Proposal
from placewright.report.text import size
from placewright.solvers.programs import installed, missing

_ROUNDS = 4
"""How often memories are made smaller where a plan's tensors do not fit beside what lives there."""

STARTS = 0.25
"""Share of the time, at most, for what the program starts from."""


@final
@dataclass(frozen=True, slots=True)
class ExactLinks:
    """Optimal throughput over links, contiguous or not.

    A mixed-integer program (`pipelines.links`) after Tarnawski et al., NeurIPS 2020, arXiv
    2006.16423, section 5.1, in whose place every tensor has a price for each pair of devices,
    solved by HiGHS. It starts from the best of: the plan at hand, single devices, and lines cut for
    stand-ins around host memory (`star_stand_in`), each annealed on the loads, in a quarter of the
    time. Where plans need not be contiguous, contiguous ones are tried first.

    The program counts resident bytes of a device, not the tensors of one sample that pass through.
    Where the judged peaks do not fit, the program is solved again with that much less
    memory; the bound is always that of the first program, which every plan that fits obeys.

    `moves`: of annealing, per node.
    """

    name: ClassVar[str] = "exact-links"
    moves: int = 2_000

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Throughput over links."""
        if problem.objective is not Objective.THROUGHPUT:
            return f"plans for throughput, not for {problem.objective}"
        if problem.pipeline.replication:
            return "does not support replicated stages over links"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan, with what was proved; raises `InfeasibleError`: no plan fits the memories."""
        tried, bound = _Tried(problem), 0.0
        # In ``auto`` other planners come after this one.
        if context.incumbent is not None and not problem.contiguous:
            context = context.part(0.5)
        try:
            at_hand = [] if context.incumbent is None else [context.incumbent.placement]
            tried.start(_share_of(context.deadline_s, STARTS), context.seed, self.moves, at_hand)
            if not problem.contiguous and context.remaining_s() > 0:
                _contiguous_first(tried, context)
            if not tried.interrupted and context.remaining_s() > 0:
                c = contract_pairs(problem, contiguous=problem.contiguous)
                bound = _solve(c, tried, context)
        except KeyboardInterrupt:
            if tried.best is None:
                raise
            tried.interrupted = True
        return tried.proposal(bound)


class _Tried:
    """The best plan so far, as judged."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        self.best: OperatorPlan | None = None
        self.value_s = math.inf
        self.note = ""
        self.interrupted = False
        self.miss = ""

    def offer(self, place: IntArray) -> OperatorJudgement | None:
        """Judge a placement and keep it if it is the best that fits."""
        try:
            judgement = judge(self.problem, OperatorPlan(place))
        except InfeasibleError as error:
            self.miss = self.miss or str(error)
            return None
        self.miss = self.miss or judgement.violation
        if judgement.feasible and judgement.value < self.value_s:
            self.best, self.value_s = OperatorPlan(place), judgement.value
        return judgement

    def start(self, deadline_s: float, seed: int, moves: int, at_hand: list[IntArray]) -> None:
        """The plan at hand, single devices, lines; annealed, each in its share of the time."""
        p = self.problem
        c = contract_pairs(p, contiguous=p.contiguous)
        singles = [np.full(p.n, d) for d in np.flatnonzero(p.allowed().all(axis=0))]
        lines = lines_of_stand_ins(p, _share_of(deadline_s, 0.5))
        places = [*at_hand, *singles, *lines]
        for left, place in zip(range(len(places), 0, -1), places, strict=True):
            if self.best is not None and time.perf_counter() > deadline_s:
                break
            judgement = self.offer(place)
            node = c.of_nodes(place)
            if judgement is not None and c.fits(node) and np.array_equal(c.placement(node), place):
                until = _share_of(deadline_s, 1.0 / left)
                count = min(moves * c.nodes, 2_000_000)
                found = anneal(c, node, moves=count, heat=0.3, seed=seed, deadline_s=until)
                self.offer(c.placement(found))

    def proposal(self, bound: float) -> Proposal[OperatorPlan]:
        """The best, with a bound that it does not break."""
        if self.best is None:
            raise InfeasibleError(
                "no plan that fits was found",
                where=self.problem.name,
                by=self.miss or f"{size(self.problem.resident_bytes.sum())} resident",
                hint="raise a memory limit, add a device, or allow more time",
            )
        # A bound above the judged value is wrong somewhere: it is dropped rather than believed.
        sound = bound <= self.value_s * (1 + 1e-6)
        least = min(bound, self.value_s) if sound else 0.0
        return Proposal(self.best, least, interrupted=self.interrupted, note=self.note)


def _contiguous_first(tried: _Tried, context: Context) -> None:
    """A fifth of the time for plans that are contiguous too."""
    chain = tried.problem.replace(contiguous=True)
    with suppress(InfeasibleError):  # what lies on a cycle need not be together here
        _solve(contract_pairs(chain, contiguous=True), tried, context.part(0.2))


def _share_of(deadline_s: float, share: float) -> float:
    """When this share of the time from now to then is over."""
    now = time.perf_counter()
    return now + (deadline_s - now) * share


def lines_of_stand_ins(problem: OperatorProblem, deadline_s: float) -> list[IntArray]:
    """Placements of the best lines around host memory, with and without the price of transfers.

    Each where there is one in time.
    """
    if time.perf_counter() > deadline_s:
        return []
    priced, places = star_stand_in(problem).replace(pipeline=PLAIN), list[IntArray]()
    bare = priced.replace(host_seconds_per_byte=np.zeros(problem.m))
    for stand_in, share in ((priced, 0.5), (bare, 1.0)):
        try:
            c = contract(stand_in, contiguous=True)
        except InfeasibleError:
            return []
        found = line_or_none(c, _share_of(deadline_s, share), always_one=False)
        if found is not None:
            places.append(c.plan(found.stage, found.kinds).placement)
    return places


def _solve(c: Pairs, tried: _Tried, context: Context) -> float:
    """Let a solver look for better plans; the bound of the program."""
    there = installed("highspy")
    if too_large(c) or not there:
        tried.note = "too large for the solver: not proved" if there else missing("highspy")
        return 0.0
    bound = 0.0
    for turn in range(_ROUNDS):
        start = _start(c, tried)
        found, claim, tried.interrupted = best_pairs(
            c,
            start,
            seed=context.seed,
            deadline_s=context.deadline_s,
            progress=context.progress,
        )
        # Later programs have less memory than the problem, and bound nothing.
        bound = claim if turn == 0 else bound
        judgement = None if found is None else tried.offer(c.placement(found))
        if judgement is None or judgement.feasible or tried.interrupted:
            break
        over = np.maximum(0.0, judgement.peak_bytes - tried.problem.memory_bytes)
        c = replace(c, memory_bytes=np.maximum(0.0, c.memory_bytes - over))
    return bound


def _start(c: Pairs, tried: _Tried) -> IntArray | None:
    """The best plan on the nodes, where it keeps to them."""
    if tried.best is None:
        return None
    node = c.of_nodes(tried.best.placement)
    same = np.array_equal(c.placement(node), tried.best.placement)
    return node if same and c.fits(node) else None


CHUNK = 10_000
"""Moves between two looks at the clock."""


@by_reference
class LinkInstance(NamedTuple):
    """`Pairs` as the kernel reads it.

    Attributes
    ----------
    reader_offsets, reader
        CSR: the readers of each tensor.
    touch_offsets, touched
        CSR: the tensors that each node makes or reads.
    edge_offsets, edge
        CSR: forward edges of each node, the other end ``w`` as w where this node comes first and
        as -1 - w where it comes last.
    send, device_row, channel_row, loads, backward_work, backward, passes
        See `Pairs`; loads are of the first pass, then of the second.
    ends
        Shape (loads, 2): the device of a load, the source and target of a channel's; -1 where there
        are others.
    """

    work: FloatArray
    resident: FloatArray
    memory: FloatArray
    producer: IntArray
    reader_offsets: IntArray
    reader: IntArray
    touch_offsets: IntArray
    touched: IntArray
    edge_offsets: IntArray
    edge: IntArray
    send: FloatArray
    device_row: IntArray
    channel_row: IntArray
    loads: int
    ends: IntArray
    backward_work: FloatArray
    backward: IntArray
    passes: int


def instance_of(c: Pairs) -> LinkInstance:
    """Arrays from lists."""
    touch: list[list[int]] = [[] for _ in range(c.nodes)]
    ends: list[list[int]] = [[] for _ in range(c.nodes)]
    for k, readers in enumerate(c.readers):
        for v in (int(c.producer[k]), *readers):
            touch[v].append(k)
    for u, v in c.edges.tolist():
        ends[u].append(v)
        ends[v].append(-1 - u)
    return LinkInstance(
        c.work_s,
        c.resident_bytes,
        c.memory_bytes,
        c.producer,
        *csr([list(readers) for readers in c.readers]),
        *csr(touch),
        *csr(ends),
        c.send_s,
        c.device_row,
        c.channel_row,
        c.loads,
        _ends(c),
        c.backward_s,
        c.backward.astype(np.int64),
        c.passes,
    )


def _ends(c: Pairs) -> IntArray:
    """The two devices of each load, -1 where it is of more."""
    ends, off = np.full((c.loads, 2), -1), ~np.eye(c.devices, dtype=np.bool_)
    of_devices, of_pairs = (
        np.bincount(r, minlength=c.loads) for r in (c.device_row, c.channel_row[off])
    )
    for d in range(c.devices):
        if of_devices[c.device_row[d]] == 1:
            ends[c.device_row[d]] = d
    for a, b in np.argwhere(off).tolist():
        row = c.channel_row[a, b]
        if of_devices[row] == 0 and of_pairs[row] == 1:
            ends[row] = a, b
    return ends


def anneal(
    c: Pairs, device: IntArray, *, moves: int, heat: float, seed: int, deadline_s: float = math.inf
) -> IntArray:
    """Devices of the nodes, no worse than `device`, which fits.

    A walk that would not end before the deadline leaves moves out, so that it still cools.
    """
    if c.devices < 2 or time.perf_counter() > deadline_s or c.value_s(device) <= 0.0:
        return device
    instance, begun_s = instance_of(c), time.perf_counter()
    walk, step = _begin(instance, device.astype(np.int64), seed), 0
    while step < moves and walk.least[0] > 0.0 and time.perf_counter() < deadline_s:
        until = min(step + CHUNK, moves)
        _run_moves(instance, walk, step, until, moves, heat)
        gone = (time.perf_counter() - begun_s) / (deadline_s - begun_s)
        step = max(until, int(gone * moves))
    return walk.best if c.value_s(walk.best) <= c.value_s(device) else device


@by_reference
class LinkWalk(NamedTuple):
    """State of a walk.

    Attributes
    ----------
    place, best
        Shape (N,), the placement now and the best one met.
    load
        Shape (passes * loads,).
    held
        Shape (m,), bytes.
    ahead
        Shape (m, m), edges from device to device.
    least
        Shape (1,), the value of `best`.
    """

    place: IntArray
    best: IntArray
    load: FloatArray
    held: FloatArray
    ahead: IntArray
    least: FloatArray


@njit_cached
def _begin(b: LinkInstance, start: IntArray, seed: int) -> LinkWalk:
    """State before the first move."""
    np.random.seed(seed)
    n, m = b.work.shape
    place = start.copy()
    load, held = np.zeros(b.passes * b.loads), np.zeros(m)
    ahead = np.zeros((m, m), dtype=np.int64)
    for v in range(n):
        _work(b, v, place[v], 1.0, load)
        held[place[v]] += b.resident[v]
        for x in range(b.edge_offsets[v], b.edge_offsets[v + 1]):
            if b.edge[x] >= 0:
                ahead[place[v], place[b.edge[x]]] += 1
    seen = np.zeros(m, dtype=np.bool_)
    for k in range(len(b.producer)):
        _add(b, k, place, 1.0, load, seen)
    return LinkWalk(place, start.copy(), load, held, ahead, np.array([_value(load, b.loads)]))


@njit_cached
def _run_moves(
    b: LinkInstance, walk: LinkWalk, first: int, last: int, moves: int, heat: float
) -> None:
    """Moves `first` to `last` of `moves`, the colder the later; the best by the largest load."""
    m = len(walk.held)
    place, load, held, ahead = walk.place, walk.load, walk.held, walk.ahead
    least, seen = walk.least[0], np.zeros(m, dtype=np.bool_)
    trial = np.zeros(b.passes * b.loads)
    for step in range(first, last):
        temperature = heat * (1.0 - step / moves) + 1e-9
        v = pick_node(place, _busiest(b, load))
        a = place[v]
        to = _target(b, v, place, m)
        if to == a or b.work[v, to] == np.inf or held[to] + b.resident[v] > b.memory[to]:
            continue
        # Taken off and put back around the move: only tensors that v touches change. `place`
        # changes between the two, since `_add` reads it.
        trial[:] = load
        for x in range(b.touch_offsets[v], b.touch_offsets[v + 1]):
            _add(b, b.touched[x], place, -1.0, trial, seen)
        _work(b, v, a, -1.0, trial)
        _work(b, v, to, 1.0, trial)
        place[v] = to
        for x in range(b.touch_offsets[v], b.touch_offsets[v + 1]):
            _add(b, b.touched[x], place, 1.0, trial, seen)
        # A missing link makes `trial` and `rise` infinite, and exp(-inf) is 0: never accepted.
        rise = energy_rise(trial, load, least)
        accepted = rise <= 0.0 or np.random.random() < np.exp(-rise / temperature)
        # Cycles are looked for last, as few moves get here.
        if accepted and len(b.edge) > 0:
            _shift(b, v, a, to, place, ahead)
            if _cyclic(ahead):
                _shift(b, v, to, a, place, ahead)
                accepted = False
        if not (accepted and trial.max() < np.inf):
            place[v] = a
            continue
        load[:] = trial
        held[a] -= b.resident[v]
        held[to] += b.resident[v]
        value = _value(load, b.loads)
        if value < least * (1.0 - 1e-9):
            least = value
            walk.best[:] = place
            if least <= 0.0:
                break
    walk.least[0] = least


@njit_cached
def _value(load: FloatArray, loads: int) -> float:
    """The largest load of each pass, added up."""
    total = 0.0
    for first in range(0, len(load), loads):
        total += load[first : first + loads].max()
    return total


@njit_cached
def _busiest(b: LinkInstance, load: FloatArray) -> int:
    """The device of the largest load, or one at an end of its channel; -1 where it has others."""
    both = load if b.passes == 1 else load[: b.loads] + load[b.loads :]
    return int(b.ends[both.argmax(), np.random.randint(2)])


@njit_cached
def _work(b: LinkInstance, v: int, d: int, sign: float, load: FloatArray) -> None:
    """Add the compute time of a node on a device to the loads, or subtract it."""
    backward = b.backward_work[v, d]
    load[b.device_row[d]] += sign * (b.work[v, d] - backward)
    if backward > 0.0:
        load[b.loads + b.device_row[d]] += sign * backward


@njit_cached
def _target(b: LinkInstance, v: int, place: IntArray, m: int) -> int:
    """The device of a node that v shares a tensor with, or any."""
    first, last = b.touch_offsets[v], b.touch_offsets[v + 1]
    if last == first or np.random.random() < 0.4:
        return np.random.randint(m)
    k = b.touched[first + np.random.randint(last - first)]
    if b.producer[k] != v:
        return int(place[b.producer[k]])
    lo, hi = b.reader_offsets[k], b.reader_offsets[k + 1]
    return int(place[b.reader[lo + np.random.randint(hi - lo)]])


@njit_cached
def _add(
    b: LinkInstance, k: int, place: IntArray, sign: float, load: FloatArray, seen: BoolArray
) -> None:
    """Add the transfers of tensor k to the loads, or subtract them."""
    home, first = place[b.producer[k]], b.backward[k] * b.loads
    for x in range(b.reader_offsets[k], b.reader_offsets[k + 1]):
        d = place[b.reader[x]]
        if d != home and not seen[d]:
            seen[d] = True
            load[first + b.channel_row[home, d]] += sign * b.send[k, home, d]
    for x in range(b.reader_offsets[k], b.reader_offsets[k + 1]):
        # `seen` is cleared by the same readers, not device by device.
        seen[place[b.reader[x]]] = False


@njit_cached
def _shift(b: LinkInstance, v: int, a: int, to: int, place: IntArray, ahead: IntArray) -> None:
    """Count the edges of v on another device than a."""
    for x in range(b.edge_offsets[v], b.edge_offsets[v + 1]):
        w = b.edge[x]
        if w >= 0:
            ahead[a, place[w]] -= 1
            ahead[to, place[w]] += 1
        else:
            ahead[place[-1 - w], a] -= 1
            ahead[place[-1 - w], to] += 1


@njit_cached
def _cyclic(ahead: IntArray) -> bool:
    """Whether the devices form a cycle: devices without predecessors are removed repeatedly."""
    m = len(ahead)
    gone = np.zeros(m, dtype=np.bool_)
    for _ in range(m):
        found = False
        for d in range(m):
            if gone[d]:
                continue
            free = True
            for s in range(m):
                if s != d and not gone[s] and ahead[s, d] > 0:
                    free = False
                    break
            if free:
                gone[d] = True
                found = True
        if not found:
            break
    return not gone.all()
