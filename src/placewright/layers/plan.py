"""What a planner of wing 2 answers: stages of layers, their workers, and each layer's strategy.

The names that code outside the planners uses: `LayerPlan`, `Stage`, `Replica`, `Strategy`,
`Schedule`. They are stable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnsupportedError
from placewright.io.arguments import checked

if TYPE_CHECKING:
    from placewright.layers.problem import LayerProblem


class Strategy(StrEnum):
    """What one layer does with the workers of a replica (see `Stage`).

    DATA: each worker takes a part of the replica's samples, all hold the whole weights.
    TENSOR: each worker holds a part of the weights (output channels, neurons, heads) and works on
    all samples of the replica. REPLICATED: every worker does all of the work. SHARDED: as DATA,
    with weights, gradients and optimizer states divided among the workers (ZeRO 3, FSDP).
    """

    DATA = "data"
    TENSOR = "tensor"
    REPLICATED = "replicated"
    SHARDED = "sharded"


class Schedule(StrEnum):
    """Order of the micro-batches' forward and backward passes on a stage.

    GPIPE: all forward passes, then all backward passes. ONE_F_ONE_B: a stage begins to alternate
    once ``min(S - s, M)`` micro-batches are in flight. INTERLEAVED: 1F1B on virtual stages; stage
    s runs on the workers of stage ``s % (number of distinct worker groups)``.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True)
class Replica:
    """Workers that hold one copy of a stage.

    Attributes
    ----------
    workers
        Indices into `LayerProblem.worker_names`; as many as the stage's `tensor_degree`, or less
        where all layers are TENSOR (replicas on unlike nodes).
    share
        Samples of every micro-batch that this replica takes: uneven for heterogeneous workers.
        The samples of the replicas follow each other in their order.
    """

    workers: tuple[int, ...]
    share: int


@checked
@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on a mesh of ``len(replicas)`` x ``tensor_degree`` workers.

    Attributes
    ----------
    first_layer, last_layer
        Inclusive, in the order of `LayerProblem.layer_names` (a topological one).
    replicas
        The copies of the stage. Samples are split between them by `Replica.share`.
    tensor_degree
        Workers of each replica; of the largest one, where they differ.
    strategies
        One per layer of the stage: what the layer does with the workers of a replica. Empty:
        TENSOR for all layers, where the degree is 1 DATA.
    zero_stage
        What is sharded over the replicas: 0 nothing, 1 optimizer states, 2 and gradients, 3 and
        weights.
    recompute
        Whether activations inside a layer are computed again in the backward pass.
    """

    first_layer: int
    last_layer: int
    replicas: tuple[Replica, ...]
    tensor_degree: int = 1
    strategies: tuple[Strategy, ...] = ()
    zero_stage: int = 0
    recompute: bool = False

    @property
    def layers(self) -> range:
        """Indices of its layers."""
        return range(self.first_layer, self.last_layer + 1)

    @property
    def workers(self) -> tuple[int, ...]:
        """All workers, replica by replica."""
        return tuple(w for replica in self.replicas for w in replica.workers)

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first worker of every replica: gradients go round them."""
        return tuple(replica.workers[0] for replica in self.replicas)

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of a micro-batch of each replica."""
        return tuple(replica.share for replica in self.replicas)

    def strategy(self, layer: int) -> Strategy:
        """The strategy of a layer, by its index in the problem."""
        if self.strategies:
            return self.strategies[layer - self.first_layer]
        return Strategy.TENSOR if self.tensor_degree > 1 else Strategy.DATA


@checked
@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Stages in the order of the layers, and how micro-batches pass through them.

    Attributes
    ----------
    stages
        Without a gap, from the first layer to the last. Workers in no stage are left out.
    micro_batches
        Per step; ``micro_batches * sum(shares)`` of every stage is the global batch.
    variants
        Only for problems with `LayerProblem.variants`: the variant of each layer.
    """

    stages: tuple[Stage, ...]
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    variants: tuple[int, ...] = ()

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch, over all replicas."""
        return sum(self.stages[0].shares)

    @property
    def workers(self) -> tuple[int, ...]:
        """Workers that take part, each once, in order."""
        return tuple(sorted({w for stage in self.stages for w in stage.workers}))

    def stage_of(self, layer: int) -> int:
        """Index of the stage that holds a layer."""
        return next(s for s, stage in enumerate(self.stages) if layer <= stage.last_layer)


def check_plan(problem: LayerProblem, plan: LayerPlan) -> None:
    """Raise where a plan is none of this problem (memory is the judge's).

    Raises `InputError`, which names the stage, and the layer, worker, share or strategy that is
    wrong.
    """
    where = f"plan for {problem.name}"
    if not plan.stages:
        raise InputError("a plan needs a stage", where=where)
    if plan.micro_batches < 1:
        raise InputError("micro_batches must be at least 1", where=where)
    next_layer = 0
    for s, stage in enumerate(plan.stages):
        at = f"{where}: stage {s}"
        if stage.first_layer != next_layer or stage.last_layer < stage.first_layer:
            raise InputError(
                "stages must hold all layers in order",
                where=at,
                by=f"layers {stage.first_layer} to {stage.last_layer}, expected from {next_layer}",
            )
        next_layer = stage.last_layer + 1
        _check_stage(problem, plan, stage, at)
    if next_layer != problem.n:
        raise InputError(
            "stages must hold all layers", where=where, by=f"{next_layer} of {problem.n} layers"
        )
    _check_groups(problem, plan, where)
    if problem.variants is not None:
        _check_variants(problem, plan, len(problem.variants.names), where)


def _check_variants(problem: LayerProblem, plan: LayerPlan, known: int, where: str) -> None:
    if len(plan.variants) != problem.n:
        by = f"{len(plan.variants)} variants for {problem.n} layers"
        raise InputError("a plan for throughput needs a variant per layer", where=where, by=by)
    if min(plan.variants) < 0 or max(plan.variants) >= known:
        by = f"{min(plan.variants)} to {max(plan.variants)}, known are 0 to {known - 1}"
        raise InputError("a layer has a variant that does not exist", where=where, by=by)


def _check_stage(problem: LayerProblem, plan: LayerPlan, stage: Stage, at: str) -> None:
    workers = stage.workers
    if not stage.replicas or not all(r.workers for r in stage.replicas):
        raise InputError("a stage needs replicas, and each of them a worker", where=at)
    if len(set(workers)) < len(workers):
        raise InputError("a stage names a worker twice", where=at)
    if min(workers) < 0 or max(workers) >= problem.w:
        raise InputError("names a worker that does not exist", where=at, by=f"{problem.w} workers")
    degrees = {len(r.workers) for r in stage.replicas}
    if max(degrees) != stage.tensor_degree or (len(degrees) > 1 and stage.strategies):
        by = f"degree {stage.tensor_degree}, replicas of {sorted(degrees)} workers"
        raise InputError("a replica has another number of workers than the degree", where=at, by=by)
    if any(r.share < 1 for r in stage.replicas):
        raise InputError(
            "a replica needs at least one sample of every micro-batch",
            where=at,
            hint="leave the worker out",
        )
    total = plan.micro_batches * sum(stage.shares)
    if problem.variants is None and total != problem.global_batch:
        raise InputError(
            "micro-batches and shares must make up the global batch",
            where=at,
            by=f"{plan.micro_batches} x {sum(stage.shares)} = {total}, not {problem.global_batch}",
            hint=f"correct it there; if it was planned so, give --batch {total}",
        )
    if stage.zero_stage not in (0, 1, 2, 3):
        raise InputError("zero_stage must be 0 to 3", where=at, by=f"got {stage.zero_stage}")
    if stage.strategies and len(stage.strategies) != len(stage.layers):
        by = f"{len(stage.strategies)} strategies for {len(stage.layers)} layers"
        raise InputError("needs a strategy per layer", where=at, by=by)
    split = problem.whole_batch(stage, plan.micro_batches)
    if split is not None:
        raise UnsupportedError(
            f"layer {problem.layer_names[split.layer]!r} cannot be data over a part of the batch",
            where=f"{at}: {len(stage.replicas)} replicas, {plan.micro_batches} micro-batches",
            by=split.reason,
            hint="train without it, or accept what data parallelism usually does to it: "
            "--approximate, or exact=False",
        )
    for degree in sorted(degrees):
        for layer in stage.layers:
            problem.demand(layer, stage.strategy(layer), degree, where=at)


def _check_groups(problem: LayerProblem, plan: LayerPlan, where: str) -> None:
    """A worker belongs to one stage, or with interleaving to stages of the same workers."""
    owner: dict[int, tuple[int, tuple[int, ...]]] = {}
    for s, stage in enumerate(plan.stages):
        for w in stage.workers:
            first, group = owner.setdefault(w, (s, stage.workers))
            name, at = problem.worker_names[w], f"{where}: stage {s}"
            if first != s and plan.schedule is not Schedule.INTERLEAVED:
                raise InputError(
                    f"worker {name!r} is in two stages",
                    where=at,
                    by=f"stage {first} too",
                    hint="only the interleaved schedule has several stages per worker",
                )
            if group != stage.workers:
                raise InputError(f"worker {name!r} is in stages of different workers", where=at)
