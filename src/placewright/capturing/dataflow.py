"""Stages 4 and 5, `resolve` and `colocate`: who reads what, and what must run on one device.

Weights derived from others alone, such as full-size weights from quantised ones, are computed right
before their first use: nothing that a step computes comes before that, so that a device could do it
for all layers at once and would hold all results.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from placewright.capturing.lowering import Lowered, spec_bytes
from placewright.capturing.program_calls import RECURRENT, operation
from placewright.graph.graph import ProgramInput, TensorSpec

_AS_CHEAP_AS_VIEWS = ("aten._unsafe_view.default", "aten._reshape_alias.default")

_UNDECLARED_VIEWS = ("aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default")
"""Share memory with their first argument, which their schema does not declare (PyTorch 2.13)."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """A lowered step with its dependences; operators are positions in ``step.calls``.

    Attributes
    ----------
    specs
        Spec of every value.
    resident
        Inputs that live on one device: state, and whatever else is changed in place.
    reads
        Per operator, the values that it reads, each once, in order.
    inputs_used
        Per operator, the program inputs that it reads, directly or through a view, or changes.
    views
        Per operator, whether its results share memory with its first argument, or cost as little.
    view_of
        Per operator, the value, or the program input behind it, with which its results share
        memory, or ``""``.
    producer
        Value -> operator.
    consumers
        Value -> operators that read it, in order, each once.
    order
        Operator -> operators that must run after it and read none of its results.
    derived
        Operators that read weights alone -> the first operator that needs the result.
    waits
        Value -> such operators that run once it is there and do not read it.
    """

    step: Lowered
    specs: Mapping[str, TensorSpec]
    resident: Sequence[ProgramInput]
    reads: Sequence[Sequence[str]]
    inputs_used: Sequence[Sequence[str]]
    views: Sequence[bool]
    view_of: Sequence[str]
    producer: Mapping[str, int]
    consumers: Mapping[str, Sequence[int]]
    order: Mapping[int, Sequence[int]]
    derived: Mapping[int, int]
    waits: Mapping[str, Sequence[int]]


def resolve(step: Lowered) -> Dataflow:
    """Follow every value once through the step."""
    base = {entry.name: entry.name for entry in step.inputs}  # value -> the input it is a view of
    producer: dict[str, int] = {}
    consumers: dict[str, list[int]] = {}
    reads, used, views, view_of = [], [], [], []
    for k, call in enumerate(step.calls):
        names = call.reads()
        for name in names:
            consumers.setdefault(name, []).append(k)
        bases = (base[name] for name in (*names, *call.instruction.mutates) if name in base)
        target = call.instruction.target
        view = operation(target).is_view or target in _AS_CHEAP_AS_VIEWS
        # Whoever reads what shares memory with an input has to be on its device, and before its
        # update.
        shares = view or target in _UNDECLARED_VIEWS
        reads.append(names)
        used.append(tuple(dict.fromkeys(bases)))
        views.append(view)
        view_of.append(base.get(names[0], names[0]) if shares else "")
        for name in filter(None, call.instruction.results):
            producer[name] = k
            if shares and names[0] in base:
                base[name] = base[names[0]]
    hidden: dict[int, set[int]] = {}
    for before, after in (*_update_order(step, used), *_random_order(step)):
        # A value that is read orders the two already.
        if all(producer.get(name) != before for name in reads[after]):
            hidden.setdefault(before, set()).add(after)
    order = {k: sorted(hidden[k]) for k in sorted(hidden)}
    specs, resident = step.specs(), step.resident()
    derived = derived_weights(step)
    return Dataflow(
        step,
        specs,
        resident,
        reads,
        used,
        views,
        view_of,
        producer,
        consumers,
        order,
        derived,
        derived_waits(step, derived),
    )


def _update_order(step: Lowered, used: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """Pairs (before, after) of operators, because of in-place updates of program inputs.

    An update runs after every operator that reads the input (views included) and after the update
    before; a reader behind an update runs after that update.
    """
    mutated = step.mutated()
    readers: dict[str, list[int]] = {}
    last_update: dict[str, int] = {}
    for k, names in enumerate(used):
        for name in names:
            if name not in mutated:
                continue
            if name in last_update:
                yield last_update[name], k
            if name in step.calls[k].instruction.mutates:
                # Readers before the update; those behind it are collected anew for the next one.
                yield from ((reader, k) for reader in readers.pop(name, ()))
                last_update[name] = k
            else:
                readers.setdefault(name, []).append(k)


def _random_order(step: Lowered) -> Iterator[tuple[int, int]]:
    """Draws of random numbers run in the order of eager mode: they share one generator."""
    return pairwise(k for k, call in enumerate(step.calls) if call.instruction.random)


_FED = ("input", "target", "setting")
"""Roles of inputs that come with every step."""

_LEAST_SHARE = 1 / 16
"""Of the weights' bytes: where the results make less, holding them all costs next to nothing."""


def beside_use(step: Lowered) -> Lowered:
    """The same step with derived weights moved to just before the first call that needs them."""
    first = derived_weights(step)
    # Among themselves they keep their order: none is needed before what it reads.
    order = sorted(range(len(step.calls)), key=lambda k: (first.get(k, k), k not in first, k))
    return replace(step, calls=tuple(step.calls[k] for k in order))


def derived_weights(step: Lowered) -> dict[int, int]:
    """Calls that read weights and constants alone -> the first call that needs the result.

    Empty where the results are small. Random calls are none of them, nor what reads an input that
    the step changes.
    """
    derived, users = _derived(step), _users(step)
    first: dict[int, int] = {}
    for k in sorted(derived, reverse=True):
        needed = [first.get(user, user) for user in users.get(k, ())]
        if needed:
            first[k] = min(needed)
    made = sum(spec_bytes(spec) for k in first for spec in _made(step, k))
    held = sum(spec_bytes(entry.spec) for entry in step.resident())
    return first if made > held * _LEAST_SHARE else {}


def derived_waits(step: Lowered, first: Mapping[int, int]) -> dict[str, list[int]]:
    """Value -> derived weights that are computed once it is there, as the call that needs both is.

    Else a device that is idle until the value arrives would compute those of all later layers.
    """
    producer = _producers(step)
    found: dict[str, list[int]] = {}
    waiting = set()
    for k in sorted(first):
        sources = [producer[name] for name in step.calls[k].reads() if name in producer]
        if any(s in waiting and first[s] == first[k] for s in sources):
            waiting.add(k)  # for what it reads, which waits
        elif _made(step, k):
            waiting.add(k)
            for name in step.calls[first[k]].reads():
                if name in producer and producer[name] not in first:
                    found.setdefault(name, []).append(k)
    return found


def _derived(step: Lowered) -> list[int]:
    fixed = {e.name for e in step.inputs if e.role not in _FED} - step.mutated()
    found = []
    for k, call in enumerate(step.calls):
        impure = call.instruction.mutates or call.instruction.random
        if not impure and fixed.issuperset(call.reads()):
            found.append(k)
            fixed.update(call.instruction.results)
    return found


def _made(step: Lowered, k: int) -> tuple[TensorSpec, ...]:
    """The results of a call that have memory of their own."""
    view = operation(step.calls[k].instruction.target).is_view
    return () if view else step.calls[k].outputs


def _producers(step: Lowered) -> dict[str, int]:
    return {r: k for k, call in enumerate(step.calls) for r in call.instruction.results if r}


def _users(step: Lowered) -> dict[int, list[int]]:
    producer = _producers(step)
    users: dict[int, list[int]] = {}
    for k, call in enumerate(step.calls):
        for name in call.reads():
            if name in producer:
                users.setdefault(producer[name], []).append(k)
    return users


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
