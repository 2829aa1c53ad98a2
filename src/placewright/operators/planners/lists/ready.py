"""List schedulers that choose among all ready operators: a priority and a rule, on one engine.

========== ======================= ================================ ==============================
planner    score of a device       the ready operator that is next  source
========== ======================= ================================ ==============================
min-min    finish                  of the least best score          Ibarra, Kim 1977
max-min    finish                  of the largest best score        the same
sufferage  finish                  that loses most by its second    Maheswaran et al. 1999
                                   best device
etf        start                   of the least best score          Hwang et al. 1989
m-etf      start                   of the least best score          Jeon et al. 2020
m-sct      start                   of the least best score, with    the same
                                   devices kept for favourites
dls        finish                  of the largest dynamic level     Sih, Lee 1993
bil        start + imaginary level of the largest k-th best score   Oh, Ha 1996
========== ======================= ================================ ==============================

Operators are appended to a device, gaps are not filled; transfers do not wait for each other. The
departures that all lists share are those of `placewright.operators.planners.lists.planners`.

Ready operators are a set of bits by rank, so that ties go to the first one met. Where the earliest
start decides, favourites are looked at first, and no other operator starts before the first device
that is not kept is free: one that starts then ends the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.errors import OutOfTimeError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.clocks import stop_flag
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.costs import Costs, move_time
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.insertion import (
    Rules,
    Setup,
    candidates,
    mean_upward_rank,
    optimistic_costs,
    scheduled_plan,
    set_up,
    within_memory,
)
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.queues import lowest_bit
from placewright.planning.contract import Context, Needs

Selection = Literal["least", "largest", "sufferage", "k-th"]
Score = Literal["start", "finish", "dynamic", "imaginary"]

LEAST, LARGEST, SUFFERAGE_RULE, KTH = range(4)
CODES: Mapping[Selection, int] = MappingProxyType(
    {"least": LEAST, "largest": LARGEST, "sufferage": SUFFERAGE_RULE, "k-th": KTH}
)


@by_reference
class ReadyRule(NamedTuple):
    """What is compared; the score of an operator on a device is its start there, plus `added_s`.

    Attributes
    ----------
    added_s
        Shape (n, m).
    offset_s
        Shape (n,), taken off an operator's best score when operators are compared.
    by_rank, position
        Shape (n,): operators in the order in which ties are broken, and the place of each in it.
    select
        One of `CODES`.
    soonest
        Whether the least start alone decides.
    holds_outputs
        Whether what operators make fills memory, too, and stays there.
    favourite
        Shape (n,): the consumer for which the device of an operator is kept while it is ready, -1
        for none. Others get that device only if nothing else can start anywhere.
    """

    added_s: FloatArray
    offset_s: FloatArray
    by_rank: IntArray
    position: IntArray
    select: int
    soonest: bool
    holds_outputs: bool
    favourite: IntArray


@by_reference
class ReadyState(NamedTuple):
    """A schedule while it is made.

    Attributes
    ----------
    free_s, used_bytes, last
        Shape (m,): when a device is free, bytes on it, its latest operator (-1 without one).
    chosen
        Device of every group, -1 before its first operator is placed.
    arrived_s, waiting
        Shape (n, m) and (n,): when inputs from placed producers are on each device, and how many
        inputs are still to be made.
    ready
        Bits by place in `ReadyRule.by_rank`, 64 in a word.
    kept
        Shape (m,): the favourite for which a device is kept, -1 for none.
    open, score
        Shape (m,): scratch of the operator that is looked at.
    """

    free_s: FloatArray
    used_bytes: FloatArray
    last: IntArray
    chosen: IntArray
    arrived_s: FloatArray
    waiting: IntArray
    ready: Any
    kept: IntArray
    open: BoolArray
    score: FloatArray


def schedule(
    c: Costs, r: Rules, rule: ReadyRule, deadline_s: float = math.inf
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Place and time of every operator; -1 in `place` where no device can be reached.

    Raises `OutOfTimeError` at the deadline.
    """
    limited = bool(np.isfinite(r.budget_bytes).any())
    state = _nothing_placed(c, r)
    with stop_flag(deadline_s) as stop:
        place, start_s, end_s = _schedule(c, r, rule, state, limited, stop)
    if stop[0] and place.min() < 0:
        raise OutOfTimeError("time limit reached", by=f"{(place < 0).sum()} operators are left")
    return place, start_s, end_s


def _nothing_placed(c: Costs, r: Rules) -> ReadyState:
    n, m = c.compute_s.shape
    return ReadyState(
        np.zeros(m),
        np.zeros(m),
        np.full(m, -1),
        np.full(len(r.group_bytes), -1),
        np.zeros((n, m)),
        np.diff(c.in_offsets),
        np.zeros((n + 63) // 64, dtype=np.uint64),
        np.full(m, -1),
        np.empty(m, dtype=np.bool_),
        np.empty(m),
    )


@njit_nogil
def _schedule(
    c: Costs, r: Rules, rule: ReadyRule, s: ReadyState, limited: bool, stop: BoolArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """As `schedule`, up to the operator at which `stop` is set."""
    n = len(c.order)
    place, start_s, end_s = np.full(n, -1), np.zeros(n), np.zeros(n)
    count = 0
    for i in range(n):
        if s.waiting[i] == 0:
            _flip(rule, s, i)
            count += 1
    for _ in range(n):
        if stop[0]:
            break
        kept = _keep_devices(rule, s)
        i = _next(c, r, rule, s, limited, count)
        if i < 0 and kept:
            s.kept[:] = -1
            i = _next(c, r, rule, s, limited, count)
        if i < 0:
            break
        _score(c, r, rule, s, limited, i)
        d = _device(c, rule, s, i, count)
        place[i], start_s[i] = d, max(s.free_s[d], s.arrived_s[i, d])
        s.free_s[d] = end_s[i] = start_s[i] + c.compute_s[i, d]
        s.last[d] = i
        _take_memory(c, r, rule, s, i, d)
        _flip(rule, s, i)
        count += _release(c, rule, s, i, d, end_s[i]) - 1
    return place, start_s, end_s


@njit_internal
def _flip(rule: ReadyRule, s: ReadyState, i: int) -> None:
    """Operator `i` is ready now, or not any more."""
    at = rule.position[i]
    s.ready[at >> 6] ^= np.uint64(1) << np.uint64(at & 63)


@njit_internal
def _keep_devices(rule: ReadyRule, s: ReadyState) -> bool:
    """Keep devices for the favourites, where they are ready, of what ran there last."""
    kept = False
    for d in range(len(s.kept)):
        owner = rule.favourite[s.last[d]] if s.last[d] >= 0 else -1
        if owner >= 0:
            at = rule.position[owner]
            if (s.ready[at >> 6] >> np.uint64(at & 63)) & np.uint64(1) == np.uint64(0):
                owner = -1
        s.kept[d] = owner
        kept = kept or owner >= 0
    return kept


@njit_internal
def _next(c: Costs, r: Rules, rule: ReadyRule, s: ReadyState, limited: bool, count: int) -> int:
    """The ready operator of the largest key, the first of equal ones; -1 if none can start."""
    best, best_key, soonest_s = -1, -np.inf, np.inf
    for d in range(len(s.kept)):
        i = s.kept[d]
        if i < 0:
            soonest_s = min(soonest_s, s.free_s[d])
            continue
        first = _score(c, r, rule, s, limited, i)
        key = _key(rule, s, first, i, count) if first < np.inf else -np.inf
        if key > best_key or (key == best_key and best >= 0 and _before(rule, i, best)):
            best, best_key = i, key
    if soonest_s == np.inf:  # all devices are kept: nothing but these favourites may start
        return int(best)
    for word in range(len(s.ready)):
        left = s.ready[word]
        while left != np.uint64(0):
            i = rule.by_rank[(word << 6) + lowest_bit(left)]
            left &= left - np.uint64(1)
            first = _score(c, r, rule, s, limited, i)
            if first == np.inf:  # it can go nowhere now
                continue
            key = _key(rule, s, first, i, count)
            if best < 0 or key > best_key or (key == best_key and _before(rule, i, best)):
                best, best_key = i, key
            # What comes later in the order starts no sooner, favourites have been looked at.
            if rule.soonest and first <= soonest_s:
                return int(best)
    return int(best)


@njit_internal
def _before(rule: ReadyRule, i: int, j: int) -> bool:
    """Whether `i` goes first of two operators of the same key."""
    return bool(rule.position[i] < rule.position[j])


@njit_internal
def _score(c: Costs, r: Rules, rule: ReadyRule, s: ReadyState, limited: bool, i: int) -> float:
    """Score operator `i` on every device, ``inf`` where it may not go; the least score."""
    only, least = s.chosen[r.group[i]], np.inf
    if limited:  # memory decides, too
        candidates(c, r, s.chosen, s.used_bytes, i, s.open)
    for d in range(len(s.score)):
        may = s.open[d] if limited else (d == only if only >= 0 else r.allowed[i, d])
        may = may and (s.kept[d] < 0 or s.kept[d] == i)
        s.score[d] = max(s.free_s[d], s.arrived_s[i, d]) + rule.added_s[i, d] if may else np.inf
        least = min(least, s.score[d])
    return least


@njit_internal
def _key(rule: ReadyRule, s: ReadyState, first: float, i: int, count: int) -> float:
    """The operator of the largest key is next; `first` is its least score."""
    if rule.select == LEAST:
        return rule.offset_s[i] - first  # type: ignore[no-any-return]
    if rule.select == LARGEST:
        return first
    if rule.select == KTH:
        return _kth_least(s.score, min(count, len(s.score)))
    second, met = np.inf, False
    for d in range(len(s.score)):
        if s.score[d] == first and not met:
            met = True
        else:
            second = min(second, s.score[d])
    return second - first


@njit_internal
def _kth_least(score: FloatArray, k: int) -> float:
    """The k-th least finite score, the largest where there are fewer."""
    value, taken = -np.inf, 0
    while taken < k:
        least, same = np.inf, 0
        for d in range(len(score)):
            if score[d] > value and score[d] < least:
                least, same = score[d], 1
            elif score[d] == least:
                same += 1
        if least == np.inf:
            break
        value, taken = least, taken + same
    return value


@njit_internal
def _device(c: Costs, rule: ReadyRule, s: ReadyState, i: int, count: int) -> int:
    """The device of least score, the earlier of equal ones; revised where `KTH` selects.

    Oh and Ha add an operator's own time for each ready operator that a device has to take beyond
    the first: with few devices a fast one is worth more than the way that is left.
    """
    crowd = max(count / len(s.score) - 1.0, 0.0) if rule.select == KTH else 0.0
    best, least = 0, np.inf
    for d in range(len(s.score)):
        if s.score[d] == np.inf:
            continue
        value = s.score[d] + crowd * c.compute_s[i, d]
        if value < least:
            best, least = d, value
    return best


@njit_internal
def _take_memory(c: Costs, r: Rules, rule: ReadyRule, s: ReadyState, i: int, d: int) -> None:
    """Count operator `i` on device `d`: its group, if it is the first, and what it makes."""
    g = r.group[i]
    if s.chosen[g] < 0:
        s.chosen[g] = d
        s.used_bytes[d] += r.group_bytes[g]
    if rule.holds_outputs:
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            s.used_bytes[d] += c.home_bytes[c.out_tensors[a]]


@njit_internal
def _release(c: Costs, rule: ReadyRule, s: ReadyState, i: int, d: int, end_s: float) -> int:
    """Send the outputs of operator `i` from device `d`; how many operators get ready."""
    count = 0
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for b in range(c.offsets[k], c.offsets[k + 1]):
            j = c.consumers[b]
            for q in range(len(s.score)):
                s.arrived_s[j, q] = max(s.arrived_s[j, q], end_s + move_time(c, k, d, q))
            s.waiting[j] -= 1
            if s.waiting[j] == 0:
                _flip(rule, s, j)
                count += 1
    return count


def _work_s(setup: Setup) -> FloatArray:
    return np.where(setup.allowed, setup.problem.compute_s, np.inf)


SCORES: Mapping[Score, Callable[[Setup], FloatArray]] = MappingProxyType(
    {
        "start": lambda setup: np.zeros(setup.problem.compute_s.shape),
        "finish": lambda setup: setup.problem.compute_s,
        "dynamic": lambda setup: setup.problem.compute_s,
        # The imaginary level: the least time to the end if every device were free.
        "imaginary": lambda setup: _work_s(setup) + optimistic_costs(setup.costs, _work_s(setup)),
    }
)
"""Shape (n, m): what is added to an operator's start on a device."""


def favourite_children(setup: Setup) -> IntArray:
    """Favourite consumer of every operator, -1 for none: longest mean transfers matched first."""
    problem = setup.problem
    tensor = problem.consumed
    parent = problem.tensor_producer[tensor]
    took_s = setup.mean_latency_s + problem.tensor_bytes * setup.mean_seconds_per_byte
    favourite, claimed = np.full(problem.n, -1), np.zeros(problem.n, dtype=np.bool_)
    for e in np.argsort(-took_s[tensor], kind="stable").tolist():
        i, j = parent[e], problem.consumers[e]
        if favourite[i] < 0 and not claimed[j]:
            favourite[i], claimed[j] = j, True
    return favourite


@final
@dataclass(frozen=True, slots=True)
class ReadyScheduler:
    """Of all ready operators the one that a rule selects, on the device of its best score.

    Looks at every ready operator and device in each step: O(n r m) with r ready operators at a
    time, and for `bil` the table of PEFT, O(e m^2). The module says which parameters make which
    published planner.

    Parameters
    ----------
    select
        The ready operator of the ``least`` or ``largest`` best score, of the largest difference
        between its best two (``sufferage``), or of the largest ``k-th`` score with k ready ones.
    score
        On a device: the ``start`` there, the ``finish``, the finish less the static level and the
        mean time of the operator (``dynamic``), or the start and what follows (``imaginary``).
    holds_outputs
        As Jeon et al.: a device whose memory would not hold the operator and all that was made
        there is not considered, and ties go to the higher upward rank with mean transfers. Else
        memory has to hold what is resident and one operator's outputs, and ties go to the higher
        static level, the longest way to the end in mean times without transfers.
    favourites
        Each operator has at most one favourite child, each child at most one parent whose
        favourite it is; while the child is ready, others get that parent's device only if nothing
        else can start.
    """

    beside: ClassVar[bool] = True

    name: str = "min-min"
    select: Selection = "least"
    score: Score = "finish"
    holds_outputs: bool = False
    favourites: bool = False

    unsupported_reason = staticmethod(pairwise_only)

    def needs(self, problem: OperatorProblem) -> Needs:
        """Nanoseconds per step, ready operator and device, as if a square were ready; tables."""
        pairs, width = problem.n * problem.m, math.sqrt(problem.n)
        table_s = 1e-9 * pairs * problem.m if self.score == "imaginary" else 0.0
        return Needs(3e-9 * pairs * width + 1e-8 * pairs + table_s, 32.0 * pairs, ends=True)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: an operator that no linked device can run.

        Where there is another plan, `OutOfTimeError` at the deadline.
        """
        setup = set_up(problem)
        rule = self.rule(setup)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            found = schedule(setup.costs, setup.rules(budget_bytes), rule, context.giving_up_s)
            return scheduled_plan(problem, *found)

        return within_memory(problem, build, context.deadline_s)

    def rule(self, setup: Setup) -> ReadyRule:
        """What operators and devices are compared by."""
        way_s, n = setup.mean_compute_s, setup.problem.n
        transfer = (setup.mean_latency_s, setup.mean_seconds_per_byte)
        if not self.holds_outputs:
            transfer = (0.0, 0.0)
        rank = mean_upward_rank(setup.costs, way_s, *transfer)
        return ready_rule(
            rank,
            np.ascontiguousarray(SCORES[self.score](setup)),
            offset_s=rank + way_s if self.score == "dynamic" else np.zeros(n),
            select=CODES[self.select],
            soonest=self.select == "least" and self.score == "start",
            holds_outputs=self.holds_outputs,
            favourite=favourite_children(setup) if self.favourites else np.full(n, -1),
        )


def ready_rule(rank: FloatArray, added_s: FloatArray, **rest: Any) -> ReadyRule:
    """A rule whose ties go to the higher `rank`, shape (n,), then input order."""
    by_rank = np.argsort(-rank, kind="stable")
    return ReadyRule(thawed(added_s), by_rank=by_rank, position=np.argsort(by_rank), **rest)


MIN_MIN = ReadyScheduler()
"""Ibarra, Kim, J. ACM 24(2), 1977, doi 10.1145/322003.322011, algorithm D, of ready operators."""

MAX_MIN = ReadyScheduler("max-min", "largest")
"""The same, algorithm E: long operators first."""

SUFFERAGE = ReadyScheduler("sufferage", "sufferage")
"""Maheswaran et al., J. Parallel Distrib. Comput. 59(2), 1999, doi 10.1006/jpdc.1999.1581, without
their rounds: after every operator all others are compared again."""

ETF = ReadyScheduler("etf", "least", "start")
"""Hwang, Chow, Anger, Lee, SIAM J. Comput. 18(2), 1989, doi 10.1137/0218016, on heterogeneous
devices; ties by static level."""

M_ETF = ReadyScheduler("m-etf", "least", "start", holds_outputs=True)
"""Jeon et al., SoCC 2020, doi 10.1145/3419111.3421302, section 3.2: `etf` within memory.
Departures: devices may be heterogeneous; without room anywhere, memory is passed over (and the
judge reports by how much)."""

M_SCT = ReadyScheduler("m-sct", "least", "start", holds_outputs=True, favourites=True)
"""Section 3.3 there, after Hanen, Munier 1995. Departure: they take favourites from a relaxed
linear program; here the most expensive transfers are matched first."""

DLS = ReadyScheduler("dls", "least", "dynamic")
"""Sih, Lee, IEEE TPDS 4(2), 1993, doi 10.1109/71.207593: the largest static level less start, plus
the operator's mean time less that on the device. Departures: means where they take medians;
transfers take what links take, without routing."""

BIL = ReadyScheduler("bil", "k-th", "imaginary")
"""Oh, Ha, Euro-Par 1996, doi 10.1007/BFb0024750: best imaginary levels."""

READY_LISTS = (MIN_MIN, MAX_MIN, SUFFERAGE, ETF, DLS, BIL)
