"""Efficiencies: one for every kind of work, and the lookup by operator."""

from __future__ import annotations

import pytest

from placewright.cluster.devices import (
    EFFICIENCY,
    WORK,
    Device,
    efficiency_of,
    family_of,
    product_efficiency,
)
from placewright.graph.graph import Operator


@pytest.mark.parametrize("kind", EFFICIENCY)
def test_every_kind_of_work_has_a_share_below_the_peak(kind: str) -> None:
    """As far as measurements go, nothing reaches its peak."""
    assert set(EFFICIENCY[kind]) == set(WORK)
    assert all(0 < share < 1 for share in EFFICIENCY[kind].values())


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("aten.addmm.default", "matmul"),
        ("aten._weight_int8pack_mm.default", "matmul"),
        ("aten._grouped_mm.default", "grouped_matmul"),
        ("aten.convolution_backward.default", "convolution"),
        ("aten._scaled_dot_product_cudnn_attention_backward.default", "attention"),
        ("aten.mkldnn_rnn_layer.default", "recurrent"),
        ("mine.convert_weights.default", "matmul"),
    ],
)
def test_operators_belong_to_a_kind_of_work(kind: str, family: str) -> None:
    """By their names; what is nothing else is a product."""
    assert family_of(kind) == family


def test_a_device_overrides_its_kind() -> None:
    """Where it says something; a kind that nobody knows is like a CPU."""
    own = Device("a", kind="gpu", efficiency={"matmul": 0.6})
    operators = [Operator("a", "aten.mm.default"), Operator("b", "aten.convolution.default")]
    assert product_efficiency(operators, own).tolist() == [0.6, EFFICIENCY["gpu"]["convolution"]]
    assert efficiency_of(Device("b", kind="tpu"), "matmul") == EFFICIENCY["cpu"]["matmul"]
