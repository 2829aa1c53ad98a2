"""A tensor as bytes on the wire and back, in the layout that eager would have.

Some kernels round differently on another layout, so a tensor arrives with the strides that it
has at its producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from placewright.errors import RunError
from placewright.graph.graph import TensorSpec
from placewright.runtime.messages.layout import Way


@dataclass(frozen=True, slots=True)
class Message:
    """One tensor on its way from one device to another, once per step.

    ``tag`` is the tensor's position in the graph, equal on both sides; ``source`` and ``target``
    are devices.
    """

    tag: int
    value: str
    spec: TensorSpec
    source: int
    target: int
    way: Way = "gloo"


def message_key(message: Message) -> tuple[int, int]:
    """Its place among the messages of one producer, at both ends."""
    return message.tag, message.target


@cache
def wire_bytes(spec: TensorSpec) -> int:
    """Bytes on the wire: those of the elements, at least one."""
    count = 1
    for extent in spec.shape:
        count *= extent
    return max(1, count * torch.empty(0, dtype=_dtype(spec)).element_size())


def wire(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor's bytes in memory order, in the layout that `spec` promises.

    Shares memory with `tensor` where that has the layout already.

    Raises `RunError` where it has another shape or dtype: the other end would take its bytes for
    something else.
    """
    _check_as_promised(tensor, spec)
    if tensor.numel() == 0:
        return torch.zeros(1, dtype=torch.uint8, device=tensor.device)
    tensor = tensor.detach()
    if not is_dense(spec):
        # The elements in row-major order, without gaps and each repeated element in full: `_spread`
        # undoes it.
        flat = tensor.contiguous()
    elif _same_layout(tensor, spec):
        flat = tensor
    else:
        flat = tensor.new_empty_strided(spec.shape, spec.stride).copy_(tensor)
    # A dense tensor fills its memory without gaps, so in memory order its bytes are one run,
    # whatever the strides. (A reshape would put them in row-major order.)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def tensor_of(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor in a buffer of bytes: a view where its layout has neither gaps nor overlap."""
    shaped = _shaped(raw, spec)
    return shaped if is_dense(spec) else _spread(shaped, spec)


def _check_as_promised(tensor: torch.Tensor, spec: TensorSpec) -> None:
    if tensor.dtype != _dtype(spec) or tuple(tensor.shape) != spec.shape:
        raise RunError(
            "an operator made another tensor than its shape rule gives",
            where="a tensor on its way to another device",
            by=f"{tuple(tensor.shape)} {tensor.dtype}, the program has {spec.shape} {spec.dtype}",
            hint="keep the operator and those that read its result on one device, and report the "
            "model",
        )


@cache
def is_dense(spec: TensorSpec) -> bool:
    """Whether the strides are a permutation of a contiguous layout, without gaps or overlap."""
    expected = 1
    pairs = zip(spec.stride, spec.shape, strict=True)
    # From the innermost dimension outwards: each must step over all that is inside of it. The
    # stride of a dimension of one element says nothing.
    for stride, extent in sorted((s, e) for s, e in pairs if e > 1):
        if stride != expected:
            return False
        expected = stride * extent
    return True


@cache
def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _same_layout(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    pairs = zip(tensor.stride(), spec.stride, spec.shape, strict=True)
    return all(real == promised for real, promised, extent in pairs if extent > 1)


def _shaped(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = _dtype(spec)
    if 0 in spec.shape:
        return torch.empty(spec.shape, dtype=dtype, device=raw.device)
    flat = raw.view(dtype)
    return flat.as_strided(spec.shape, spec.stride) if is_dense(spec) else flat.view(spec.shape)


def _spread(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A copy with strides that have gaps or overlap (an expanded tensor)."""
    # Repeated elements once: their stride of 0 repeats them again without memory.
    once = [min(1, e) if s == 0 else e for e, s in zip(spec.shape, spec.stride, strict=True)]
    last = sum((e - 1) * s for e, s in zip(once, spec.stride, strict=True))
    buffer, elements = tensor.new_empty(last + 1), tensor.as_strided(once, tensor.stride())
    # Not `copy_`, which fake tensors of GPUs that are not here refuse.
    buffer = torch.as_strided_scatter(buffer, elements, once, spec.stride)
    return buffer.as_strided(spec.shape, spec.stride)
