"""What is computed from weights alone, such as full-size weights from quantised ones.

Nothing that a step computes comes before that, so that a device could do it for all layers at once
and would hold all results. It runs right before its first use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placewright.capturing.lowered import Lowered, spec_bytes
from placewright.capturing.program_calls import operation
from placewright.graph.graph import TensorSpec

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
