"""One strategy for all layers: data, tensor, pipeline, sharded; "one weird trick"; one worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from placewright.layers.plan import LayerPlan, Strategy
from placewright.layers.planners.space import (
    Cell,
    best_of,
    build,
    memory_options,
    micro_batch_counts,
    orders,
    splits_no_layer,
    whole_stage,
    worker_speeds,
)
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import pass_s
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context, Proposal

CONVOLUTIONS = ("conv", "pool", "norm", "relu")
"""Beginnings of the kinds that "one weird trick" splits by samples."""


@final
@dataclass(frozen=True, slots=True)
class Uniform:
    """The same strategy for every layer, on as many workers as that is fastest with.

    ``single``: the fastest worker alone. ``data``: uneven shares of every micro-batch, ZeRO and
    recomputation where the problem allows them. ``tensor``: the workers of one node; layers that
    cannot be split are replicated on them. ``pipeline``: one worker per stage, cuts that even out
    the stages. ``sharded``: ZeRO 3 over all workers.
    """

    strategy: str = "data"

    @property
    def name(self) -> str:
        """As on the command line."""
        return self.strategy

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where a layer cannot have the strategy, or costs are those of variants."""
        if problem.variants is not None:
            return "plans steps, not throughput"
        if self.strategy == "tensor":
            return _tensor_refusal(problem)
        if self.strategy in ("data", "sharded"):  # both give every worker a part of the batch
            why = [x for x in problem.refusals if x.strategy is Strategy.DATA]
            if why:
                return _cannot_be(problem, why[0].layer, why[0].reason, Strategy.DATA)
        return None

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan; raises `InfeasibleError` where there is none."""
        return best_of(problem, self.plans(problem), context, f"{self.strategy} plan")

    def plans(self, p: LayerProblem) -> Iterator[LayerPlan]:
        """All that it chooses from, whatever memory they need."""
        for order in orders(p):
            if self.strategy == "single":
                yield from _single(p)
            elif self.strategy == "data":
                for used in _counts(p.w):
                    yield from whole_stage(p, order, used, 1)
            elif self.strategy == "tensor":
                for degree in p.degrees[1:]:
                    yield from _tensor(p, order, degree)
            elif self.strategy == "sharded":
                yield from _sharded(p, order)
            else:
                yield from _pipelines(p, order)


def _single(p: LayerProblem) -> Iterator[LayerPlan]:
    speed = worker_speeds(p)
    for w in sorted(range(p.w), key=lambda w: (-speed[w], w))[:1]:
        yield from whole_stage(p, (w,), 1, 1)
    roomy = max(range(p.w), key=lambda w: (p.memory_bytes[w], speed[w], -w))
    yield from whole_stage(p, (roomy,), 1, 1)


def _counts(most: int, few: int = 16) -> list[int]:
    """Numbers of workers to try: all of them where there are few."""
    if most <= few:
        return list(range(1, most + 1))
    return sorted({round(most * k / few) for k in range(1, few + 1)} | {1, 2, 4, 8})


def _cannot_be(p: LayerProblem, layer: int, reason: str, strategy: Strategy) -> str:
    return f"layer {p.layer_names[layer]!r} cannot be {strategy}: {reason}"


def _tensor_refusal(p: LayerProblem) -> str | None:
    """Why no layer can be split, of the first one; ``None`` if one can."""
    if len(p.degrees) < 2:
        return "there are no costs for tensor degrees above 1"
    for layer in range(p.n):
        if not all(p.refusal(layer, Strategy.TENSOR, degree) for degree in p.degrees[1:]):
            return None
    return _cannot_be(p, 0, p.refusal(0, Strategy.TENSOR, p.degrees[1]), Strategy.TENSOR)


def _tensor(p: LayerProblem, order: Sequence[int], degree: int) -> Iterator[LayerPlan]:
    split = [not p.refusal(i, Strategy.TENSOR, degree) for i in range(p.n)]
    if not any(split):
        return
    strategies = tuple(Strategy.TENSOR if s else Strategy.REPLICATED for s in split)
    for used in _counts(p.w):
        if used % degree == 0:
            yield from whole_stage(p, order, used, degree, () if all(split) else strategies)


def _sharded(p: LayerProblem, order: Sequence[int]) -> Iterator[LayerPlan]:
    for used in _counts(p.w):
        if used < 2:
            continue
        for micro_batches in micro_batch_counts(p):
            cell = Cell(0, p.n - 1, 0, used, 1, (), 3)
            plan = build(p, order, [cell], micro_batches)
            if plan is not None:
                yield plan


def _pipelines(p: LayerProblem, order: Sequence[int]) -> Iterator[LayerPlan]:
    forward, backward = pass_s(p, int(p.worker_kind[order[0]]), 1, 1.0)
    weight = np.nan_to_num(forward) + np.nan_to_num(backward)
    speed = worker_speeds(p)
    for used in _counts(min(p.w, p.n)):
        cuts = even_cuts(weight, [speed[w] for w in order[:used]])
        for micro_batches in micro_batch_counts(p):
            for zero, recompute in memory_options(p)[:: max(1, len(p.zero_stages))]:
                cells = [
                    Cell(a, b - 1, k, k + 1, 1, (), zero, recompute)
                    for k, (a, b) in enumerate(pairwise(cuts))
                ]
                plan = build(p, order, cells, micro_batches)
                if plan is not None:
                    yield plan


def even_cuts(weight: FloatArray, speed: Sequence[float]) -> list[int]:
    """Cuts that give every stage about its speed's part of the weight, and at least a layer."""
    n, stages = len(weight), len(speed)
    total = np.cumsum(weight) / max(float(weight.sum()), 1e-300)
    target = np.cumsum(speed) / sum(speed)
    cuts = [0]
    for k in range(stages - 1):
        at = int(np.searchsorted(total, target[k])) + 1
        cuts.append(min(max(at, cuts[-1] + 1), n - (stages - 1 - k)))
    return [*cuts, n]


@final
@dataclass(frozen=True, slots=True)
class OneWeirdTrick:
    """Convolutions split samples, dense layers split neurons (Krizhevsky 2014, arXiv 1404.5997).

    In one stage over the workers of one replica; layers that cannot be split are replicated.
    """

    name: str = "one-weird-trick"

    unsupported_reason = staticmethod(splits_no_layer)

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan; raises `InfeasibleError` where there is none."""
        return best_of(problem, self._plans(problem), context, f"{self.name} plan")

    def _plans(self, p: LayerProblem) -> Iterator[LayerPlan]:
        for order in orders(p):
            for degree in p.degrees[1:]:
                for used in range(degree, p.w + 1, degree):
                    strategies = tuple(trick(p, i, degree) for i in range(p.n))
                    yield from whole_stage(p, order, used, degree, strategies)


def trick(p: LayerProblem, layer: int, degree: int) -> Strategy:
    """Samples for convolutions and what belongs to them, neurons for the rest."""
    if not p.layer_kinds[layer].startswith(CONVOLUTIONS):
        if not p.refusal(layer, Strategy.TENSOR, degree):
            return Strategy.TENSOR
    elif not p.refusal(layer, Strategy.DATA, degree):
        return Strategy.DATA
    allowed = (Strategy.DATA, Strategy.REPLICATED, Strategy.TENSOR)
    return next((s for s in allowed if not p.refusal(layer, s, degree)), Strategy.REPLICATED)
