"""The plans that planners of wing 2 choose from, and how one is put together.

Workers are taken in one of a few orders (as given, fastest first, slowest first; three kinds of
nodes in every order), always node by node. A stage has consecutive workers of the order; workers
that are left out are its last ones, and where workers differ its first ones too. A stage of k
workers is a mesh of k/t replicas of tensor degree t, each inside one node. The replicas' shares of
a micro-batch are proportional to their speeds, rounded so that they add up.

`Exhaustive` judges every plan of the space: for tiny problems, and to check the other planners.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, InputError
from placewright.layers.judge import LayerJudgement, judge
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import pass_s
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context, Count, Proposal

MOST_MICRO_BATCHES = 10
"""Numbers of micro-batches that are tried."""

MOST_IN_A_STEP = 1 << 14
"""The largest of them: every one is simulated."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One stage as a planner sees it: layers, where its workers begin and end in the order."""

    first_layer: int
    last_layer: int
    begin: int
    end: int
    degree: int = 1
    strategies: tuple[Strategy, ...] = ()
    zero_stage: int = 0
    recompute: bool = False


@lru_cache(maxsize=4)
def orders(p: LayerProblem) -> tuple[tuple[int, ...], ...]:
    """Orders of the workers, without repetitions; the first is as given, node by node.

    One where all workers are of a kind.
    """
    given = sorted(range(p.w), key=lambda w: (int(p.worker_node[w]), w))
    speed = worker_speeds(p)
    node = {
        n: max(speed[w] for w in given if p.worker_node[w] == n) for n in p.worker_node.tolist()
    }
    fast = sorted(
        given, key=lambda w: (-node[int(p.worker_node[w])], int(p.worker_node[w]), -speed[w], w)
    )
    if len({(int(k), m) for k, m in zip(p.worker_kind, p.memory_bytes, strict=True)}) == 1:
        return (tuple(given),)
    found = [tuple(given), tuple(fast), tuple(reversed(fast))]
    likeness = _node_kinds(p)
    kinds = list(dict.fromkeys(likeness[int(p.worker_node[w])] for w in fast))
    if len(kinds) == 3:
        for kinds_first in permutations(kinds):
            rank = {kind: k for k, kind in enumerate(kinds_first)}
            found.append(tuple(sorted(fast, key=lambda w: rank[likeness[int(p.worker_node[w])]])))
    return tuple(dict.fromkeys(found))


def _node_kinds(p: LayerProblem) -> dict[int, tuple[object, ...]]:
    """Nodes of equal workers have equal entries."""
    found: dict[int, list[tuple[int, float]]] = {}
    for w in range(p.w):
        own = found.setdefault(int(p.worker_node[w]), [])
        own.append((int(p.worker_kind[w]), float(p.memory_bytes[w])))
    return {node: tuple(sorted(own)) for node, own in found.items()}


def starts(p: LayerProblem) -> range:
    """Where in an order the first stage may begin: anywhere, if workers differ."""
    return range(p.w if len(orders(p)) > 1 else 1)


@lru_cache(maxsize=4)
def worker_speeds(p: LayerProblem) -> tuple[float, ...]:
    """Samples per second of each worker on the whole model, alone; by the largest size."""
    found = []
    for kind in range(len(p.kind_names)):
        samples = float(p.sizes[-1])
        forward, backward = pass_s(p, kind, 1, samples)
        taken = float(np.nansum(forward + backward))
        found.append(samples / taken if taken > 0 else 1.0)
    return tuple(found[k] for k in p.worker_kind.tolist())


def micro_batch_counts(p: LayerProblem, most: int = MOST_MICRO_BATCHES) -> list[int]:
    """Numbers of micro-batches: divisors of the global batch, at most `most` of them.

    None is above `MOST_IN_A_STEP`, unless the problem names it.
    """
    if p.micro_batches:
        return [p.micro_batches]
    if any(x.strategy is Strategy.DATA for x in p.refusals):  # these layers see the whole batch
        return [1]
    divisors = [m for m in divisors_of(p.global_batch) if m <= MOST_IN_A_STEP]
    if len(divisors) <= most:
        return divisors
    at = np.unique(np.linspace(0, len(divisors) - 1, most).round().astype(int))
    return [divisors[i] for i in at]


@lru_cache(maxsize=8)
def divisors_of(number: int) -> tuple[int, ...]:
    """Ascending."""
    small = [m for m in range(1, math.isqrt(number) + 1) if number % m == 0]
    return tuple(sorted({*small, *(number // m for m in small)}))


def shares(speeds: Sequence[float], total: int) -> tuple[int, ...] | None:
    """Whole shares proportional to the speeds that add up to `total`; ``None`` below one each."""
    if total < len(speeds):
        return None
    exact = [total * s / sum(speeds) for s in speeds]
    whole = [max(1, math.floor(x)) for x in exact]
    while sum(whole) > total:
        i = max((i for i, x in enumerate(whole) if x > 1), key=lambda i: whole[i] - exact[i])
        whole[i] -= 1
    while sum(whole) < total:  # the sample goes where the replica ends first with it
        i = min(range(len(whole)), key=lambda i: ((whole[i] + 1) / speeds[i], i))
        whole[i] += 1
    return tuple(whole)


def replicas(
    p: LayerProblem, workers: Sequence[int], degree: int, micro: int, speed: Sequence[float]
) -> tuple[Replica, ...] | None:
    """Replicas of consecutive workers with their shares; ``None`` where that is not possible."""
    if len(workers) % degree:
        return None
    groups = [tuple(workers[i : i + degree]) for i in range(0, len(workers), degree)]
    if any(len({int(p.worker_node[w]) for w in group}) > 1 for group in groups):
        return None
    split = shares([min(speed[w] for w in group) for group in groups], micro)
    if split is None:
        return None
    return tuple(Replica(g, n) for g, n in zip(groups, split, strict=True))


def build(
    p: LayerProblem,
    order: Sequence[int],
    cells: Sequence[Cell],
    micro_batches: int,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> LayerPlan | None:
    """The plan of these stages; ``None`` where workers, shares or strategies do not come out."""
    speed, micro = worker_speeds(p), p.global_batch // micro_batches
    stages = []
    for cell in cells:
        found = replicas(p, order[cell.begin : cell.end], cell.degree, micro, speed)
        if found is None:
            return None
        stage = Stage(
            cell.first_layer,
            cell.last_layer,
            found,
            cell.degree,
            cell.strategies,
            cell.zero_stage,
            cell.recompute,
        )
        if any(p.refusal(i, stage.strategy(i), cell.degree) for i in stage.layers):
            return None
        if p.whole_batch(stage, micro_batches) is not None:
            return None
        stages.append(stage)
    return LayerPlan(tuple(stages), micro_batches, schedule)


def judged(p: LayerProblem, plan: LayerPlan | None) -> LayerJudgement | None:
    """The judgement of a plan, ``None`` where it cannot run (no link, a layer not measured)."""
    if plan is None:
        return None
    try:
        return judge(p, plan)
    except InputError:
        return None


def better(one: LayerJudgement | None, other: LayerJudgement | None) -> bool:
    """Whether `one` is better: fits and is faster, or misses less memory."""
    if one is None or other is None:
        return one is not None
    return (one.violation_size, one.value) < (other.violation_size, other.value)


class Pool:
    """Judged plans of a problem, whatever memory they need.

    What is judged must not depend on the memory of the workers: then more memory lets more plans of
    the same pool fit, and the best of them is never worse.
    """

    def __init__(self, p: LayerProblem) -> None:
        self.p = p
        self.found: dict[LayerPlan, LayerJudgement | None] = {}

    def add(self, plan: LayerPlan | None) -> LayerJudgement | None:
        """Judge a plan, once."""
        if plan is None:
            return None
        if plan not in self.found:
            self.found[plan] = judged(self.p, plan)
        return self.found[plan]

    def better(self, plan: LayerPlan, other: LayerPlan | None, room: FloatArray) -> bool:
        """Whether a plan is better than another one with `room` bytes, shape (W,), on workers."""
        one = self.add(plan)
        if one is None:
            return False
        two = self.add(other)
        if two is None:
            return True
        return (_missing(one, room), one.value) < (_missing(two, room), two.value)

    def best(self, room: FloatArray) -> LayerPlan | None:
        """The best of all with so much room."""
        best: LayerPlan | None = None
        for plan in self.found:
            if self.better(plan, best, room):
                best = plan
        return best


def _missing(found: LayerJudgement, room: FloatArray) -> float:
    return max(0.0, float(np.nan_to_num(found.least_bytes - room, nan=-math.inf).max()))


def best_of(
    p: LayerProblem, plans: Iterator[LayerPlan], context: Context, what: str
) -> Proposal[LayerPlan]:
    """The best of these plans by the judge, or the best in time or before Ctrl-C.

    Raises `InfeasibleError`: none of them, said to be `what`, can run.
    """
    best: LayerJudgement | None = None
    interrupted = False
    try:
        for plan in plans:
            found = judged(p, plan)
            if better(found, best):
                best = found
            if best is not None and context.remaining_s() < 0:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    if best is None:
        raise InfeasibleError(f"no {what} can run on these workers and links", where=p.name)
    return Proposal(best.plan, interrupted=interrupted)


def splits_no_layer(problem: LayerProblem) -> str | None:
    """Why there is no plan that splits layers over the workers of a replica; ``None``: there is."""
    if problem.variants is not None:
        return "plans steps, not throughput"
    return None if len(problem.degrees) > 1 else "there are no costs for tensor degrees above 1"


def memory_options(p: LayerProblem) -> list[tuple[int, bool]]:
    """ZeRO stages and recomputation that plans may use, cheapest first."""
    again = (False, True) if p.recompute else (False,)
    return [(zero, r) for r in again for zero in p.zero_stages]


def whole_stage(
    p: LayerProblem,
    order: Sequence[int],
    used: int,
    degree: int,
    strategies: tuple[Strategy, ...] = (),
) -> Iterator[LayerPlan]:
    """One stage of the first `used` workers, with every memory option and micro-batch count."""
    for micro_batches in micro_batch_counts(p):
        for zero, recompute in memory_options(p):
            cell = Cell(0, p.n - 1, 0, used, degree, strategies, zero, recompute)
            plan = build(p, order, [cell], micro_batches)
            if plan is not None:
                yield plan


def cells_of(p: LayerProblem) -> Iterator[tuple[Cell, ...]]:
    """Every division of the layers into stages on consecutive workers of every degree."""

    def extend(layer: int, worker: int) -> Iterator[tuple[Cell, ...]]:
        if layer == p.n:
            yield ()
            return
        for last in range(layer, p.n):
            for end in range(worker + 1, p.w + 1):
                for degree in p.degrees:
                    if (end - worker) % degree == 0:
                        cell = Cell(layer, last, worker, end, degree)
                        for rest in extend(last + 1, end):
                            yield (cell, *rest)

    for start in starts(p):
        yield from extend(0, start)


def space_size(p: LayerProblem, most: int) -> int:
    """Number of plans in the space, at most `most`."""
    options = len(orders(p)) * len(micro_batch_counts(p)) * len(memory_options(p))
    # Of one and two stages without tensor parallelism alone: the recursion below is for few layers
    # and workers.
    if options * (p.w + (p.n - 1) * p.w * (p.w - 1) // 2) >= most:
        return most
    count = 0
    for _ in cells_of(p):
        count += options
        if count >= most:
            return most
    return count


def every_plan(p: LayerProblem) -> Iterator[LayerPlan]:
    """All plans of the space of `placewright.layers.planners.space`."""
    for order in orders(p):
        for cells in cells_of(p):
            for zero, again in memory_options(p):
                chosen = [replace(c, zero_stage=zero, recompute=again) for c in cells]
                for micro_batches in micro_batch_counts(p):
                    plan = build(p, order, chosen, micro_batches)
                    if plan is not None:
                        yield plan


@final
@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Judge every plan of the space.

    `most`: plans above which it declines.
    """

    most: Count = 20_000
    name: ClassVar[str] = "exhaustive"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where there are too many plans."""
        if problem.variants is not None:
            return "plans steps, not throughput"
        if space_size(problem, self.most) >= self.most:
            return f"more than {self.most} plans"
        return None

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan; raises `InfeasibleError` where none can run."""
        return best_of(problem, every_plan(problem), context, "plan")
