"""Batch normalisation that says what it changes.

``aten.native_batch_norm`` updates the running statistics without a word in its schema, so
functionalization cannot see it. Its ``_legit`` twins call the same kernels and declare it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if mean is None or variance is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if training:
        return aten._native_batch_norm_legit.default(
            x, weight, bias, mean, variance, training, momentum, eps
        )
    return aten._native_batch_norm_legit_no_training.default(
        x, weight, bias, mean, variance, momentum, eps
    )


FUNCTIONAL_BATCH_NORM = {aten.native_batch_norm.default: _native_batch_norm}
"""Decomposition table for the trace."""
