"""Stage 5, `colocate`: operators that must, or might as well, run on one device.

1. Whatever reads or changes one parameter, buffer or optimizer state lives where that lives,
   views of it included; so does an input that the model changes in place.
2. A view runs with the producer of what it is a view of; one that grows (expand) with its only
   consumer, so that the smaller tensor is the one that is sent. One of equal size, of a tensor that
   others read too (rotary embeddings, a view in each layer), may be anywhere: where several such
   views are read on a device, what they are views of is sent there once.
3. All draws of random numbers run in one place: they share one generator, as in eager mode.
4. A constant that reads nothing (zeros, arange, full), and views of that or of model inputs, which
   are present on every device, run with their first consumer.
5. The backward of a recurrent layer runs with its forward.
6. What is computed from weights alone (dequantising) runs with the first operator that needs it.
7. An operator and its copies in the micro-batches of one step share a device, as those that read
   parameters must: what is planned is one pass, done several times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewright.capturing.dataflow import Dataflow
from placewright.capturing.lowered import spec_bytes
from placewright.capturing.program_calls import RECURRENT


@dataclass(frozen=True, slots=True, eq=False)
class ColocationGroups:
    """Colocation groups, each named after its first operator.

    `operators`: group of every operator, ``""`` for operators alone.
    `inputs`: resident program input -> group.
    """

    operators: Sequence[str]
    inputs: Mapping[str, str]


def colocate(flow: Dataflow) -> ColocationGroups:
    """Group of every operator and of every resident input."""
    names = [call.instruction.name for call in flow.step.calls]
    sets = _DisjointSets(len(names))
    resident = {entry.name for entry in flow.resident}
    first_users = _join_residents(sets, flow, resident)
    _join_views(sets, flow, resident)
    _join_random(sets, flow)
    _join_workspaces(sets, flow)
    for k, user in flow.derived.items():
        sets.join(k, user)
    _join_micro_batches(sets, flow)
    sizes = sets.sizes()
    inputs = {name: names[sets.find(k)] for name, k in first_users.items()}
    named = set(inputs.values())
    operators = []
    for k in range(len(names)):
        root = sets.find(k)
        operators.append(names[root] if sizes[root] > 1 or names[root] in named else "")
    return ColocationGroups(operators, inputs)


def _join_residents(sets: _DisjointSets, flow: Dataflow, resident: set[str]) -> dict[str, int]:
    first: dict[str, int] = {}
    for k, names in enumerate(flow.inputs_used):
        for name in names:
            if name in resident:
                sets.join(first.setdefault(name, k), k)
    return first


def _join_views(sets: _DisjointSets, flow: Dataflow, resident: set[str]) -> None:
    free: list[bool] = []  # can be computed on any device without a transfer
    for k, call in enumerate(flow.step.calls):
        reads, view, instruction = flow.reads[k], flow.views[k], call.instruction
        producers = [flow.producer[name] for name in reads if name in flow.producer]
        users = sorted({c for name in instruction.results for c in flow.consumers.get(name, ())})
        constant = not reads and not instruction.mutates and not instruction.random
        from_nothing = constant or (view and all(free[p] for p in producers))
        free.append(from_nothing and resident.isdisjoint(flow.inputs_used[k]))
        if free[k] and users:
            sets.join(k, users[0])
        elif view and producers:
            made, viewed = sum(map(spec_bytes, call.outputs)), spec_bytes(flow.specs[reads[0]])
            shared = len(flow.consumers.get(reads[0], ())) > 1
            # See rule 2: rotary embeddings, for one.
            if made == viewed and shared:
                continue
            sets.join(k, users[0] if made > viewed and len(users) == 1 else producers[0])


def _join_random(sets: _DisjointSets, flow: Dataflow) -> None:
    random = [k for k, call in enumerate(flow.step.calls) if call.instruction.random]
    for k in random:
        sets.join(random[0], k)


def _join_workspaces(sets: _DisjointSets, flow: Dataflow) -> None:
    """A recurrent layer hands its backward a workspace whose size only the kernel knows."""
    for k, call in enumerate(flow.step.calls):
        if call.instruction.target == RECURRENT:
            for user in flow.consumers.get(f"{call.instruction.name}.3", ()):
                sets.join(k, user)


def _join_micro_batches(sets: _DisjointSets, flow: Dataflow) -> None:
    """Copies are the n-th calls of one kind by one module; gradients are added last."""
    first: dict[tuple[object, ...], int] = {}
    seen: dict[tuple[object, ...], int] = {}
    for k, call in enumerate(flow.step.calls):
        if call.micro_batch:
            key = (call.phase, call.module, call.instruction.target)
            own = (*key, call.micro_batch)
            seen[own] = seen.get(own, 0) + 1
            sets.join(first.setdefault((*key, seen[own]), k), k)


class _DisjointSets:
    """Disjoint sets of positions; the smallest position of a set is its root."""

    def __init__(self, n: int) -> None:
        self.parent = list(range(n))

    def find(self, k: int) -> int:
        while self.parent[k] != k:
            # Path halving: every second node on the way points to its grandparent.
            self.parent[k] = self.parent[self.parent[k]]
            k = self.parent[k]
        return k

    def join(self, a: int, b: int) -> None:
        # By position and not by size: the root names the group, and a group is named after its
        # first operator.
        low, high = sorted((self.find(a), self.find(b)))
        self.parent[high] = low

    def sizes(self) -> list[int]:
        counts = [0] * len(self.parent)
        for k in range(len(self.parent)):
            counts[self.find(k)] += 1
        return counts
