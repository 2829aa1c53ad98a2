"""Operations of our own among PyTorch's: ``torch.ops.placewright``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OPERATIONS: Any = torch.ops.placewright
"""All that `define_operation` has defined, by name."""

_LIBRARY = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]


def define_operation(
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any] | None = None,
    gradients: tuple[Callable[..., None], Callable[..., Any]] | None = None,
    *,
    draws: bool = False,
) -> None:
    """Define an operation for every device.

    `shapes` is computed in its place while PyTorch traces; `gradients` are what its forward pass
    keeps and its backward pass, as in ``torch.library.register_autograd``; `draws`: it takes random
    numbers from a generator.
    """
    tags = (torch.Tag.nondeterministic_seeded,) if draws else ()
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    if shapes is not None:
        torch.library.register_fake(f"placewright::{name}", shapes, lib=_LIBRARY)
    if gradients is not None:
        keep, backward = gradients
        torch.library.register_autograd(
            f"placewright::{name}", backward, setup_context=keep, lib=_LIBRARY
        )
