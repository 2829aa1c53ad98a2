"""The kernel that executes an instruction: on a device of another kind, or in place.

A program is captured on the CPU and names its operations. On a GPU most of them are the same. The
others:

- A view of a tensor whose strides differ from the CPU's may need a copy: it becomes a reshape.
- What is made of nothing without naming a device would be made on the host.
- Attention for CPUs becomes PyTorch's own choice for the device, where only its result is read.
- Draws of random numbers, and what the device has no kernel for, are done by the host: slow, and
  profiled as such. So a placement draws the numbers that eager draws on the CPU, wherever the
  draws are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from placewright.capturing.program_calls import resolve_target
from placewright.graph.program import Const, Instruction, Ref
from placewright.runtime.step.partition import Part, Step, references

RESHAPES = ("aten.view.default", "aten._unsafe_view.default")

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"

Call = Callable[..., Any]


def kernel_on(call: Call, instruction: Instruction, device: str) -> tuple[Call, Mapping[str, Any]]:
    """The callable and the keyword arguments with which an instruction runs on `device`.

    `call`: what runs it on a CPU.
    """
    kwargs = _with_device(call, instruction)
    if instruction.target in RESHAPES:
        return resolve_target("aten.reshape.default"), kwargs
    if instruction.target == ATTENTION and not any(instruction.results[1:]):
        return _attention, kwargs
    if instruction.random or lacks_kernel(call, device):
        return _by_host(call, device), kwargs
    return call, kwargs


def lacks_kernel(call: Call, device: str) -> bool:
    """Whether the device's own PyTorch has no kernel for an operation."""
    if not isinstance(call, torch._ops.OpOverload):
        return True  # wrapped because only the CPU has it
    name: str = call.name()  # type: ignore[no-untyped-call]
    key = {"cuda": "CUDA", "cpu": "CPU"}[torch.device(device).type]
    return not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)


def _with_device(call: Call, instruction: Instruction) -> Mapping[str, Any]:
    """Its keyword arguments, with a device for an operation that reads no tensor and names none."""
    kwargs = instruction.kwargs
    if "device" in kwargs or not isinstance(call, torch._ops.OpOverload):
        return kwargs
    takes = any(argument.name == "device" for argument in call._schema.arguments)
    if not takes or any(references([instruction.args, kwargs])):
        return kwargs
    return {**kwargs, "device": Const("device", "cpu")}


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, None]:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask, dropout, causal, scale=scale), None


def _by_host(call: Call, device: str) -> Call:
    """The call on the host, its tensors taken there and back."""

    def made(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
        args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda t: t.to(device), call(*args, **kwargs))

    return made


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
        # Memory of its own, read by this operator alone (so there is no view of it either), not
        # sent, and dead behind it: nobody can see that it is written over.
        and (value := _first(step)) in fresh
        and reads[value] == 1
        and value in step.frees
    }


def _first(step: Step) -> str:
    first = step.instruction.args[0]
    return first.name if isinstance(first, Ref) else ""
