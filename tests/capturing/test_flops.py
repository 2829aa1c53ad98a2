"""The registry of FLOPs: a model counts the same whichever format it comes in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from placewright.capturing.call_flops import work_of
from placewright.capturing.flops import (
    ALSO_CALLED,
    ELSEWHERE,
    PER_ELEMENT,
    Work,
    einsum,
    work_of_kind,
)

aten = torch.ops.aten
X = torch.randn(2, 3, 8, 8)
V = torch.randn(3)
NORM = (X, [3, 8, 8], torch.randn(3, 8, 8), torch.randn(3, 8, 8), 1e-5)
CALLS: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (aten.exp, (X,), ("Exp",)),
    (aten.erf, (X,), ("Erf",)),
    (aten.sigmoid, (X,), ("Sigmoid", "Logistic")),
    (aten.tanh, (X,), ("Tanh",)),
    (aten.silu, (X,), ("Swish",)),
    (aten.gelu, (X,), ("Gelu",)),
    (aten.relu, (X,), ("Relu", "Relu6", "ReluGrad")),
    (aten.add, (X, X), ("Add", "AddV2", "BiasAdd", "Sub", "Mul", "Multiply", "RealDiv")),
    (aten.rsqrt, (X,), ("Rsqrt", "Sqrt")),
    (aten._softmax, (X, -1, False), ("Softmax",)),
    (aten._log_softmax, (X, -1, False), ("LogSoftmax",)),
    (aten.sum, (X, [1]), ("ReduceSum", "Sum", "ReduceMean", "GlobalAveragePool")),
    (aten.argmax, (X, 1), ("ArgMax",)),
    (aten.cumsum, (X, 1), ("CumSum",)),
    (aten.native_layer_norm, NORM, ("LayerNormalization", "InstanceNormalization", "MVN")),
    (aten.clone, (X,), ("Identity", "Transpose", "Cast", "Concat", "GatherV2", "StridedSlice")),
    (
        aten._native_batch_norm_legit_no_training,
        (X, V, V, V, V.abs(), 0.1, 1e-5),
        ("BatchNormalization", "BatchNormInference"),
    ),
]


@pytest.mark.parametrize(("packet", "args", "kinds"), CALLS, ids=[str(case[0]) for case in CALLS])
def test_other_formats_count_as_captured_calls(
    packet: Any, args: tuple[Any, ...], kinds: tuple[str, ...]
) -> None:
    """By the same shapes, under the names that ONNX, OpenVINO and TensorFlow have for it."""
    call = getattr(packet, packet.overloads()[0])
    made = packet(*args)
    shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
    results = [tuple(made.shape if isinstance(made, torch.Tensor) else made[0].shape)]
    wanted = work_of(call, args, {}, made)
    assert not wanted.uncounted
    for kind in kinds:
        assert work_of_kind(kind, shapes, results) == wanted, kind


@pytest.mark.parametrize("window", [2, 4])
def test_pools_count_their_windows(window: int) -> None:
    """Forward an element for each place of a window; the gradient of a mean as well."""
    small = (2, 3, 8 // window, 8 // window)
    made = aten.avg_pool2d(X, [window, window])
    call = aten.avg_pool2d.default
    wanted = work_of(call, (X, [window, window]), {}, made)
    for kind in ("AveragePool", "MaxPool", "AvgPool"):
        assert work_of_kind(kind, [(2, 3, 8, 8)], [small], window=window**2) == wanted
    back = work_of_kind("AvgPoolGrad", [(4,), small], [(2, 3, 8, 8)], window=window**2)
    assert back == wanted
    given = [(2, 3, 8, 8), small, small]
    assert work_of_kind("MaxPoolGrad", given, [(2, 3, 8, 8)], window=4).elementwise_flops == 384


def test_interpolation_counts_by_its_mode() -> None:
    """Four taps; picking the nearest element computes nothing."""
    made = aten.upsample_bilinear2d(X, [16, 16], False)
    wanted = work_of(aten.upsample_bilinear2d.default, (X, [16, 16], False), {}, made)
    shapes = [(2, 3, 8, 8)], [(2, 3, 16, 16)]
    assert work_of_kind("Resizelinear", *shapes) == wanted
    assert work_of_kind("Interpolatelinear_onnx", *shapes) == wanted
    assert work_of_kind("Resizenearest", *shapes) == Work()


def test_what_has_no_formula_says_so() -> None:
    """An operator of nobody, and a product whose shapes are too few."""
    assert work_of_kind("NoSuchOperator", [(3,)], [(3,)]) == Work(uncounted=True)
    assert work_of_kind("Conv", [], [], product=lambda: float([][0])).uncounted


def test_einsum_spans_what_its_indices_span() -> None:
    """A dimension of one is stretched; one operand has no product."""
    assert einsum("bij, bjk -> bik", [(2, 3, 4), (1, 4, 5)]) == 2 * 2 * 3 * 4 * 5
    assert einsum("ij->ji", [(3, 4)]) == 0.0


def test_names_mean_one_thing() -> None:
    """What another format calls it stands in one list, and what it stands for is counted."""
    assert not set(ALSO_CALLED) & set(ELSEWHERE)
    counted = {"exp", "pow"} | set(PER_ELEMENT)
    assert set(ALSO_CALLED.values()) <= counted
