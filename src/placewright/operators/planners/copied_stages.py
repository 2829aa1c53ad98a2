"""Copies of the whole model, or of each stage of a chain, on devices that may differ.

Samples are dealt out by speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Communication, Links, OperatorProblem
from placewright.planning.contract import Context
from placewright.report.text import size


@final
@dataclass(frozen=True, slots=True)
class WholeCopies:
    """The whole model on every device that has it all, a stream's samples dealt out by speed.

    Every copy adds its speed to the throughput and no tensor travels, so where nothing is learned
    no plan whose devices all have the memory is better. Devices that cannot run an operator, or
    have not the memory of its resident bytes, get no copy. O(n m). Data parallelism with shares
    by speed; ours.
    """

    name: ClassVar[str] = "whole-copies"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where copies may be on devices that differ, over links, and nothing is pinned."""
        if not problem.pipeline.by_speed:
            return "copies to devices that differ (--replication --by-speed)"
        if problem.communication is not Communication.PAIRWISE:
            return "shares by speed are for links"
        if problem.contiguous:
            return "plans are contiguous"
        return "operators are pinned to devices" if (problem.pinned >= 0).any() else None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: no device has all of the model."""
        able = problem.allowed().all(axis=0)
        able &= problem.memory_bytes >= problem.resident_bytes.sum()
        if not able.any():
            raise InfeasibleError(
                "no device has the whole model",
                where=problem.name,
                by=f"{problem.m} devices, {size(problem.resident_bytes.sum())} resident",
                hint="give a device more memory, or try --planner copied-stages",
            )
        took = np.where(able, problem.compute_s.sum(axis=0), np.inf)
        fastest = int(np.argmin(took))
        leader = np.where(able, fastest, np.arange(problem.m))
        copied = leader if able.sum() > 1 else None
        return OperatorPlan(np.full(problem.n, fastest), replica_of=copied)


Groups = tuple[tuple[int, ...], ...]
"""Devices of every stage."""

STAGES = 3
"""At most."""

CUTS = 48
"""Positions at which the chain may be cut: of each of so many equal parts the cheapest."""

FEW = 5
"""Up to so many devices every way to group them is tried; of more, neighbours by speed."""

JUDGED = 8
"""Groupings whose plans are judged: those with the best estimates."""

HUGE, TINY = 1e12, 1e-300
"""Seconds of an operator on a device that cannot run it: finite, so that sums can be subtracted;
and of a model that takes none."""


@final
@dataclass(frozen=True, slots=True)
class CopiedStages:
    """Stages on groups of devices, for models that no device, or not every one, can have whole.

    Operators in topological order are cut into up to `STAGES` stages. For each way to group the
    devices, a dynamic programme over `CUTS` positions minimises the largest estimated load of a
    device, its share of the stage's compute time, or of a channel, its share of the transfers
    between two stages. It is infinite where the stage's resident bytes do not fit. The best
    `JUDGED` groupings are judged. O(groupings * CUTS^2 * STAGES). After the replicated stages of
    PipeDream (doi 10.1145/3341301.3359646), here on devices that differ; ours.
    """

    name: ClassVar[str] = "copied-stages"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where copies may be on devices that differ, over links, and nothing is pinned."""
        return WholeCopies().unsupported_reason(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: none of those that were judged fits."""
        chain = _Chain(problem)
        made: list[tuple[float, OperatorPlan]] = []
        for groups in groupings(problem):
            if made and context.remaining_s() <= 0:
                break
            made.append(chain.best(groups))
        made = sorted((m for m in made if m[0] < np.inf), key=lambda found: found[0])
        judged = [(judge(problem, plan), plan) for _, plan in made[:JUDGED]]
        fit = [(found.value, k) for k, (found, _) in enumerate(judged) if found.feasible]
        if not fit:
            raise InfeasibleError(
                "no chain of stages with copies fits",
                where=problem.name,
                by=f"{len(judged)} plans for {problem.m} devices were judged",
            )
        return judged[min(fit)[1]][1]


def groupings(problem: OperatorProblem) -> Iterator[Groups]:
    """Ways to give all devices to one to three stages, in every order of the stages."""
    m = problem.m
    took = np.minimum(problem.compute_s, HUGE).sum(axis=0)
    by_speed = np.argsort(took, kind="stable").tolist()
    for count in range(1, min(STAGES, m) + 1):
        if m <= FEW:
            for stage in product(range(count), repeat=m):
                if len(set(stage)) == count:
                    yield tuple(tuple(d for d in by_speed if stage[d] == k) for k in range(count))
            continue
        for inner in combinations(range(1, m), count - 1):
            ends = (0, *inner, m)
            own = [tuple(by_speed[a:b]) for a, b in pairwise(ends)]
            yield from permutations(own)


class _Chain:
    """Operators in order, where they may be cut, and what lies between two cuts."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        place = np.argsort(problem.topology.order)
        _, group = np.unique(problem.colocation, return_inverse=True)
        first = np.full(group.max() + 1, problem.n)
        np.minimum.at(first, group, place)
        self.place = first[group]  # operators that belong together go where the first one goes
        crossing_s, crossing = self._crossing()
        self.cuts = self._positions(crossing_s)
        self.crossing = crossing[self.cuts]
        self.crossing_bytes = crossing_s[self.cuts]
        took = np.zeros((problem.n + 1, problem.m))
        np.add.at(took[1:], self.place, np.minimum(problem.compute_s, HUGE))
        self.took = took.cumsum(axis=0)[self.cuts]
        held = np.zeros(problem.n + 1)
        np.add.at(held[1:], self.place, problem.resident_bytes)
        self.held = held.cumsum()[self.cuts]

    def _crossing(self) -> tuple[FloatArray, FloatArray]:
        """Shape (n + 1,) each: bytes, and number, of tensors that a cut before that place crosses.

        A tensor is counted from its producer to its last reader.
        """
        p = self.problem
        tensor = p.consumed
        last = self.place[p.tensor_producer].copy()
        np.maximum.at(last, tensor, self.place[p.consumers])
        found = []
        for weight in (p.tensor_bytes, np.ones(p.t)):
            change = np.zeros(p.n + 2)
            np.add.at(change, self.place[p.tensor_producer] + 1, weight)
            np.add.at(change, last + 1, -weight)
            found.append(change.cumsum()[: p.n + 1])
        return found[0], found[1]

    def _positions(self, crossing_bytes: FloatArray) -> IntArray:
        """The cheapest position of every equal part of the chain, its begin and its end."""
        n = self.problem.n
        edges = np.unique(np.linspace(1, n, min(CUTS, max(n - 1, 1)) + 1).astype(np.int64))
        inner = [a + int(np.argmin(crossing_bytes[a:b])) for a, b in pairwise(edges)]
        return np.array(sorted({0, *inner, n}), dtype=np.int64)

    def best(self, groups: Groups) -> tuple[float, OperatorPlan]:
        """The estimated value of the best cuts for these devices, and the plan."""
        count = len(self.cuts)
        found = np.full(count, np.inf)
        found[0] = 0.0
        back: list[IntArray] = []
        for k, own in enumerate(groups):
            after = groups[k + 1] if k + 1 < len(groups) else ()
            table = np.maximum(found[:, None], self._load_s(own, after))
            back.append(table.argmin(axis=0))
            found = table.min(axis=0)
        ends = [count - 1]
        for choice in reversed(back):
            ends.append(int(choice[ends[-1]]))
        bounds = self.cuts[ends[::-1]]
        stage = np.searchsorted(bounds, self.place, side="right") - 1
        homes = np.array([own[0] for own in groups])
        leader = np.arange(self.problem.m)
        for own in groups:
            leader[list(own)] = own[0]
        return float(found[-1]), OperatorPlan(homes[stage], replica_of=leader)

    def _load_s(self, own: Sequence[int], after: Sequence[int]) -> FloatArray:
        """Shape (cuts, cuts): largest load of these devices with what lies between two cuts.

        And of the channels to the devices of the next stage.
        """
        devices = list(own)
        took = self.took[None, :, devices] - self.took[:, None, devices]
        with np.errstate(divide="ignore", invalid="ignore"):
            # Dealt by speed all of them take equally long: 1 / the sum of their rates.
            load: FloatArray = np.where(took.min(axis=2) > 0, 1.0 / (1.0 / took).sum(axis=2), 0.0)
        load = np.maximum(load, self._channel_s(own, after))
        held = self.held[None, :] - self.held[:, None]
        load[held > self.problem.memory_bytes[devices].min()] = np.inf
        load[np.tril_indices(len(load))] = np.inf
        return load

    def _channel_s(self, givers: Sequence[int], takers: Sequence[int]) -> FloatArray:
        """Shape (cuts,): largest load of a channel between two groups; none with free links.

        Which device takes what part of the samples is guessed from its time for the whole model.
        """
        p, link = self.problem, np.ix_(list(givers), list(takers))
        if not takers or p.links is Links.FREE:
            return np.zeros(len(self.cuts))
        speed = 1.0 / np.maximum(self.took[-1], TINY)
        parts = [speed[list(group)] / speed[list(group)].sum() for group in (givers, takers)]
        both = np.multiply.outer(*parts).ravel()
        _, channel = np.unique(p.channel[link].ravel(), return_inverse=True)
        latency, per_byte = (
            np.bincount(channel, both * rate[link].ravel())
            for rate in (p.latency_s, p.seconds_per_byte)
        )
        with np.errstate(invalid="ignore"):  # devices without a link
            spent = self.crossing[:, None] * latency + self.crossing_bytes[:, None] * per_byte
        most: FloatArray = np.nan_to_num(spent, nan=np.inf, posinf=np.inf).max(axis=1)
        return np.where(self.crossing > 0, most, 0.0)
