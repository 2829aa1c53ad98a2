"""The thesis's particle swarm, and mutation search: positions decode to plans.

A position has a weight for every layer and strategy, a weight for every number of stages, sorted
cut positions, cut positions of the workers, and weights of the mesh degree, of the number of
micro-batches and of the order of the workers. Largest weights choose; cuts are rounded and moved
apart until every stage has a layer and a worker. Layers that cannot have their strategy take the
next best one. The fitness is the judge's time, times one plus the missing share of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.layers.judge import LayerJudgement
from placewright.layers.plan import LayerPlan, Strategy
from placewright.layers.planners.space import (
    Cell,
    better,
    build,
    judged,
    memory_options,
    micro_batch_counts,
    orders,
)
from placewright.layers.planners.uniform import OneWeirdTrick, Uniform
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context, Count, Proposal, Range

ORDER = tuple(Strategy)


@dataclass(frozen=True, slots=True, eq=False)
class PositionDecoder:
    """Positions of a problem as plans.

    The parts of a position, one after another: n x 4 strategies, stages, layer cuts, worker cuts
    (the last one says how many workers take part), degrees, micro-batch counts, orders, options.
    """

    p: LayerProblem
    most: int
    sizes: tuple[int, ...]

    @staticmethod
    def of(p: LayerProblem) -> PositionDecoder:
        """For a problem."""
        most = min(p.n, p.w, 16)
        counts = micro_batch_counts(p)
        parts = (4 * p.n, most, most, most, len(p.degrees), len(counts), len(orders(p)))
        return PositionDecoder(p, most, (*parts, len(memory_options(p))))

    @property
    def length(self) -> int:
        """Of a position."""
        return sum(self.sizes)

    def plan(self, position: FloatArray) -> LayerPlan | None:
        """The plan of a position, ``None`` where it has none."""
        p = self.p
        parts = np.split(position, np.cumsum(self.sizes)[:-1])
        stages = int(np.argmax(parts[1])) + 1
        degree = p.degrees[int(np.argmax(parts[4]))]
        micro_batches = micro_batch_counts(p)[int(np.argmax(parts[5]))]
        order = orders(p)[int(np.argmax(parts[6]))]
        option = memory_options(p)[int(np.argmax(parts[7]))]
        layers = _cuts(parts[2][: stages - 1], p.n, stages)
        used = max(stages, round(float(np.clip(parts[3][-1], 0, 1)) * p.w))
        workers = _cuts(parts[3][: stages - 1], used, stages)
        weight = parts[0].reshape(p.n, 4)
        cells = []
        for s in range(stages):
            count = workers[s + 1] - workers[s]
            own = degree if count % degree == 0 else 1
            inside = range(layers[s], layers[s + 1])
            chosen = tuple(self._strategy(i, weight[i], own) for i in inside) if own > 1 else ()
            cells.append(
                Cell(layers[s], layers[s + 1] - 1, workers[s], workers[s + 1], own, chosen, *option)
            )
        return build(p, order, cells, micro_batches)

    def _strategy(self, layer: int, weight: FloatArray, degree: int) -> Strategy:
        for k in np.argsort(-weight, kind="stable"):
            strategy = ORDER[int(k)]
            if not self.p.refusal(layer, strategy, degree):
                return strategy
        return Strategy.REPLICATED

    def position(self, plan: LayerPlan, rng: Any) -> FloatArray:
        """A position that decodes to about this plan."""
        p = self.p
        parts = [rng.uniform(0, 0.4, size) for size in self.sizes]
        stages = min(len(plan.stages), self.most)
        weight = parts[0].reshape(p.n, 4)
        for stage in plan.stages:
            for i in stage.layers:
                weight[i, ORDER.index(stage.strategy(i))] = 1.0
        parts[1][stages - 1] = 1.0
        begun = 0
        for s in range(stages - 1):
            begun += len(plan.stages[s].workers)
            parts[2][s] = (plan.stages[s].last_layer + 1) / p.n
            parts[3][s] = begun / max(1, len(plan.workers))
        parts[3][-1] = len(plan.workers) / p.w
        degree = max(stage.tensor_degree for stage in plan.stages)
        if degree in p.degrees:
            parts[4][p.degrees.index(degree)] = 1.0
        counts = micro_batch_counts(p)
        if plan.micro_batches in counts:
            parts[5][counts.index(plan.micro_batches)] = 1.0
        return np.concatenate(parts)


def _cuts(position: FloatArray, top: int, stages: int) -> list[int]:
    """Ends of `stages` parts of ``0 .. top``, each at least one."""
    wanted = sorted(round(float(np.clip(x, 0, 1)) * top) for x in position)
    cuts = [0]
    for k, cut in enumerate(wanted):
        # At least one behind the cut before, and one left for each part that follows.
        cuts.append(min(max(cut, cuts[-1] + 1), top - (stages - 1 - k)))
    return [*cuts, top]


class _LateError(Exception):
    """The deadline has passed, and there is a plan."""


class _Fitness:
    """Values of positions, and the best plan so far."""

    def __init__(self, p: LayerProblem, context: Context) -> None:
        self.p, self.decoder, self.context = p, PositionDecoder.of(p), context
        self.best: LayerJudgement | None = None
        self.known: dict[LayerPlan | None, float] = {None: math.inf}

    def __call__(self, position: FloatArray) -> float:
        return self.of_plan(self.decoder.plan(position))

    def of_plan(self, plan: LayerPlan | None) -> float:
        """Seconds, more where memory is missing; ``inf`` where the plan cannot run."""
        if plan not in self.known:
            if self.best is not None and self.context.remaining_s() < 0:
                raise _LateError
            found = judged(self.p, plan)
            if better(found, self.best):
                self.best = found
            value = math.inf
            if found is not None:
                room = float(
                    np.where(np.isfinite(self.p.memory_bytes), self.p.memory_bytes, 0).sum()
                )
                value = found.value * (1 + 10 * found.violation_size / max(room, 1.0))
            self.known[plan] = value
        return self.known[plan]

    def proposal(self, search: Callable[[], None]) -> Proposal[LayerPlan]:
        """Search; the best plan when it ends, is late, or is interrupted.

        Raises `KeyboardInterrupt`: before anything was found.
        Raises `InfeasibleError`: no position had one that can run.
        """
        interrupted = False
        try:
            search()
        except _LateError:
            pass
        except KeyboardInterrupt:
            if self.best is None:
                raise
            interrupted = True
        if self.best is None:
            raise InfeasibleError("no position decodes to a plan that can run", where=self.p.name)
        return Proposal(self.best.plan, interrupted=interrupted)


def seeds(p: LayerProblem, context: Context) -> Iterator[LayerPlan]:
    """The best plan so far, uniform plans and "one weird trick", one after another."""
    if context.incumbent is not None:
        yield context.incumbent
    for planner in (Uniform("data"), Uniform("tensor"), Uniform("pipeline"), OneWeirdTrick()):
        if planner.unsupported_reason(p) is None:
            with suppress(InfeasibleError):
                found = planner(p, context)
                yield found.plan
                if found.interrupted:
                    raise KeyboardInterrupt


@final
@dataclass(frozen=True, slots=True)
class Pso:
    """Particle swarm optimisation (Kennedy and Eberhart 1995, doi 10.1109/ICNN.1995.488968).

    After Z. Y. Yang, Southeast University 2021, whose formulas are not public; inertia falls
    linearly (Shi and Eberhart 1998, doi 10.1109/ICEC.1998.699146). A warm start has the uniform
    plans among its particles, so that the answer is never worse than the best of them.

    Parameters
    ----------
    particles, iterations
        Size and length of the search.
    inertia_first, inertia_last
        Weight of the velocity.
    own, shared
        Pull of a particle's best position and of the swarm's.
    patience
        Iterations without gain after which it stops.
    start
        ``warm`` or ``cold``.
    """

    particles: Count = 40
    iterations: Count = 150
    inertia_first: float = 0.9
    inertia_last: float = 0.4
    own: float = 2.0
    shared: float = 2.0
    patience: Count = 30
    start: Literal["warm", "cold"] = "warm"
    name: str = "pso"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where costs are those of variants."""
        return None if problem.variants is None else "plans steps, not throughput"

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan."""
        fitness = _Fitness(problem, context)
        return fitness.proposal(lambda: self._fly(fitness, context))

    def _fly(self, fitness: _Fitness, context: Context) -> None:
        """Move the swarm until nothing is gained any more."""
        problem, rng = fitness.p, np.random.default_rng(context.seed)
        length = fitness.decoder.length
        at = rng.random((self.particles, length))
        if self.start == "warm":
            plans = [plan for plan in seeds(problem, context) if fitness.of_plan(plan) >= 0]
            for k, plan in enumerate(plans[: self.particles]):
                at[k] = fitness.decoder.position(plan, rng)
        speed = rng.uniform(-0.1, 0.1, at.shape)
        value = np.array([fitness(x) for x in at])
        best_at, best = at.copy(), value.copy()
        top, still = int(np.argmin(best)), 0
        for k in range(self.iterations):
            if context.remaining_s() < 0 or still >= self.patience:
                break
            part = k / max(1, self.iterations - 1)
            inertia = self.inertia_first + part * (self.inertia_last - self.inertia_first)
            pull = rng.random((2, *at.shape))
            speed = inertia * speed + self.own * pull[0] * (best_at - at)
            speed = np.clip(speed + self.shared * pull[1] * (best_at[top] - at), -0.5, 0.5)
            at = np.clip(at + speed, 0.0, 1.0)
            value = np.array([fitness(x) for x in at])
            gained = value < best
            best_at[gained], best[gained] = at[gained], value[gained]
            before, top = best[top], int(np.argmin(best))
            still = 0 if best[top] < before else still + 1


@final
@dataclass(frozen=True, slots=True)
class Mutation:
    """Keep changing the best plan's position at random: a (1 + 1) evolution strategy.

    `tries`: plans that are judged at most.
    `rate`: entries of a position that change at once, on average.
    """

    tries: Count = 1500
    rate: Annotated[float, Range(1, 1e6)] = 2.0
    name: str = "mutation"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where costs are those of variants."""
        return None if problem.variants is None else "plans steps, not throughput"

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan."""
        fitness = _Fitness(problem, context)
        return fitness.proposal(lambda: self._change(fitness, context))

    def _change(self, fitness: _Fitness, context: Context) -> None:
        """Change the best position until all tries are used."""
        problem, rng = fitness.p, np.random.default_rng(context.seed)
        positions: Sequence[FloatArray] = [
            fitness.decoder.position(plan, rng)
            for plan in seeds(problem, context)
            if fitness.of_plan(plan) < math.inf
        ] or [rng.random(fitness.decoder.length)]
        values = [fitness(x) for x in positions]
        at, value = positions[int(np.argmin(values))], min(values)
        begin = np.cumsum([0, *fitness.decoder.sizes])
        for _ in range(self.tries):
            if context.remaining_s() < 0:
                break
            trial = at.copy()
            for _ in range(1 + rng.poisson(self.rate - 1)):
                # A part first: strategies have most entries, and would take nearly all changes.
                part = int(rng.integers(len(fitness.decoder.sizes)))
                k = int(rng.integers(begin[part], begin[part + 1]))
                trial[k] = rng.random() if part else 1.2 * rng.random()
            found = fitness(trial)
            if found <= value:
                at, value = trial, found
