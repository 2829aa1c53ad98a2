"""What a planner of wing 2 answers: stages of layers, their workers, and each layer's strategy.

The names that code outside the planners uses: `LayerPlan`, `Stage`, `Replica`, `Strategy`,
`Schedule`. They are stable. `order_of` and `blocking_order` list a stage's passes and, where
transfers block, its sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnsupportedError
from placewright.io.arguments import checked

if TYPE_CHECKING:
    from placewright.layers.problem import LayerProblem, Variants


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
        _check_full_pipeline(plan, problem.n, problem.variants, where)
    elif plan.variants:
        by = f"got {len(plan.variants)}"
        raise InputError("layers have no variants to choose from", where=where, by=by)


def _check_full_pipeline(plan: LayerPlan, layers: int, v: Variants, where: str) -> None:
    """What the load of a stage takes for granted, and that every layer has a variant."""
    if len(plan.variants) != layers:
        by = f"{len(plan.variants)} variants for {layers} layers"
        raise InputError("a plan for throughput needs a variant per layer", where=where, by=by)
    known = len(v.names)
    if min(plan.variants) < 0 or max(plan.variants) >= known:
        by = f"{min(plan.variants)} to {max(plan.variants)}, known are 0 to {known - 1}"
        raise InputError("a layer has a variant that does not exist", where=where, by=by)
    splits = {share for stage in plan.stages for share in stage.shares} | {plan.micro_batches}
    if splits != {1}:
        raise InputError(
            "replicas of a full pipeline take one sample after another in turns",
            where=where,
            by=f"shares and micro_batches of {sorted(splits)}",
            hint="give shares and micro_batches of 1",
        )
    copies = [len(stage.replicas) for stage in plan.stages]
    if any(v.batch_samples % many for many in copies) or sum(copies) > v.batch_samples:
        raise InputError(
            "replicas of a stage must divide the samples of a batch, which fill all replicas",
            where=where,
            by=f"{copies} replicas, {v.batch_samples} samples",
            hint="take fewer replicas, or a larger batch",
        )
    for s, stage in enumerate(plan.stages):
        if stage.strategies or stage.zero_stage or stage.recompute:
            raise InputError(
                "layers of a full pipeline differ by their variants alone",
                where=f"{where}: stage {s}",
                by="strategies, zero_stage or recompute",
                hint="leave them out",
            )


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


Instruction = tuple[str, int, int]
"""``forward``, ``backward``, or where transfers block ``send_act``, ``recv_act``, ``send_grad``,
``recv_grad``; the stage, and the micro-batch."""


def groups_of(plan: LayerPlan) -> tuple[int, ...]:
    """Stage -> the first stage of the same workers: another one where stages are interleaved."""
    first = {stage.workers: s for s, stage in reversed(list(enumerate(plan.stages)))}
    return tuple(first[stage.workers] for stage in plan.stages)


def in_flight(plan: LayerPlan, s: int) -> int:
    """Micro-batches whose activations a stage holds at its peak."""
    if plan.schedule is Schedule.GPIPE:
        return plan.micro_batches
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return min(len(plan.stages) - s, plan.micro_batches)
    own = (what for what, stage, _ in order_of(plan, s) if stage == s)
    return max(accumulate(1 if what == "forward" else -1 for what in own))


def order_of(plan: LayerPlan, s: int) -> list[Instruction]:
    """Passes of the workers of stage `s`: kind, stage, micro-batch."""
    M, S = plan.micro_batches, len(plan.stages)
    if plan.schedule is Schedule.INTERLEAVED:
        return _interleaved(plan, s, groups_of(plan))
    # 1F1B: one micro-batch more ahead per stage that follows; then forward and backward in turn.
    ahead = M if plan.schedule is Schedule.GPIPE else min(S - s - 1, M)
    found = [("forward", s, m) for m in range(ahead)]
    for m in range(M):
        if m + ahead < M:
            found.append(("forward", s, m + ahead))
        found.append(("backward", s, m))
    return found


def _interleaved(plan: LayerPlan, s: int, group: tuple[int, ...]) -> list[Instruction]:
    """Megatron's order (Narayanan et al. 2021, arXiv 2104.04473): runs of P micro-batches."""
    groups = sorted(set(group))
    P, rank = len(groups), groups.index(group[s])
    own = [i for i, g in enumerate(group) if g == group[s]]
    total = plan.micro_batches * len(own)
    runs = range(0, plan.micro_batches, P)
    ahead = [(i, m) for run in runs for i in own for m in range(run, run + P)]
    back = [(i, m) for run in runs for i in reversed(own) for m in range(run, run + P)]
    # With a single run nothing can alternate; else Megatron's warm-up of its rank.
    warm = total if plan.micro_batches == P else min(total, 2 * (P - rank - 1) + (len(own) - 1) * P)
    found = [("forward", i, m) for i, m in ahead[:warm]]
    for k in range(total):
        if k + warm < total:
            found.append(("forward", *ahead[k + warm]))
        found.append(("backward", *back[k]))
    return found


def blocking_order(plan: LayerPlan, s: int, *, activations_first: bool) -> list[Instruction]:
    """`order_of`, with the sends and receives of blocking transfers."""
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return _slots(s, len(plan.stages), plan.micro_batches, activations_first)
    found: list[Instruction] = []
    for what, stage, m in order_of(plan, s):
        kind = "act" if what == "forward" else "grad"
        found += [(f"recv_{kind}", stage, m), (what, stage, m), (f"send_{kind}", stage, m)]
    return found


def _slots(s: int, S: int, M: int, activations_first: bool) -> list[Instruction]:
    """Stage `s` of DeepSpeed's 1F1B: forward and backward slots alternate, idle ones too."""
    found: list[Instruction] = []
    previous = -1
    for step in range(2 * (M + S - 1) + 1):
        base, forward = step // 2, step % 2 == s % 2
        if forward:
            # Step of the forward of micro-batch m on stage s is s + 2 m; its backward comes at 2 S
            # - 1 - s + 2 m. Numbers outside 0 .. M - 1 are idle slots.
            m = base - s // 2
        else:
            m = base - S + (s + 1) // 2 if step % 2 == 0 else base - S + 1 + s // 2
        act = ("recv_act", m) if forward else ("send_act", previous)
        grad = ("send_grad", previous) if forward else ("recv_grad", m)
        todo = [act, grad] if activations_first else [grad, act]
        todo.append(("forward" if forward else "backward", m))
        found += [(what, s, i) for what, i in todo if 0 <= i < M]
        previous = m
    return found
