"""Shapes that PyTorch's own rule refuses and its kernels take."""

from __future__ import annotations

import pytest
import torch
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensorMode

from placewright.capture.draft import spec_of
from placewright.capture.shape_rules import shape_rules


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_grouped_product_has_the_shape_that_the_kernel_gives_it(dtype: torch.dtype) -> None:
    """Weights as they are and transposed, and the backward's two operands of two dimensions."""
    rows, cols = torch.randn(8, 16, dtype=dtype), torch.randn(8, 24, dtype=dtype)
    weights = torch.randn(4, 16, 24, dtype=dtype)
    ends = torch.tensor([2, 5, 5, 8], dtype=torch.int32)
    product = torch.ops.aten._grouped_mm.default
    mode = FakeTensorMode()
    for a, b in ((rows, weights), (cols, weights.transpose(1, 2)), (rows.T, cols)):
        real = product(a, b, ends)
        with shape_rules(), mode:
            fake = product(*map(mode.from_tensor, (a, b, ends)))
        assert spec_of(fake) == spec_of(real)


def test_the_rule_is_put_back() -> None:
    """Nobody else's traces are changed."""
    rule = _meta_registrations._meta_grouped_mm_common
    with shape_rules():
        assert _meta_registrations._meta_grouped_mm_common is not rule
    assert _meta_registrations._meta_grouped_mm_common is rule
