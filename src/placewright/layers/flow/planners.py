"""Planners of layer ranges; `FlowPlanning` lists them, with judge and bounds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.io.arguments import Range
from placewright.layers.flow.bounds import bounds
from placewright.layers.flow.kernels import anneal
from placewright.layers.flow.problem import (
    FlowJudgement,
    FlowProblem,
    LayerRanges,
    judge,
    ranges_of,
)
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import (
    Context,
    Count,
    Planner,
    Proposal,
    TakesEveryProblem,
    last_of,
)
from placewright.planning.wing import Planning
from placewright.planning.wings import with_plug_ins


class FlowPlanning(Planning):
    """What `solve` needs of layer ranges."""

    def planners(self, problem: FlowProblem) -> Mapping[str, Planner]:
        """Every planner by name."""
        own: list[Planner] = [Equal(), Memory(), Swarm(), Petals(), Chain(), Annealing()]
        return with_plug_ins("layers.flow", own)

    def judge(self, problem: FlowProblem, plan: LayerRanges) -> FlowJudgement:
        """By maximum flow."""
        return judge(problem, plan)

    def bounds(self, problem: FlowProblem) -> Mapping[str, float]:
        """All are quick."""
        return bounds(problem)

    def objective(self, problem: FlowProblem) -> str:
        """Tokens per second."""
        return "throughput"

    def baselines(self, problem: FlowProblem) -> Sequence[str]:
        """Rules that do not look at speeds, at links or at either."""
        return ("equal", "memory", "swarm", "petals")


PLANNING = FlowPlanning()


@final
@dataclass(frozen=True, slots=True)
class Equal(TakesEveryProblem):
    """Equal parts of the layers for all machines, one after another in their order."""

    name: str = "equal"

    def __call__(self, problem: FlowProblem, context: Context) -> LayerRanges:
        """Parts that differ by one layer at most."""
        return _in_a_row(problem, np.ones(problem.n))


@final
@dataclass(frozen=True, slots=True)
class Memory(TakesEveryProblem):
    """Parts of the layers in proportion to how many each machine can hold, in their order."""

    name: str = "memory"

    def __call__(self, problem: FlowProblem, context: Context) -> LayerRanges:
        """Parts rounded so that all layers are held once."""
        return _in_a_row(problem, problem.most.astype(np.float64))


def _in_a_row(p: FlowProblem, weight: FloatArray) -> LayerRanges:
    """Layers in proportion to weights.

    Raises `InfeasibleError`: a machine cannot hold its part.
    """
    if not weight.any():
        raise InfeasibleError("no machine can hold a layer", where=p.name)
    cuts = np.rint(p.layers * np.cumsum(weight) / weight.sum()).astype(np.int64)
    starts = np.concatenate([[0], cuts[:-1]])
    over = cuts - starts - p.most
    if over.max() > 0:
        i = int(over.argmax())
        by = f"{cuts[i] - starts[i]} layers, at most {p.most[i]}"
        raise InfeasibleError("cannot hold its part", where=p.node_names[i], by=by)
    held = cuts > starts
    return ranges_of(np.where(held, starts, 0), np.where(held, cuts, 0))


@final
@dataclass(frozen=True, slots=True)
class Swarm(TakesEveryProblem):
    """Stages of equal length, machines where they add most to the slowest stage.

    After SWARM parallelism (Ryabinin et al., ICML 2023, arXiv:2301.11913): the stages are as long
    as the machine with the least memory allows.
    """

    name: str = "swarm"

    def __call__(self, problem: FlowProblem, context: Context) -> LayerRanges:
        """The fastest machines first."""
        able = problem.most > 0
        if not able.any():
            raise InfeasibleError("no machine can hold a layer", where=problem.name)
        stages = -(-problem.layers // int(problem.most[able].min()))
        cuts = np.rint(np.linspace(0, problem.layers, stages + 1)).astype(np.int64)
        length = np.diff(cuts)
        rates = problem.rates[:, length] * able[:, None]
        total, start, end = np.zeros(stages), np.zeros(problem.n, int), np.zeros(problem.n, int)
        for i in np.argsort(-rates.max(axis=1), kind="stable").tolist():
            if able[i]:
                s = int(total.argmin())
                start[i], end[i] = cuts[s], cuts[s + 1]
                total[s] += rates[i, s]
        return ranges_of(start, end)


@final
@dataclass(frozen=True, slots=True)
class Petals(TakesEveryProblem):
    """Each machine in turn holds as many layers as it can, where they are held worst.

    After Petals (Borzunov et al., ACL 2023, arXiv:2209.01188). Its servers may begin in the middle
    of their range; without partial inference such ranges seldom join.
    """

    name: str = "petals"

    def __call__(self, problem: FlowProblem, context: Context) -> LayerRanges:
        """In the order of the machines, as they would come in."""
        held = np.zeros(problem.layers)
        start, end = np.zeros(problem.n, dtype=int), np.zeros(problem.n, dtype=int)
        for i, most in enumerate(problem.most.tolist()):
            if most == 0:
                continue
            windows = np.sort(np.lib.stride_tricks.sliding_window_view(held, most), axis=1)
            s = min(range(len(windows)), key=lambda a: (*windows[a], a))
            start[i], end[i] = s, s + most
            held[s : s + most] += problem.rates[i, most]
        return ranges_of(start, end)


@final
@dataclass(frozen=True, slots=True)
class Chain(TakesEveryProblem):
    """The fastest chain: every layer on one machine, each of them fast enough for all tokens.

    For each rate of the tables, largest first, a depth-first search for a path over links and
    machines of at least this rate; `steps` limits it, after which the next rate is tried.
    """

    steps: Count = 3_000
    name: str = "chain"

    def __call__(self, problem: FlowProblem, context: Context) -> LayerRanges:
        """The first chain that is found.

        Raises `InfeasibleError`: there is none.
        """
        rates = np.unique(problem.rates[problem.rates > 0])[::-1]
        for rate in rates.tolist():
            if (found := _chain(problem, rate, self.steps)) is not None:
                return found
        raise InfeasibleError("no chain of machines holds all layers", where=problem.name)


def _chain(p: FlowProblem, rate: float, steps: int) -> LayerRanges | None:
    """A chain in which everything has at least this rate; machines that hold most come first."""
    width = min(p.rates.shape[1], p.layers + 1)
    able = p.rates[:, :width] >= rate
    most = np.where(able.any(axis=1), width - 1 - able[:, ::-1].argmax(axis=1), 0)
    if most.sum() < p.layers:
        return None
    order, linked = np.argsort(-most, kind="stable").tolist(), p.links >= rate
    kinds = p.classes
    path, used = list[tuple[int, int, int]](), set[int]()

    def extensions(tail: int, at: int) -> Iterator[tuple[int, int, int]]:
        """Machines that may follow, and where they end; equal ones with equal links once."""
        tried = set[tuple[int, bytes, bytes]]()
        for i in order:
            alike = int(kinds[i]), linked[i].tobytes(), linked[:, i].tobytes()
            if i in used or not linked[tail, i] or alike in tried:
                continue
            tried.add(alike)
            for k in range(min(int(most[i]), p.layers - at), 0, -1):
                if able[i, k] and (at + k < p.layers or linked[i, p.n + 1]):
                    yield i, at, at + k

    stack = [extensions(p.n, 0)]
    for _ in range(steps):
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if not stack:
                return None
            used.discard(path.pop()[0])
            continue
        i, _, end = step
        if end == p.layers:
            start_of = {j: (s, e) for j, s, e in (*path, step)}
            ranges = [start_of.get(j, (0, 0)) for j in range(p.n)]
            return ranges_of([s for s, _ in ranges], [e for _, e in ranges])
        left = sum(int(most[j]) for j in order if j not in used and j != i)
        if end + left >= p.layers:
            path.append(step)
            used.add(i)
            stack.append(extensions(i, end))
    return None


TARGETS = (1.01, 1.03, 1.08)
"""What a run looks for, by the best flow so far."""

WEIGHTS, HOT, COLD = (3.0, 10.0), 0.03, 3e-4
"""Of coverage, of which each run draws one, and first and last temperatures by the target."""

AGAIN = 0.35
"""Share of runs that begin with the best plan."""

MOST_CHUNK, CHUNK_PAIRS = 100_000, 1.5e8
"""Steps between two looks at the clock and at Ctrl-C: at most, and with the square of machines."""

FIRST = 20_000
"""Steps of the first runs, where time is limited. Each later one takes as long as all before it:
one that cools slowly finds more than many that cool fast, and needs to know what to look for."""


@final
@dataclass(frozen=True, slots=True)
class Annealing(TakesEveryProblem):
    """Simulated annealing on all cores: runs from the best plan or a random one.

    What is annealed is the flow plus a bound on it by layer, up to a target a little above the best
    flow so far (`placewright.layers.flow.kernels`): plans of one flow differ in how near they are
    to that target. Until the deadline each run takes as long as all before it; where there is none,
    there are `runs` of `steps`.
    """

    runs: Count = 4
    steps: Annotated[int, Range(1_000, 1e9)] = 1_500_000
    name: str = "annealing"

    def __call__(self, problem: FlowProblem, context: Context) -> Proposal[LayerRanges]:
        """The best plan of all runs; Ctrl-C keeps the best so far."""
        plan, interrupted = last_of(self._finds(problem, context))
        return Proposal(plan, interrupted=interrupted)

    def _finds(self, p: FlowProblem, context: Context) -> Iterator[LayerRanges]:
        rng, begun_s = np.random.default_rng(context.seed), time.perf_counter()
        best = random_ranges(p, rng) if context.incumbent is None else _array(context.incumbent)
        value = judge(p, ranges_of(*best)).value
        yield ranges_of(*best)
        endless, begun, done = math.isinf(context.deadline_s), 0, 0
        steps = self.steps if endless else FIRST
        # Without a deadline the answer must not depend on the machine's cores.
        side_by_side = 1 if endless else len(os.sched_getaffinity(0))
        active = list[_Run]()
        with ThreadPoolExecutor(side_by_side) as pool:
            while active or not endless or begun < self.runs:
                while len(active) < side_by_side and (not endless or begun < self.runs):
                    active.append(_Run(p, context.bound, rng, best, value, steps))
                    begun += 1
                for run, flow in zip(active, pool.map(_Run.advance, active), strict=True):
                    if flow > value:
                        value, best = flow, run.best.copy()
                        yield ranges_of(*best)
                done += sum(run.chunk for run in active)
                active = [run for run in active if run.left]
                context.progress(
                    what=f"run {begun}",
                    value=value,
                    bound=context.bound,
                    elapsed_s=time.perf_counter() - begun_s,
                )
                if context.remaining_s() <= 0 or value >= context.bound * (1 - 1e-9):
                    return
                if not endless:
                    spent_s = time.perf_counter() - begun_s
                    share = min(1.0, context.remaining_s() / spent_s)
                    steps = max(1_000, int(share * done / side_by_side))


class _Run:
    """One run of annealing, in chunks: from the best plan or a random one, with drawn parameters.

    `value`, `best`: the best flow so far, and its plan. `left`: chunks to come, of `chunk` steps.
    """

    def __init__(
        self,
        p: FlowProblem,
        bound: float,
        rng: np.random.Generator,
        best: IntArray,
        value: float,
        steps: int,
    ) -> None:
        roof = min(bound, float(p.rates.sum())) if bound > 0 else float(p.rates.sum())
        self.target = min(value * float(rng.choice(TARGETS)) if value > 0 else roof, roof)
        self.weight, self.hot, self.p = float(rng.choice(WEIGHTS)), HOT, p
        again = rng.random() < AGAIN and value > 0
        self.now = best.copy() if again else random_ranges(p, rng)
        self.best, self.value = self.now.copy(), 0.0
        most = min(MOST_CHUNK, max(200, int(CHUNK_PAIRS / p.n**2)))
        self.left = -(-steps // most)
        self.chunk, self.ratio = -(-steps // self.left), (COLD / HOT) ** (1.0 / self.left)
        self.rng = np.random.default_rng(int(rng.integers(2**31)))

    def advance(self) -> float:
        """The best flow after one more chunk; other threads run meanwhile."""
        p, self.left = self.p, self.left - 1
        colder = self.hot * self.ratio
        self.value = float(
            anneal(
                int(self.rng.integers(2**31)),
                self.chunk,
                self.hot * self.target,
                colder * self.target,
                self.weight,
                self.target,
                p.rates,
                p.links,
                p.most,
                p.layers,
                p.partial_inference,
                self.now,
                self.best,
            )
        )
        self.hot = colder
        return self.value


def random_ranges(p: FlowProblem, rng: np.random.Generator) -> IntArray:
    """Shape (2, n): start and end of as many layers as each machine can hold, anywhere."""
    start = rng.integers(0, p.layers - p.most + 1)
    return np.stack([np.where(p.most > 0, start, 0), np.where(p.most > 0, start + p.most, 0)])


def _array(plan: Any) -> IntArray:
    return np.array([plan.start, plan.end], dtype=np.int64)
