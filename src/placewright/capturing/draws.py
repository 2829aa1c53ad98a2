"""Random numbers, and one operation of our own: the draw of a dropout mask, strides included.

``aten.bernoulli_`` fills memory in an order that depends on strides, and dropout gives its mask
the strides of its input. The functional twin, ``aten.bernoulli.p``, always makes a row-major
tensor: same draws, other places. For a mask equal to eager mode's bit for bit there has to be a
functional operation that takes the strides. It reads no tensor, so nothing travels to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_LIBRARY = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "bernoulli(SymInt[] size, SymInt[] stride, float p, *, ScalarType dtype, Device device)"
    " -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _bernoulli(
    size: Sequence[int],
    stride: Sequence[int],
    p: float,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device).bernoulli_(p)


def _shape_only(
    size: Sequence[int],
    stride: Sequence[int],
    p: float,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


_LIBRARY.impl("bernoulli", _bernoulli, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("placewright::bernoulli", _shape_only, lib=_LIBRARY)


def is_draw(node: fx.Node) -> bool:
    """Whether the call draws random numbers: tagged so, and its dropout, if any, is not zero."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return not ("dropout_p" in names and given.get("dropout_p", 0.0) == 0.0)


def is_mask(node: fx.Node) -> bool:
    """Whether a recorded node fills a fresh, otherwise unused tensor with a draw."""
    if node.target is not aten.bernoulli_.float:
        return False
    room: Any = node.args[0]
    return room.target in _FRESH and len(room.users) == 1


_FRESH = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)


def mask(room: Tensor, p: float = 0.5) -> Tensor:
    """The draw that ``room.bernoulli_(p)`` would make, as a new tensor."""
    draw = torch.ops.placewright.bernoulli.default
    made: Tensor = draw(room.shape, room.stride(), p, dtype=room.dtype, device=room.device)
    return made
