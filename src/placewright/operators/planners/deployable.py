"""The simplest plan within a tolerance of the best one: what an engineer would deploy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, IntArray, thawed
from placewright.operators.costs import Groups, groups_of
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.chain_dp import ChainDp
from placewright.operators.planners.chains import depth_first_line, units_by_module
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Proposal

CHAIN_SHARE = 0.1
"""Of the effort, for judging layer splits over subsets of the devices."""

STARTS = 4
"""Layer splits, the simplest ones, that are simplified further beside the best plan."""

ERROR, ERROR_PER_TRANSFER, LARGEST_ERROR = 0.03, 0.0006, 0.16
"""What steps of plans that an optimiser has chosen take longer than predicted, as a share: with few
transfers, more for each of them, and at most. Those of single devices are as predicted. Measured by
``benchmarks/prediction.py``; see docs/results/prediction.md."""

MOST_SPLITS = 512
"""Layer splits that are judged, in each round of shrinking budgets."""


class Complexity(NamedTuple):
    """How much there is to deploy; compared from left to right, less is better.

    Attributes
    ----------
    devices
        That run an operator.
    pairs
        Of devices that exchange tensors, in either direction.
    cuts
        Changes of device along the modules in the order of execution, each with its backward pass.
    split
        Modules on several devices, those that hold other modules counted too.
    transfers
        Tensors sent per step, once per receiving device.
    """

    devices: int
    pairs: int
    cuts: int
    split: int
    transfers: int

    def __str__(self) -> str:
        parts = ((self.devices, "device"), (self.cuts, "cut"), (self.transfers, "transfer"))
        return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in parts)


class Structure:
    """Modules in the order of execution and edges of the graph, to count the parts of a plan."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem, self.groups = problem, groups_of(problem)
        line = depth_first_line(problem)
        unit = units_by_module(problem, self.groups)
        self.line: IntArray = np.lexsort((line, unit))
        self.tensor = problem.consumed
        self.source = problem.tensor_producer[self.tensor]
        self.target = problem.consumers
        self.modules = modules_around(problem)
        self.member: IntArray = np.concatenate([np.zeros(0, dtype=np.int64), *self.modules])
        self.path: IntArray = np.repeat(np.arange(len(self.modules)), [*map(len, self.modules)])

    def sent(self, place: IntArray) -> tuple[IntArray, IntArray]:
        """Tensor and receiving device of every transfer."""
        crossing = place[self.source] != place[self.target]
        code = self.tensor[crossing] * self.problem.m + place[self.target[crossing]]
        tensor, device = np.divmod(np.unique(code), self.problem.m)
        return tensor, device

    def _used(self, place: IntArray) -> BoolArray:
        """Shape (modules, m): whether a module has an operator on a device."""
        used = np.zeros((len(self.modules), self.problem.m), dtype=np.bool_)
        used[self.path, place[self.member]] = True
        return used

    def complexity(self, place: IntArray) -> Complexity:
        """Of a placement."""
        tensor, to = self.sent(place)
        ends = np.sort(np.stack([place[self.problem.tensor_producer[tensor]], to]), axis=0)
        along = place[self.line]
        return Complexity(
            devices=len(np.unique(place)),
            pairs=len(np.unique(ends[0] * self.problem.m + ends[1])),
            cuts=int(np.count_nonzero(along[1:] != along[:-1])),
            split=int(np.count_nonzero(self._used(place).sum(axis=1) > 1)),
            transfers=len(tensor),
        )


def modules_around(problem: OperatorProblem) -> list[IntArray]:
    """Operators of every module, in modules below it too; inner modules first."""
    inside: dict[str, list[int]] = {}
    for i, path in enumerate(problem.operator_modules):
        while path:
            inside.setdefault(path, []).append(i)
            path = path.rpartition(".")[0]
    order = sorted(inside, key=lambda path: (-path.count("."), inside[path][0]))
    return [np.array(inside[path]) for path in order]


def complexity(problem: OperatorProblem, plan: OperatorPlan) -> Complexity:
    """How much of a plan there is to deploy."""
    return Structure(problem).complexity(plan.placement)


@final
@dataclass(frozen=True, slots=True)
class Deployable:
    """The plan with the least `Complexity` among those found within `tolerance` of the best.

    A plan that is predicted to be faster by less than the judge errs on plans with as many
    transfers is not known to be faster: it must pay for its cuts beyond that.

    Begins with the plans given, and with the layer splits of `ChainDp` over every subset of the
    best devices. Each is simplified by steps that are kept where their judged value stays within
    the tolerance and the complexity is less: a device is emptied, its connected parts go to the
    devices that they exchange most with; small connected parts (an ``arange`` away from its
    reader, a tensor that goes out and back) go to their neighbours; a module on several devices
    goes to the one with most of it; operators at a cut move across it. Of the results the least
    complex is taken, among equals the fastest. Ours.

    At most `effort` operators are simulated; the same plan for the same plans unless a deadline
    cuts it short.

    `effort`: operators simulated, over all plans: the default takes some seconds.
    """

    name: ClassVar[str] = "deployable"
    never_behind: ClassVar[tuple[str, ...]] = ("accelerate-auto",)
    effort: float = 2e7

    def tolerance(self, problem: OperatorProblem, plan: OperatorPlan) -> float:
        """What the judge is known to err by on plans with as many transfers."""
        transfers = complexity(problem, plan).transfers
        return min(ERROR + ERROR_PER_TRANSFER * transfers, LARGEST_ERROR)

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Models of several devices and modules that are known, over links."""
        if not any(problem.operator_modules):
            return "the modules of the operators are not known"
        if problem.m < 2:
            return "there is one device"
        if problem.contiguous or problem.pipeline.described():
            return "does not keep plans contiguous, nor stages replicated"
        return pairwise_only(problem)

    def __call__(
        self,
        problem: OperatorProblem,
        plans: Sequence[OperatorPlan],
        tolerance: float,
        context: Context,
    ) -> OperatorPlan | Proposal[OperatorPlan]:
        """The simplest plan found; one of `plans` itself where that has its placement."""
        if np.ptp(plans[0].placement) == 0:  # the best plan is on one device: none is simpler
            return plans[0]
        search = _SimplerSearch(
            problem, plans[0], tolerance, self.effort / problem.n, context.deadline_s
        )
        before = search.best.complexity
        by_complexity = sorted(
            range(len(plans)), key=lambda k: (search.structure.complexity(plans[k].placement), k)
        )
        # `plans[0]` is the best one, which all tolerances are of: it is simplified in any case.
        for k in dict.fromkeys((*by_complexity[:STARTS], 0)):
            search.simplify(thawed(plans[k].placement))
        for place in search.layer_splits():
            search.simplify(place)
        for plan in plans:
            if np.array_equal(plan.placement, search.best.place):
                return plan
        now, then = str(search.best.complexity), str(before)
        return Proposal(search.best_plan(), note=now if now == then else f"{now}; before: {then}")


@dataclass(slots=True)
class _Found:
    """A placement within the limit, and how it is dispatched."""

    place: IntArray
    value_s: float
    complexity: Complexity
    ordered: bool


@dataclass(slots=True, eq=False)
class _SimplerSearch:
    """The best placement so far; `left` placements may still be simulated."""

    problem: OperatorProblem
    incumbent: OperatorPlan
    tolerance: float
    left: float
    deadline_s: float
    judge: OperatorJudge = field(init=False)
    structure: Structure = field(init=False)
    groups: Groups = field(init=False)
    limit_s: float = field(init=False)
    best: _Found = field(init=False)

    def __post_init__(self) -> None:
        self.judge, self.structure = OperatorJudge(self.problem), Structure(self.problem)
        self.groups = self.structure.groups
        value = float(self.judge(self.incumbent).value)
        self.limit_s = value * (1 + self.tolerance)
        place = thawed(self.incumbent.placement)
        self.best = _Found(place, value, self.structure.complexity(place), ordered=True)

    def best_plan(self) -> OperatorPlan:
        """With the order of the incumbent where that is the better one."""
        found = self.best
        if found.ordered:
            return OperatorPlan(found.place, self.incumbent.order, self.incumbent.dispatch)
        return OperatorPlan(found.place)

    def done(self) -> bool:
        """Whether effort or time are used up."""
        return self.left <= 0 or time.perf_counter() >= self.deadline_s

    def tried(self, place: IntArray) -> _Found | None:
        """A placement within the limit and the memories, ``None`` where it is not."""
        row, found = place[None, :], []
        ways: list[tuple[IntArray | None, Dispatch]] = [(None, Dispatch.READY)]
        if self.incumbent.order is not None:
            ways.insert(0, (thawed(self.incumbent.order), self.incumbent.dispatch))
        for order, dispatch in ways:
            value, over = self.judge.many(row, order, dispatch)
            self.left -= 1
            if over[0] == 0 and value[0] <= self.limit_s:
                found.append((float(value[0]), order is not None))
        if not found:
            return None
        value_s, ordered = min(found)
        return _Found(place, value_s, self.structure.complexity(place), ordered)

    def layer_splits(self) -> Iterator[IntArray]:
        """The simplest layer splits over subsets of the best devices that are within the limit."""
        count = int(min(MOST_SPLITS, CHAIN_SHARE * self.left))
        planner = ChainDp(judged=max(1, count), rounds=2)
        if planner.unsupported_reason(self.problem) is not None:
            return
        try:
            starts = planner.splits(self.problem, self.deadline_s)
        except InfeasibleError:
            return
        self.left -= len(starts)
        within = [
            (self.structure.complexity(s.place), s.score.value_s, k)
            for k, s in enumerate(starts)
            if s.score.over_bytes == 0 and s.score.value_s <= self.limit_s
        ]
        for *_, k in sorted(within)[:STARTS]:
            yield thawed(starts[k].place)

    def simplify(self, place: IntArray) -> None:
        """Simplify a placement until no step does, and keep it if it is the best."""
        found = self.tried(place)
        if found is None:
            return
        steps: Sequence[Callable[[_Found], _Found]] = (
            self._fewer_devices,
            self._fewer_parts,
            self._whole_modules,
            self._shifted_cuts,
        )
        while not self.done():
            before = found.complexity
            for step in steps:
                found = step(found)
            if found.complexity >= before:
                break
        if (found.complexity, found.value_s) < (self.best.complexity, self.best.value_s):
            self.best = found

    def _better(self, found: _Found, place: IntArray) -> _Found:
        """`place` where it is within the limit and less complex, else what was found."""
        # Complexity costs little next to a simulation: look at it first.
        if self.done() or self.structure.complexity(place) >= found.complexity:
            return found
        return self.tried(place) or found

    def _fewer_devices(self, found: _Found) -> _Found:
        """Empty devices, those with least to do first."""
        p = self.problem
        busy = np.bincount(found.place, p.compute_s[np.arange(p.n), found.place], p.m)
        for d in np.argsort(busy, kind="stable").tolist():
            used = np.unique(found.place)
            if d not in used or len(used) == 1:
                continue
            parts = [part for part in self._parts(found.place) if found.place[part[0]] == d]
            others = used[used != d]
            place = found.place.copy()
            for part in parts:
                self._send(place, part, self._nearest(found.place, part, others))
            found = self._better(found, place)
            for e in others.tolist():
                place = found.place.copy()
                self._send(place, np.flatnonzero(place == d), e)
                found = self._better(found, place)
        return found

    def _fewer_parts(self, found: _Found) -> _Found:
        """Send connected parts, the smallest first, to the device they exchange most with."""
        parts = self._parts(found.place)
        largest = np.zeros(self.problem.m)
        size = [self._seconds(found.place, part) for part in parts]
        for part, seconds in zip(parts, size, strict=True):
            d = found.place[part[0]]
            largest[d] = max(largest[d], seconds)
        order = sorted(range(len(parts)), key=lambda k: (size[k], k))
        # The largest part of each device stays: emptying devices is `_fewer_devices`.
        small = [parts[k] for k in order if size[k] < largest[found.place[parts[k][0]]]]
        return self._in_halves(found, small)

    def _in_halves(self, found: _Found, parts: Sequence[IntArray]) -> _Found:
        """Send all parts at once; where that is not within the limit, each half on its own."""
        used = np.unique(found.place)
        if not parts or len(used) < 2 or self.done():
            return found
        place = found.place.copy()
        for part in parts:
            here = place[part[0]]
            self._send(place, part, self._nearest(place, part, used[used != here]))
        better = self._better(found, place)
        # Delta debugging: what cannot be sent all at once may still be sent in part.
        if better is not found or len(parts) == 1:
            return better
        half = len(parts) // 2
        return self._in_halves(self._in_halves(found, parts[:half]), parts[half:])

    def _whole_modules(self, found: _Found) -> _Found:
        """Send modules on several devices to the one with most of them, inner ones first."""
        for members in self.structure.modules:
            if self.done():
                break
            used = np.unique(found.place[members])
            if len(used) < 2:
                continue
            took = np.bincount(
                found.place[members],
                self.problem.compute_s[members, found.place[members]],
                self.problem.m,
            )
            for d in sorted(used.tolist(), key=lambda d: (-took[d], d))[:2]:
                place = found.place.copy()
                self._send(place, members, d)
                found = self._better(found, place)
        return found

    def _shifted_cuts(self, found: _Found) -> _Found:
        """Send groups that exchange tensors with another device there, one at a time."""
        crossing = found.place[self.structure.source] != found.place[self.structure.target]
        ends = self.structure.source[crossing], self.structure.target[crossing]
        moves = {
            (int(self.groups.group[i]), int(found.place[j]))
            for a, b in zip(*ends, strict=True)
            for i, j in ((a, b), (b, a))
        }
        for g, d in sorted(moves):
            if self.done():
                break
            place = found.place.copy()
            self._send(place, np.array([self.groups.first[g]]), d)
            found = self._better(found, place)
        return found

    def _parts(self, place: IntArray) -> list[IntArray]:
        """Operators of one device that tensors or colocation connect, in the order of the first."""
        root = np.arange(len(self.groups.first))
        same = place[self.structure.source] == place[self.structure.target]
        a = self.groups.group[self.structure.source[same]]
        b = self.groups.group[self.structure.target[same]]
        # Connected components by label propagation with pointer jumping: a few rounds in numpy.
        while True:  # each group takes the smallest number that it is connected to
            least = root.copy()
            np.minimum.at(least, a, root[b])
            np.minimum.at(least, b, root[a])
            least = least[least]
            if np.array_equal(least, root):
                break
            root = least
        part = root[self.groups.group]
        order = np.argsort(part, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(part[order])) + 1)

    def _nearest(self, place: IntArray, part: IntArray, others: IntArray) -> int:
        """Of `others` the one that exchanges most bytes with a part; a tensor counts one more."""
        p, inside = self.problem, np.zeros(self.problem.n, dtype=np.bool_)
        inside[part] = True
        out = inside[self.structure.source] & ~inside[self.structure.target]
        into = inside[self.structure.target] & ~inside[self.structure.source]
        device = np.concatenate(
            [place[self.structure.target[out]], place[self.structure.source[into]]]
        )
        tensor = np.concatenate([self.structure.tensor[out], self.structure.tensor[into]])
        exchanged = np.bincount(device, p.tensor_bytes[tensor] + 1.0, p.m)
        return int(others[exchanged[others].argmax()])

    def _send(self, place: IntArray, operators: IntArray, device: int) -> None:
        """Move the groups of operators to a device, those that may be there."""
        chosen = np.zeros(len(self.groups.first), dtype=np.bool_)
        chosen[self.groups.group[operators]] = True
        chosen &= self.groups.allowed[:, device]
        place[chosen[self.groups.group]] = device

    def _seconds(self, place: IntArray, part: IntArray) -> float:
        took = self.problem.compute_s[part, place[part]]
        return float(took.sum()) if np.isfinite(took).all() else math.inf
