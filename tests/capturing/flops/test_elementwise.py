"""FLOPs of elementwise operations, pooling windows, sorting and transforms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from placewright.capturing.flops.elementwise import MOVES, TRANSCENDENTAL, elementwise_rule

aten = torch.ops.aten
X = torch.randn(2, 3, 8, 8)
N = X.numel()


def count(target: torch._ops.OpOverload, *args: Any, made: Any = None) -> float:
    """FLOPs of one call, executed unless its result is given."""
    rule = elementwise_rule(target)
    assert rule is not None
    return rule(args, {}, target(*args) if made is None else made)


@pytest.mark.parametrize(
    ("target", "args", "wanted"),
    [
        (aten.add.Tensor, (X, X), N),
        (aten.add.Tensor, (X, torch.randn(8)), N),
        (aten.exp.default, (X,), TRANSCENDENTAL * N),
        (aten.pow.Tensor_Scalar, (X, 2), N),
        (aten.pow.Tensor_Scalar, (X, 2.5), TRANSCENDENTAL * N),
        (aten.pow.Tensor_Tensor, (X.abs(), X), TRANSCENDENTAL * N),
        (aten.pow.Scalar, (2.0, X), TRANSCENDENTAL * N),
        (aten.sum.dim_IntList, (X, [1]), N),
        (aten.cumsum.default, (X, 1), N),
        (aten._softmax.default, (X, -1, False), (4 + TRANSCENDENTAL) * N),
        (aten.sort.default, (X.reshape(-1),), N * math.log2(N)),
        (aten.topk.default, (X, 4), 2 * N),
        (aten.max_pool2d_with_indices.default, (X, [2, 2]), N),
        (aten.max_pool2d_with_indices.default, (X, [3, 3], [1, 1], [1, 1]), 9 * N),
        (aten.avg_pool2d.default, (X, [4, 4]), N),
        (aten._fft_c2c.default, (X + 0j, [3], 0, True), 5 * N * math.log2(8)),
        (aten._fft_r2c.default, (X, [3], 0, True), 2.5 * N * math.log2(8)),
        (aten._cdist_forward.default, (X[0, 0], X[0, 1], 2.0, None), 3 * 8 * 8 * 8),
        (aten.linalg_cholesky_ex.default, (torch.eye(6),), 6**3 / 3),
        (aten.upsample_bilinear2d.default, (X, [16, 16], False), 3 * 4 * 4 * N),
        (aten.index_put.default, (X, [torch.tensor([0])], X[:1]), 0),
        (aten.index_put.default, (X, [torch.tensor([0])], X[:1], True), N / 2),
        (aten.cat.default, ([X, X],), 0),
        (aten.view.default, (X, [-1]), 0),
        (aten._foreach_add.Scalar, ([X, X], 1), 2 * N),
    ],
    ids=lambda x: "args" if isinstance(x, tuple) else str(x),
)
def test_counts_by_hand(target: torch._ops.OpOverload, args: Any, wanted: float) -> None:
    """Each operation on a tensor of known size."""
    assert count(target, *args) == pytest.approx(wanted)


def test_the_gradient_of_a_pool_counts_its_windows() -> None:
    """As many as the gradient that comes in has."""
    grad = torch.randn(2, 3, 4, 4)
    args = (grad, X, [2, 2], [2, 2], [0, 0], False, True, None)
    assert count(aten.avg_pool2d_backward.default, *args) == grad.numel() * 4


def test_a_bilinear_form_counts_what_its_arguments_span() -> None:
    """Rows x outputs x both widths."""
    x, w, y = torch.randn(5, 3), torch.randn(7, 3, 4), torch.randn(5, 4)
    made = aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3])
    assert made.shape == (5, 7)
    args = (x, w, y, [1, 3], [0], [1, 2], [2, 3])
    assert count(aten._trilinear.default, *args) == 3 * 5 * 7 * 3 * 4


def test_what_only_moves_exists_and_is_not_tagged_as_computing() -> None:
    """Every name is an operation of ATen or of prims."""
    prims = torch.ops.prims
    for name in MOVES:
        assert any(hasattr(space, at) for space in (aten, prims) for at in (name, f"{name}_")), name
