"""Propagation of split values through calls."""

from __future__ import annotations

import pytest

from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.splitting import split_layer

SPECS = {
    "x": TensorSpec((2, 3, 4, 8), "float32"),
    "weight": TensorSpec((6, 8), "float32"),
    "kernel": TensorSpec((6, 3, 3, 3), "float32"),
    "wide": TensorSpec((2, 3, 4, 6), "float32"),
    "made": TensorSpec((2, 6, 4, 8), "float32"),
}


@pytest.mark.parametrize(
    ("call", "result", "way"),
    [
        (("aten.linear.default", "weight"), "wide", "whole"),  # split along what is pooled
        (("aten.conv2d.default", "kernel"), "made", "keep"),  # split along channels
    ],
)
def test_pools_need_whole_rows_and_columns(call: tuple[str, str], result: str, way: str) -> None:
    """A part of the last dimensions is gathered before it is pooled; channels stay split."""
    target, weight = call
    first = Instruction("a", target, (Ref("x"), Ref(weight)), {}, (result,))
    pool = Instruction("b", "aten.max_pool2d.default", (Ref(result), (2, 2)), {}, ("y",))
    split = split_layer((first, pool), SPECS, frozenset({weight}), ("y",), 2)
    assert [c.way for c in split.calls] == ["column", way]
    assert bool(split.calls[1].gathers) == (way == "whole")
