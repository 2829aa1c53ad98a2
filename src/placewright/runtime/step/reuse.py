"""Which steps may write over their input, as a model with ``ReLU(inplace=True)`` does.

Capture makes every operation functional. Where an activation is the only one to read a tensor
that was freshly made here, writing over it computes the same bits and saves the memory, and
with it the page faults of a new buffer.
"""

from __future__ import annotations

from collections import Counter

from placewright.graph.program import Ref
from placewright.runtime.step.partition import Part, Step, references

IN_PLACE = {
    "aten.relu.default": "aten.relu_.default",
    "aten.silu.default": "aten.silu_.default",
    "aten.hardtanh.default": "aten.hardtanh_.default",
    "aten.hardswish.default": "aten.hardswish_.default",
}

FRESH = frozenset(
    {
        "aten.convolution.default",
        "aten.native_batch_norm.default",
        "aten._native_batch_norm_legit.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.addmm.default",
        "aten.mm.default",
        "aten.add.Tensor",
        "aten.cat.default",
    }
)
"""Operations whose results are memory of their own, never a view of an argument."""


def in_place_targets(part: Part) -> dict[int, str]:
    """Operator -> operation that writes over its first argument, where that changes nothing."""
    reads = Counter(
        value
        for step in part.steps
        for value in set(references([step.instruction.args, step.instruction.kwargs]))
    )
    sent = {message.value for step in part.steps for message in step.sends}
    fresh = {
        value
        for step in part.steps
        if step.instruction.target in FRESH
        for value in step.instruction.results
    } - sent
    return {
        step.operator: IN_PLACE[step.instruction.target]
        for step in part.steps
        if step.instruction.target in IN_PLACE
        and (value := _first(step)) in fresh
        and reads[value] == 1
        and value in step.frees
    }


def _first(step: Step) -> str:
    first = step.instruction.args[0]
    return first.name if isinstance(first, Ref) else ""
