"""Shape rules of operations whose rule in PyTorch is narrower than their kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, _meta_registrations

_RULE = "_meta_grouped_mm_common"


@contextmanager
def shape_rules() -> Iterator[None]:
    """Grouped matrix products of every dtype, as the kernels for CPUs take them.

    PyTorch's own rule admits bfloat16 alone, though experts in float32 run eagerly
    (torch 2.13, ``meta_grouped_mm``).
    """
    narrow = getattr(_meta_registrations, _RULE)

    def grouped_mm(mat_a: Tensor, mat_b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("scale_a") is not None or mat_a.dtype == torch.bfloat16:
            made: Tensor = narrow(mat_a, mat_b, *args, **kwargs)
            return made
        like: Any = _meta_registrations._create_grouped_mm_output_tensor
        room: Tensor = like(mat_a, mat_b, kwargs.get("offs"), kwargs.get("out_dtype"))
        return room

    setattr(_meta_registrations, _RULE, grouped_mm)
    try:
        yield
    finally:
        setattr(_meta_registrations, _RULE, narrow)
