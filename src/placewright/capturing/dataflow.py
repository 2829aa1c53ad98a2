"""Stage 4, `resolve`: producers, consumers, aliases and hidden orders of a lowered step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from placewright.capturing.lowered import Call, Lowered, spec_bytes
from placewright.capturing.program_calls import operation
from placewright.graph.graph import TensorSpec

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
    producer
        Value name -> operator.
    consumers
        Value name -> operators that read it, in order, each once.
    base_input
        Value name -> the program input that it is or is a view of.
    inputs_used
        Per operator, the program inputs that it reads, directly or through a view, or changes.
    order
        Operator -> operators that must run after it and read none of its results.
    """

    step: Lowered
    specs: Mapping[str, TensorSpec]
    producer: Mapping[str, int]
    consumers: Mapping[str, Sequence[int]]
    base_input: Mapping[str, str]
    inputs_used: Sequence[tuple[str, ...]]
    order: Mapping[int, Sequence[int]]

    @property
    def calls(self) -> Sequence[Call]:
        """The operators."""
        return self.step.calls

    def predecessors(self, k: int) -> list[int]:
        """Operators whose results operator `k` reads."""
        return [self.producer[name] for name in self.calls[k].reads() if name in self.producer]

    def successors(self, k: int) -> list[int]:
        """Operators that read a result of operator `k`, in order."""
        results = self.calls[k].instruction.results
        return sorted({c for name in results for c in self.consumers.get(name, ())})

    def view_of(self, k: int) -> str:
        """The value, or the program input behind it, whose memory the results share; or ``""``."""
        call = self.calls[k]
        if not is_view(call) and call.instruction.target not in _UNDECLARED_VIEWS:
            return ""
        read = call.reads()[0]
        return self.base_input.get(read, read)

    def expands(self, k: int) -> bool:
        """Whether a view has more bytes than what it is a view of (expand)."""
        call = self.calls[k]
        return sum(map(spec_bytes, call.outputs)) > spec_bytes(self.specs[call.reads()[0]])


def is_view(call: Call) -> bool:
    """Whether the results share memory with the first argument, or cost as little."""
    target = call.instruction.target
    return bool(operation(target).is_view) or target in _AS_CHEAP_AS_VIEWS


def resolve(step: Lowered) -> Dataflow:
    """Follow every value once through the step."""
    base = {entry.name: entry.name for entry in step.inputs}
    producer: dict[str, int] = {}
    consumers: dict[str, list[int]] = {}
    used: list[tuple[str, ...]] = []
    hidden: dict[int, set[int]] = {}
    for k, call in enumerate(step.calls):
        reads = call.reads()
        for name in reads:
            consumers.setdefault(name, []).append(k)
        bases = (base[name] for name in (*reads, *call.instruction.mutates) if name in base)
        used.append(tuple(dict.fromkeys(bases)))
        for name in filter(None, call.instruction.results):
            producer[name] = k
            if is_view(call) and reads[0] in base:
                base[name] = base[reads[0]]
    for before, after in (*_update_order(step, used), *_random_order(step)):
        if before not in {producer.get(name) for name in step.calls[after].reads()}:
            hidden.setdefault(before, set()).add(after)
    order = {k: sorted(hidden[k]) for k in sorted(hidden)}
    return Dataflow(step, step.specs(), producer, consumers, base, used, order)


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
                yield from ((reader, k) for reader in readers.pop(name, ()))
                last_update[name] = k
            else:
                readers.setdefault(name, []).append(k)


def _random_order(step: Lowered) -> Iterator[tuple[int, int]]:
    """Draws of random numbers run in the order of eager mode: they share one generator."""
    return pairwise(k for k, call in enumerate(step.calls) if call.instruction.random)
