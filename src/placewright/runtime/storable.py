"""Tensors as a safetensors file takes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def storable(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same values on the CPU, each contiguous, no two in one piece of memory.

    Copies only what must be copied: weights are large, and who writes them has little to spare.
    """
    seen: set[int] = set()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[name] = own
    return found
