"""List schedulers as data on one engine: what ranks operators, and how a device is chosen.

=============== ============ =============== ======== =====================================
planner         rank         device          links    source
=============== ============ =============== ======== =====================================
heft            upward       earliest-finish free     Topcuoglu et al. 2002
heft-contended  upward       earliest-finish reserved after Sinnen, Sousa 2005
cpop            through      path            free     Topcuoglu et al. 2002
peft            optimistic   optimistic      free     Arabnejad, Barbosa 2014
ceft            ceft-up      ceft-up         free     tables of Vasudevan, Gregg, scheduler ours
ceft-cpop       ceft-through ceft-path       free     Vasudevan, Gregg
=============== ============ =============== ======== =====================================

`lists.ready` has those that choose among all ready operators.

Departures that all of them share: a tensor with several consumers on one device is sent there
once; the first operator of a colocation group decides for its group; a device without room for
the group's resident bytes and the operator's outputs is passed over while another has room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import Ceft, ceft, linked
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.insertion import (
    Setup,
    list_schedule,
    mean_critical_path,
    mean_downward_rank,
    mean_upward_rank,
    optimistic_costs,
    priority_sequence,
    scheduled_plan,
    set_up,
    within_memory,
)
from placewright.operators.problem import Links, OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Needs

Rank = Literal["upward", "through", "optimistic", "ceft-up", "ceft-through"]
DeviceRule = Literal["earliest-finish", "path", "optimistic", "ceft-up", "ceft-path"]
Transfers = Literal["different", "all", "fastest"]


class RankTables:
    """What ranks and device rules are computed from, each table once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.costs, self.problem = setup.costs, setup.problem
        self.transfer = setup.mean_latency_s, setup.mean_seconds_per_byte

    @cached_property
    def upward(self) -> FloatArray:
        """Shape (n,): the longest way from an operator's start to the end, with mean costs."""
        return mean_upward_rank(self.costs, self.setup.mean_compute_s, *self.transfer)

    @cached_property
    def downward(self) -> FloatArray:
        """Shape (n,): the longest way to an operator's start, with mean costs."""
        return mean_downward_rank(self.costs, self.setup.mean_compute_s, *self.transfer)

    @cached_property
    def path(self) -> IntArray:
        """Operators of the critical path of mean costs."""
        return mean_critical_path(self.costs, self.upward, *self.transfer)

    @cached_property
    def optimistic(self) -> FloatArray:
        """PEFT's table, shape (n, m)."""
        work = np.where(self.setup.allowed, self.problem.compute_s, np.inf)
        return optimistic_costs(self.costs, work)

    @cached_property
    def ceft(self) -> Ceft:
        """CEFT's tables."""
        return ceft(self.problem)


def _mean_optimistic(t: RankTables) -> FloatArray:
    allowed = t.setup.allowed
    usable = np.where(allowed & np.isfinite(t.optimistic), t.optimistic, 0.0)
    mean: FloatArray = usable.sum(axis=1) / allowed.sum(axis=1)
    return mean


RANKS: Mapping[Rank, Callable[[RankTables], FloatArray]] = MappingProxyType(
    {
        "upward": lambda t: t.upward,
        "through": lambda t: t.upward + t.downward,
        "optimistic": _mean_optimistic,
        "ceft-up": lambda t: t.ceft.ceft_up_s.min(axis=1),
        "ceft-through": lambda t: t.ceft.through_s.min(axis=1),
    }
)
"""Shape (n,), seconds; of the operators whose producers are placed that of highest rank is next."""


def path_device(setup: Setup, path: IntArray) -> int:
    """The device that can run most of the path, and of those the one that takes least."""
    allowed = setup.allowed[path]
    took = np.where(allowed, setup.problem.compute_s[path], 0.0).sum(axis=0)
    return int(np.lexsort((took, -allowed.sum(axis=0)))[0])


def _after_ceft(t: RankTables) -> FloatArray:
    """The least way from an operator's end on a device to the end of all."""
    usable = np.isfinite(t.ceft.ceft_up_s)
    own_s = np.where(usable, t.problem.compute_s, 0.0)
    after_s: FloatArray = np.where(usable, t.ceft.ceft_up_s, np.inf) - own_s
    return after_s


AHEAD: Mapping[str, Callable[[RankTables], FloatArray]] = MappingProxyType(
    {"optimistic": lambda t: t.optimistic, "ceft-up": _after_ceft}
)
"""Shape (n, m), seconds that are added to the finish on a device; zero for other rules."""

FORCED: Mapping[str, Callable[[RankTables], tuple[IntArray, IntArray | int]]] = MappingProxyType(
    {
        "path": lambda t: (t.path, path_device(t.setup, t.path)),
        "ceft-path": lambda t: (t.ceft.path, t.ceft.path_devices),
    }
)
"""Critical operators and the device that they go to where they can; none for other rules."""


@final
@dataclass(frozen=True, slots=True)
class ListScheduler:
    """Operators by rank, each in the first gap of the device where it ends first.

    Insertion looks into every gap; ties go to the topological position (first in, first out),
    equal finish times to the earlier device. O(e m) and the gap search, with CEFT's tables and
    PEFT's O(e m^2). The module says which parameters make which published planner.

    Parameters
    ----------
    rank
        What goes first: see `RANKS`. Means are over the devices that can run an operator.
    device
        Least finish time alone, plus what the choice costs later (`AHEAD`), or critical operators
        on their path's devices first (`FORCED`).
    transfers
        What a mean transfer is: over ordered pairs of different devices, over all pairs, or on the
        fastest link. Of several the schedule that ends first is kept, earlier ones first.
    reserved
        Whether transfers wait for each other: time on channels is booked when a device is tried,
        and the device that is chosen keeps its bookings.
    """

    beside: ClassVar[bool] = True

    name: str = "heft"
    rank: Rank = "upward"
    device: DeviceRule = "earliest-finish"
    transfers: tuple[Transfers, ...] = ("different",)
    reserved: bool = False

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links; reserved ones only where transfers wait."""
        if self.reserved and problem.links is Links.FREE:
            return "links are free: the same as heft"
        return pairwise_only(problem)

    def needs(self, problem: OperatorProblem) -> Needs:
        """Nanoseconds per operator and device, or pair of devices, and a few tables."""
        pairs, tabled = problem.n * problem.m, self.device in AHEAD or "ceft" in self.rank
        table_s = (3e-9 if "ceft" in self.rank else 1e-9) * pairs * problem.m * tabled
        list_s = 3e-8 * pairs * (5 if self.reserved else len(self.transfers))
        return Needs(list_s + table_s, 8.0 * (2 + 2 * tabled + self.reserved) * pairs, ends=True)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: an operator that no linked device can run.

        Where there is another plan, `OutOfTimeError` at the deadline.
        """
        setup = set_up(problem)
        tables = [RankTables(_with_transfers(setup, over)) for over in self.transfers]
        ranked = [(self.sequence(t), self._forced(t)) for t in tables]
        ahead = AHEAD.get(self.device)
        ahead_s = np.zeros((1, problem.m)) if ahead is None else ahead(tables[0])
        channels = (len(problem.channel_names) or None) if self.reserved else None

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            found = [
                list_schedule(
                    setup.costs,
                    setup.rules(budget_bytes, forced),
                    sequence,
                    ahead_s,
                    channels,
                    context.giving_up_s,
                )
                for sequence, forced in ranked
            ]
            # By the scheduler's own estimate, as the published planner would choose, not by the
            # judge.
            first = found[0] if len(found) == 1 else min(found, key=_end_s)
            return scheduled_plan(problem, *first)

        return within_memory(problem, build, context.deadline_s)

    def sequence(self, tables: RankTables) -> IntArray:
        """Operators by (rank, topological position), none before its producers."""
        return priority_sequence(tables.costs, -RANKS[self.rank](tables))

    def _forced(self, tables: RankTables) -> IntArray:
        forced = np.full(tables.problem.n, -1)
        if self.device in FORCED:
            path, devices = FORCED[self.device](tables)
            forced[path] = devices
        return forced


def _with_transfers(setup: Setup, over: Transfers) -> Setup:
    """The same with transfers averaged over all pairs of devices, or on the fastest link."""
    if over == "different":
        return setup
    p, share = setup.problem, (setup.problem.m - 1) / setup.problem.m
    pair = linked(p)
    if not pair.any():
        return setup
    latency_s, per_byte = setup.mean_latency_s * share, setup.mean_seconds_per_byte * share
    if over == "fastest":
        latency_s, per_byte = p.latency_s[pair].min(), p.seconds_per_byte[pair].min()
    return replace(setup, mean_latency_s=float(latency_s), mean_seconds_per_byte=float(per_byte))


def _end_s(schedule: tuple[IntArray, FloatArray, FloatArray]) -> float:
    """When all has ended; ``inf`` where an operator could not be reached."""
    place, _, end_s = schedule
    return float(end_s.max()) if place.min() >= 0 else np.inf


HEFT = ListScheduler()
"""Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, doi 10.1109/71.993206."""

HEFT_CONTENDED = replace(HEFT, name="heft-contended", reserved=True)
"""After Sinnen, Sousa, IEEE TPDS 16(6), 2005, doi 10.1109/TPDS.2005.64.

Departures: channels are those of the problem (one hop, possibly shared), without routing.
"""

CPOP = ListScheduler("cpop", "through", "path", ("different", "all", "fastest"))
"""Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, doi 10.1109/71.993206: the mean critical path on
one device. The paper takes mean transfer times without saying over what, and which is better
depends on the graph; ``("different",)`` alone is the textbook's CPOP.

Departures: several means; the path follows the arg max of the upward rank instead of comparing sums
for equality, which rounding breaks; a critical operator that the device cannot run goes where it
ends first.
"""

PEFT = ListScheduler("peft", "optimistic", "optimistic")
"""Arabnejad, Barbosa, IEEE TPDS 25(3), 2014, doi 10.1109/TPDS.2013.57.

Departure: the table takes the transfer between the very devices where the paper takes the mean over
links (equal where links are alike; on heterogeneous links the mean is up to 5 % worse on the dag
instances, and blind to missing links).
"""

CEFT = ListScheduler("ceft", "ceft-up", "ceft-up")
"""Tables of Vasudevan, Gregg, arXiv 1701.08800: no means over devices, but for every operator and
device the least time to the end over the best devices of all that follows."""

CEFT_CPOP = ListScheduler("ceft-cpop", "ceft-through", "ceft-path")
"""Vasudevan, Gregg, arXiv 1701.08800: CPOP with CEFT's critical path, and a device for each of its
operators. Departure: a path operator whose colocation group was placed before follows it."""
