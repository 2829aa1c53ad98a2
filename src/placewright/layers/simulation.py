"""Simulation of a training step: when every stage runs which micro-batch, transfers, gradients.

Every replica of a stage executes a fixed list of instructions (its schedule). Two kinds of
transfers:

- not blocking: a message leaves when its pass has ended and its channel (one per pair of replicas
  and direction) is free; the receiver's pass waits for it, the sender goes on.
- blocking (rendezvous): it starts when sender and receiver have both reached it, and neither does
  anything else meanwhile. The order of instructions is that of DeepSpeed's ``TrainSchedule``: in
  a forward slot the gradient of the previous backward pass is sent, then an activation received;
  in a backward slot a gradient is received, then the previous activation sent.

After a stage's last backward pass: gradients of tied weights, all-reduce of the stage's gradients
(or, overlapped, layer by layer as they come), optimizer step. `simulate` walks over the lists
until all have ended. Times do not depend on the order of the walk, as every channel has one sender.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError, UnsupportedError
from placewright.layers.plan import (
    Instruction,
    LayerPlan,
    Schedule,
    blocking_order,
    groups_of,
    order_of,
)
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import (
    ReplicaCosts,
    crowding,
    optimizer_s,
    replica_costs,
    shards_wait,
    sync_buckets,
    sync_s,
    tied_s,
    together,
    updated_s,
)
from placewright.layers.transfers import StageTransfer, processor_s, transfers

MOST_PASSES = 1 << 18
"""Forward passes of a step that is simulated: they take some seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """A pass of a micro-batch (or a phase of the step) on a unit."""

    unit: Unit
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStep:
    """What a simulation says.

    Attributes
    ----------
    step_s
        Seconds of the step.
    spans, messages
        Of the units; and of transfers, whose unit is the sender's.
    passes_s
        When the last backward pass has ended.
    sync_s
        Longest gradient exchange that nothing hides.
    """

    step_s: float
    spans: tuple[Span, ...]
    messages: tuple[Span, ...]
    passes_s: float
    sync_s: float


def simulate(p: LayerProblem, plan: LayerPlan, *, spans: bool = True) -> SimulatedStep:
    """Times of a step.

    Raises `InputError`: it has too many micro-batches to be simulated.
    """
    net = network_of(p, plan)
    alike = None if spans else columns_alike(net)
    passes = passes_of(plan, None if alike is None else len(set(alike.values())))
    if passes > MOST_PASSES:
        raise InputError(
            f"a step of more than {MOST_PASSES:,} forward passes is not simulated",
            where=f"plan for {p.name}",
            by=f"{passes:,} passes, {plan.micro_batches:,} micro-batches",
            hint="plan with fewer micro-batches",
        )
    ran = _StageWalk(net, spans, alike).run()
    if alike is not None:
        ran.end_s = {
            (s, r): ran.end_s[s, c] for s, _ in enumerate(net.costs) for r, c in alike.items()
        }
    return finish(p, net, ran)


def passes_of(plan: LayerPlan, columns: int | None = None) -> int:
    """Forward passes that are simulated: of every replica, or of so many in each stage."""
    units = sum(len(stage.replicas) if columns is None else columns for stage in plan.stages)
    return units * plan.micro_batches


def columns_alike(net: Network) -> dict[int, int] | None:
    """Replica -> the first one that does the same; ``None`` where replicas exchange samples.

    Where replica r of every stage sends to replica r of the next one only, the replicas are
    pipelines of their own, and those of the same costs and transfers run alike.
    """
    if len({len(row) for row in net.costs}) > 1:
        return None
    if any(t.source != t.target for cut in net.cuts for t in cut):
        return None
    first: dict[tuple[object, ...], int] = {}
    found = {}
    for r in range(len(net.costs[0])):
        passes = tuple((row[r].forward, row[r].backward) for row in net.costs)
        sent = tuple(
            (t.forward_s, t.backward_s, t.forward_eager, t.backward_eager, t.together_s)
            for cut in net.cuts
            for t in cut
            if t.source == r
        )
        found[r] = first.setdefault((passes, sent), r)
    return found


@dataclass(slots=True)
class Passes:
    """Ends of the last backward passes by unit, spans and messages."""

    end_s: dict[Unit, float]
    spans: list[Span]
    messages: list[Span]


class SimulationState:
    """Instruction lists of all units, clocks and arrivals."""

    def __init__(self, net: Network, spans: bool, alike: dict[int, int] | None = None) -> None:
        self.net, self.keep = net, spans
        self.lists: dict[Unit, list[Instruction]] = {}
        for s, stage in enumerate(net.plan.stages):
            if net.group[s] == s:
                steps = self._instructions(s)
                chosen = range(len(stage.replicas)) if alike is None else set(alike.values())
                self.lists |= {(s, r): steps for r in chosen}
        self.units = list(self.lists)
        self.at = dict.fromkeys(self.units, 0)
        self.clock = dict.fromkeys(self.units, 0.0)
        self.pass_s = {
            (s, r): (costs.forward, costs.backward)
            for s, row in enumerate(net.costs)
            for r, costs in enumerate(row)
        }
        self.arrived: dict[tuple[str, Unit, Unit, int], float] = {}
        self.channel: dict[tuple[str, Unit, Unit], float] = {}
        self.received = [
            {(s, r): net.inputs((s, r)) for r in range(len(stage.replicas))}
            for s, stage in enumerate(net.plan.stages)
        ]
        self.graded = [
            {(s, r): net.outputs((s, r)) for r in range(len(stage.replicas))}
            for s, stage in enumerate(net.plan.stages)
        ]
        self.reached: dict[tuple[str, Unit, Unit, int], float] = {}
        self.out = Passes({}, [], [])

    def _instructions(self, s: int) -> list[Instruction]:
        if not self.net.blocking:
            return order_of(self.net.plan, s)
        return blocking_order(self.net.plan, s, activations_first=self.net.activations_first)

    def home(self, unit: Unit) -> Unit:
        """The unit whose list a virtual stage's replica is in."""
        return self.net.group[unit[0]], unit[1]

    def sources(self, what: str, unit: Unit) -> list[tuple[Unit, float]]:
        """Units that send what a pass, or a receive, of `unit` needs."""
        ahead = what in ("forward", "recv_act")
        return (self.received if ahead else self.graded)[unit[0]][unit]

    def targets(self, what: str, unit: Unit) -> list[tuple[Unit, float]]:
        """Units that get what a pass, or a send, of `unit` gives, with the transfer's seconds."""
        ahead = what in ("forward", "send_act")
        others = (self.graded if ahead else self.received)[unit[0]][unit]
        table = self.received if ahead else self.graded
        # The other side's list has the time in this direction.
        return [(o, dict(table[o[0]][o])[unit]) for o, _ in others]

    def try_pass(self, home: Unit, what: str, unit: Unit, m: int) -> bool:
        """Run a pass if all that it needs is known."""
        start = self.clock[home]
        if not self.net.blocking:
            for source, _ in self.sources(what, unit):
                arrival = self.arrived.get((what, source, unit, m))
                if arrival is None:
                    return False
                start = max(start, arrival)
        end = start + self.pass_s[unit][what == "backward"]
        self.clock[home] = end
        if self.keep:
            self.out.spans.append(Span(unit, f"{what} {m}", start, end))
        if what == "backward":
            self.out.end_s[unit] = end
        if not self.net.blocking:
            for target, taken_s in self.targets(what, unit):
                taken_s += self.net.together_s(what == "forward", unit, target, m)
                self._send(what, unit, target, m, end, taken_s)
        return True

    def _send(
        self, what: str, unit: Unit, target: Unit, m: int, end: float, taken_s: float
    ) -> None:
        # Messages of one channel follow each other; it is free from the arrival of the last.
        start = max(end, self.channel.get((what, unit, target), 0.0))
        self.channel[what, unit, target] = self.arrived[what, unit, target, m] = start + taken_s
        self._note(unit, f"{what} {m} to stage {target[0]}", start, taken_s)

    def try_meet(self, home: Unit, what: str, unit: Unit, m: int) -> bool:
        """Meet every partner of a blocking send or receive, one after another.

        Whoever comes first leaves its time; whoever comes second computes the end, for both.
        """
        sends, kind = what.startswith("send"), what.split("_")[1]
        others = self.targets(what, unit) if sends else self.sources(what, unit)
        for other, taken_s in sorted(others):
            key = (kind, unit, other, m) if sends else (kind, other, unit, m)
            taken_s += self.net.together_s(kind == "act", key[1], key[2], m)
            eager = self.net.eager(kind, key[1], key[2])
            if key in self.arrived:
                # An eager sender comes here again where a later partner was not ready; it has gone
                # on and does not wait for its message.
                if not (sends and eager):
                    self.clock[home] = max(self.clock[home], self.arrived[key])
                continue
            if eager:
                if not sends:
                    return False
                start = max(self.clock[home], self.channel.get(key[:3], 0.0))
                self.arrived[key] = self.channel[key[:3]] = start + taken_s
                self._note(key[1], f"{kind} {m}", start, taken_s)
                continue
            # setdefault: a unit that waits comes here again and again, but reached this point once.
            mark = (what, unit, other, m)
            opposite = ("recv_" if sends else "send_") + kind
            self.reached.setdefault(mark, self.clock[home])
            there = self.reached.get((opposite, other, unit, m))
            if there is None:
                return False
            start = max(self.reached[mark], there)
            self.arrived[key] = self.clock[home] = start + taken_s
            self._note(key[1], f"{kind} {m}", start, taken_s)
        return True

    def _note(self, unit: Unit, label: str, start: float, taken_s: float) -> None:
        if self.keep and taken_s > 0:
            self.out.messages.append(Span(unit, label, start, start + taken_s))

    def step(self, home: Unit) -> bool:
        """Execute the next instruction of a unit; whether that was possible."""
        what, s, m = self.lists[home][self.at[home]]
        unit = (s, home[1])
        passed = what in ("forward", "backward")
        done = (self.try_pass if passed else self.try_meet)(home, what, unit, m)
        self.at[home] += done
        return done

    def left(self, home: Unit) -> bool:
        """Whether a unit has instructions left."""
        return self.at[home] < len(self.lists[home])


class _StageWalk(SimulationState):
    """Every unit goes as far as it can, in turns."""

    def run(self) -> Passes:
        """Until all have ended."""
        waiting = list(self.units)
        while waiting:
            moved = False
            for home in waiting:
                # What a unit waits for is an arrival that, once known, does not change: the order
                # of units is free.
                while self.left(home) and self.step(home):
                    moved = True
            waiting = [home for home in waiting if self.left(home)]
            if waiting and not moved:
                stage, replica = waiting[0]
                raise UnsupportedError(
                    "blocking transfers of this schedule wait for each other",
                    where=f"stage {stage}, replica {replica}",
                    hint="the schedule 1f1b orders them so that they do not",
                )
        return self.out


def finish(p: LayerProblem, net: Network, passes: Passes) -> SimulatedStep:
    """Gradient exchange and optimizer step after the passes."""
    plan, spans = net.plan, passes.spans
    count = range(len(plan.stages))
    ends = [[passes.end_s[s, r] for r in range(len(net.costs[s]))] for s in count]
    ready = [max(row) for row in ends]
    # One pair after another: a stage in two of them does both.
    for (s, t), taken_s in sorted(tied_s(p, plan).items()):
        start = max(ready[s], ready[t])
        ready[s] = ready[t] = start + taken_s
        spans += [Span((x, 0), "tied gradients", start, ready[s]) for x in (s, t)]
    step, exposed = 0.0, 0.0
    for first in dict.fromkeys(net.group):
        # Interleaved stages share their workers, which update when the passes of all are over.
        own = [s for s in count if net.group[s] == first]
        begin = max(ready[s] for s in own)
        for s in own:
            if p.training.overlap_sync and not shards_wait(p, plan.stages[s]):
                start, end = ready[s], max(ready[s], _overlapped_end(p, net, s, ends[s]))
            else:
                start, end = begin, begin + sync_s(p, plan, s)
            exposed, begin = max(exposed, end - start), max(begin, end)
            if end > start:
                units = ((s, r) for r in range(len(ends[s])))
                spans += [Span(unit, "gradient exchange", start, end) for unit in units]
        updated = begin
        for r, replica in enumerate(plan.stages[first].replicas):
            stop = begin + max(optimizer_s(p, plan, own, w) for w in replica.workers)
            if stop > begin:
                spans.append(Span((first, r), "optimizer", begin, stop))
            updated = max(updated, stop)
        for s in own:
            sent_s = updated_s(p, plan, s)
            if sent_s > 0:
                start, updated = updated, updated + sent_s
                units = ((s, r) for r in range(len(ends[s])))
                spans += [Span(unit, "updated weights", start, updated) for unit in units]
        step = max(step, updated)
    last = max(max(row) for row in ends)
    return SimulatedStep(step, tuple(spans), tuple(passes.messages), last, exposed)


def _overlapped_end(p: LayerProblem, net: Network, s: int, ends: list[float]) -> float:
    """When the gradients of all layers are exchanged, each bucket as soon as all replicas have it.

    Meanwhile a replica's own passes take longer by what the exchange takes of its processor.
    """
    stage = net.plan.stages[s]
    # A backward pass goes from the last layer to the first: gradients of a layer are there when
    # only earlier layers, these seconds, are left.
    before = [np.cumsum(c.backward_s) - c.backward_s for c in net.costs[s]]  # of earlier layers
    part = 2 * (len(stage.replicas) - 1) / max(1, len(stage.replicas))
    each_byte = part * (p.send_s + p.receive_s)
    kinds = [p.worker_kind[list(r.workers)] for r in stage.replicas]
    free, later = 0.0, [0.0] * len(ends)
    for bucket in sync_buckets(p, net.plan, s):
        ready = max(
            end + wait - float(b[bucket.first])
            for end, wait, b in zip(ends, later, before, strict=True)
        )
        free = max(free, ready) + bucket.exchange_s
        # The bucket of the first layer leaves when all passes have ended: it slows none of them.
        if bucket.first > 0:
            later = [
                wait + bucket.sent_bytes * float(each_byte[k].max())
                for wait, k in zip(later, kinds, strict=True)
            ]
    return max(free, *(end + wait for end, wait in zip(ends, later, strict=True)))


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
    cuts: tuple[tuple[StageTransfer, ...], ...]
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
    costs, cuts = _with_messages(p, plan, costs, cuts)
    # Interleaved stages hand their sends and receives over together (Megatron's
    # `batch_isend_irecv`): none waits for another.
    blocking = p.training.blocking_transfers and plan.schedule is not Schedule.INTERLEAVED
    return Network(plan, tuple(costs), cuts, group, blocking, p.training.activations_first)


def _with_messages(
    p: LayerProblem,
    plan: LayerPlan,
    costs: list[tuple[ReplicaCosts, ...]],
    cuts: tuple[tuple[StageTransfer, ...], ...],
) -> tuple[list[tuple[ReplicaCosts, ...]], tuple[tuple[StageTransfer, ...], ...]]:
    """Costs and transfers where parts of messages belong to passes.

    Receivers gather the parts of a split message when they use it; sockets take time of the
    processors at both ends, and the rest is transfer.
    """
    sockets = bool(p.message_s.any()) and not p.training.blocking_transfers
    if not sockets and not any(any(t.gather_s) for cut in cuts for t in cut):
        return costs, cuts
    ahead = [[c.forward_s.copy() for c in row] for row in costs]
    back = [[c.backward_s.copy() for c in row] for row in costs]
    left = []
    for s, cut in enumerate(cuts):
        row = []
        for t in cut:
            taken = processor_s(p, plan, s, t) if sockets else np.zeros((2, 2))
            row.append(t.without(taken.sum(axis=1)))
            taken[[0, 1], [1, 0]] += t.gather_s
            for way, passes in enumerate((ahead, back)):
                passes[s][t.source][-1] += taken[way, 0]
                passes[s + 1][t.target][0] += taken[way, 1]
        left.append(tuple(row))
    return [tuple(map(ReplicaCosts, *pair)) for pair in zip(ahead, back, strict=True)], tuple(left)
