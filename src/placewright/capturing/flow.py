"""Who makes a value, who reads it, and which program input it is a view of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewright.capturing.costs import spec_bytes
from placewright.capturing.draft import Draft, Sketch, reads
from placewright.capturing.program_calls import operation

_AS_FREE_AS_VIEWS = ("aten._unsafe_view.default", "aten._reshape_alias.default")

_UNTOLD_VIEWS = ("aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default")
"""Share memory with their first argument, which their schema does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Derived structure of a sketch; operators are positions in ``drafts``.

    Attributes
    ----------
    producer
        Value name -> operator.
    consumers
        Value name -> operators that read it, in order, each once.
    base
        Value name -> the program input that it is or is a view of.
    touched
        Per operator, the program inputs that it reads, straight or through a view, or changes.
    """

    drafts: Sequence[Draft]
    producer: dict[str, int]
    consumers: dict[str, list[int]]
    base: dict[str, str]
    touched: list[tuple[str, ...]]

    def made(self, k: int) -> list[int]:
        """Operators whose results operator `k` reads."""
        return [self.producer[name] for name in reads(self.drafts[k]) if name in self.producer]

    def users(self, k: int) -> list[int]:
        """Operators that read a result of operator `k`, in order."""
        found = {c for name in self.drafts[k].call.results for c in self.consumers.get(name, ())}
        return sorted(found)


def flow_of(sketch: Sketch) -> Flow:
    """Follow every value once through the sketch."""
    base = {entry.name: entry.name for entry in sketch.inputs}
    flow = Flow(sketch.drafts, {}, {}, base, [])
    for k, draft in enumerate(sketch.drafts):
        given = reads(draft)
        for name in given:
            flow.consumers.setdefault(name, []).append(k)
        bases = (base[name] for name in (*given, *draft.call.mutates) if name in base)
        flow.touched.append(tuple(dict.fromkeys(bases)))
        for name in filter(None, draft.call.results):
            flow.producer[name] = k
            if is_view(draft) and given[0] in base:
                base[name] = base[given[0]]
    return flow


def is_view(draft: Draft) -> bool:
    """Whether the results share memory with the first argument, or might as well."""
    target = draft.call.target
    return bool(operation(target).is_view) or target in _AS_FREE_AS_VIEWS


def view_of(draft: Draft, flow: Flow) -> str:
    """The value, or the program input behind it, whose memory the results share; or ``""``."""
    if not is_view(draft) and draft.call.target not in _UNTOLD_VIEWS:
        return ""
    given = reads(draft)[0]
    return flow.base.get(given, given)


def grows(draft: Draft, sketch: Sketch) -> bool:
    """Whether a view has more bytes than what it is a view of (expand)."""
    given = spec_bytes(sketch.specs[reads(draft)[0]])
    return sum(map(spec_bytes, draft.outputs)) > given


def is_fill(draft: Draft) -> bool:
    """Whether the call makes a constant out of nothing (zeros, arange, full)."""
    return not reads(draft) and not draft.call.mutates and not draft.call.random
