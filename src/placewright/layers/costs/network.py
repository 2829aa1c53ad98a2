"""Costs of a plan's passes and transfers: what a simulation walks over."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import UnsupportedError
from placewright.layers.costs.passes import (
    ReplicaCosts,
    crowding,
    replica_costs,
    shards_wait,
    together,
)
from placewright.layers.costs.transfers import Transfer, processor_s, transfers
from placewright.layers.plan import LayerPlan, Schedule
from placewright.layers.problem import LayerProblem
from placewright.layers.schedules import groups_of

Unit = tuple[int, int]
"""A stage and one of its replicas."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Costs of a plan's passes and transfers.

    Attributes
    ----------
    costs
        Per stage and replica.
    cuts
        Transfers behind each stage but the last.
    group
        Stage -> the first stage of the same workers, where stages are interleaved.
    """

    plan: LayerPlan
    costs: tuple[tuple[ReplicaCosts, ...], ...]
    cuts: tuple[tuple[Transfer, ...], ...]
    group: tuple[int, ...]
    blocking: bool
    activations_first: bool = False

    def inputs(self, unit: Unit) -> list[tuple[Unit, float]]:
        """Units that send activations to `unit`, with the transfers' seconds."""
        s, r = unit
        cut = self.cuts[s - 1] if s else ()
        return [((s - 1, t.source), t.forward_s) for t in cut if t.target == r]

    def together_s(self, ahead: bool, source: Unit, target: Unit, m: int) -> float:
        """What a message takes longer as all replicas send at once: activations of the warm-up.

        They begin a step together. Later each has waited for its turn at a shared card, and they
        stay apart.
        """
        if not ahead or m >= max(1, len(self.cuts) - source[0]):
            return 0.0
        cut = self.cuts[source[0]]
        return next(t.together_s for t in cut if (t.source, t.target) == (source[1], target[1]))

    def eager(self, kind: str, source: Unit, target: Unit) -> bool:
        """Whether a message fits in the transport's buffer, so that its sender goes on."""
        first, second = (source, target) if kind == "act" else (target, source)
        for t in self.cuts[first[0]]:
            if (t.source, t.target) == (first[1], second[1]):
                return t.forward_eager if kind == "act" else t.backward_eager
        return False

    def outputs(self, unit: Unit) -> list[tuple[Unit, float]]:
        """Units that send gradients to `unit`, with the transfers' seconds."""
        s, r = unit
        cut = self.cuts[s] if s < len(self.cuts) else ()
        return [((s + 1, t.target), t.backward_s) for t in cut if t.source == r]


def network_of(p: LayerProblem, plan: LayerPlan) -> Network:
    """Costs of the plan.

    Raises `UnsupportedError`: a layer without costs on a worker, or an interleaved schedule that
    does not come out even.
    """
    group = groups_of(plan)
    if plan.schedule is Schedule.INTERLEAVED and plan.micro_batches % len(set(group)):
        raise UnsupportedError(
            "the interleaved schedule needs micro-batches in multiples of the worker groups",
            where=p.name,
            by=f"{plan.micro_batches} micro-batches, {len(set(group))} groups",
        )
    seen: dict[object, ReplicaCosts] = {}
    costs, factor = [], crowding(p, len(plan.workers))
    for s, stage in enumerate(plan.stages):
        row = []
        for replica in stage.replicas:
            kinds = tuple(p.worker_kind[list(replica.workers)].tolist())
            nodes = tuple(p.worker_node[list(replica.workers)].tolist())
            # Replicas of the same kinds on the same nodes take the same; large plans have hundreds.
            key = (s, kinds, nodes, replica.share)
            if key not in seen:
                seen[key] = replica_costs(p, stage, replica).times(factor)
            row.append(seen[key])
        if shards_wait(p, stage):
            row = [together(p, stage, row)] * len(row)
        costs.append(tuple(row))
    # Least time between two messages of a replica: see `transfers`.
    busy = [min(c.forward + c.backward for c in row) for row in costs]
    cuts = tuple(
        tuple(transfers(p, plan, s, min(busy[s], busy[s + 1]))) for s in range(len(busy) - 1)
    )
    if p.message_s.any() and not p.training.blocking_transfers:
        costs, cuts = _with_messages(p, plan, costs, cuts)
    # Interleaved stages hand their sends and receives over together (Megatron's
    # `batch_isend_irecv`): none waits for another.
    blocking = p.training.blocking_transfers and plan.schedule is not Schedule.INTERLEAVED
    return Network(plan, tuple(costs), cuts, group, blocking, p.training.activations_first)


def _with_messages(
    p: LayerProblem,
    plan: LayerPlan,
    costs: list[tuple[ReplicaCosts, ...]],
    cuts: tuple[tuple[Transfer, ...], ...],
) -> tuple[list[tuple[ReplicaCosts, ...]], tuple[tuple[Transfer, ...], ...]]:
    """What messages take of the processors at both ends belongs to passes, the rest is transfer."""
    ahead = [[c.forward_s.copy() for c in row] for row in costs]
    back = [[c.backward_s.copy() for c in row] for row in costs]
    left = []
    for s, cut in enumerate(cuts):
        row = []
        for t in cut:
            taken = processor_s(p, plan, s, t)
            for way, passes in enumerate((ahead, back)):
                passes[s][t.source][-1] += taken[way, 0]
                passes[s + 1][t.target][0] += taken[way, 1]
            row.append(t.without(taken.sum(axis=1)))
        left.append(tuple(row))
    return [tuple(map(ReplicaCosts, *pair)) for pair in zip(ahead, back, strict=True)], tuple(left)
