"""FLOPs: PyTorch's counter, products by hand, and every operation of ATen's core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from placewright.capturing.call_flops import elementwise_rule, rule_of, work_of
from placewright.capturing.flops import MOVES, TRANSCENDENTAL
from placewright.capturing.model import capture
from tests.capturing.models import UNet, VisionTransformer
from tests.capturing.small_graphs import only_operator

# ruff: noqa: D102 - the docstring of the class describes `forward`


aten = torch.ops.aten
ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *shapes, **_: sdpa_flop_count(*shapes[:3])
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])
    ),
}
"""PyTorch's own formulas for operations that its counter does not know under this name."""


def counted_by_torch(model: nn.Module, inputs: Any, *, training: bool) -> int:
    """What the counter says of a step in eager."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter:
        made = model(*args, **kwargs)
        if training:
            made = getattr(made, "logits", made)
            parts = made if isinstance(made, tuple) else (made,)
            sum(part.square().mean() for part in parts).backward()
    return counter.get_total_flops()


def llama() -> tuple[nn.Module, Any]:
    """Four heads of queries share two of keys."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 61, (2, 9))}


def t5() -> tuple[nn.Module, Any]:
    """Encoder and decoder; attention with a bias, and across."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False
    )
    ids = torch.randint(0, 61, (2, 9))
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": ids, "decoder_input_ids": ids[:, :5]}


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "llama": llama,
    "t5": t5,
    "u-net": lambda: (UNet(), (torch.randn(2, 3, 16, 16),)),
    "vision transformer": lambda: (VisionTransformer(), (torch.randn(2, 3, 32, 32),)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models_count_what_torch_counts(name: str, training: bool) -> None:
    """To the last operation, forward and with the backward pass."""
    model, inputs = MODELS[name]()
    model.train(training)
    graph = capture(model, inputs, training=training)
    assert graph.flops == counted_by_torch(model, inputs, training=training) > 0
    assert not [op.kind for op in graph.operators if op.uncounted]


def test_flops_of_a_linear_layer_and_its_backward() -> None:
    """2 m n k forward; the same for the gradient of the weight (none of the input)."""
    graph = capture(nn.Linear(5, 7), torch.randn(3, 5), training=True)
    assert only_operator(graph, "aten.addmm.default").flops == 2 * 3 * 5 * 7
    assert only_operator(graph, "aten.mm.default").flops == 2 * 3 * 5 * 7


@pytest.mark.parametrize("training", [False, True])
def test_flops_of_a_recurrent_layer(training: bool) -> None:
    """Four gates, both weight matrices, every step; the backward makes two gradients of each."""
    graph = capture(nn.LSTM(5, 7), torch.randn(11, 3, 5), training=training)
    forward = 2 * 11 * 3 * 4 * 7 * (5 + 7)
    assert only_operator(graph, "aten.mkldnn_rnn_layer.default").flops == forward
    if training:
        assert only_operator(graph, "aten.mkldnn_rnn_layer_backward.default").flops == 2 * forward


class Attention(nn.Module):
    """Scaled-dot-product attention of what it is given, heads of keys shared."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_attention_counts_as_its_two_products() -> None:
    """What `torch.bmm` over the same shapes counts; widths of keys and values differ."""
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    graph = capture(Attention(), (q, k, v))
    with FlopCounterMode(display=False) as counter:
        scores = torch.bmm(torch.randn(12, 5, 8), torch.randn(12, 8, 7))
        torch.bmm(scores, torch.randn(12, 7, 8))
    kind = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert only_operator(graph, kind).flops == counter.get_total_flops()


def sdpa_names() -> list[str]:
    """Every back end of attention, and its backward."""
    every = torch._C._dispatch_get_all_op_names()
    names = {name.removeprefix("aten::").partition(".")[0] for name in every}
    return sorted(name for name in names if name.startswith("_scaled_dot_product_"))


@pytest.mark.parametrize("name", sdpa_names())
def test_every_back_end_of_attention_counts_the_same(name: str) -> None:
    """Forward 2 products, backward 5, on whatever device; on the meta device shapes are enough."""
    shape = (2, 4, 16, 8)
    q, k, v, grad = (torch.empty(shape, device="meta") for _ in range(4))
    product = 2 * 2 * 4 * 16 * 16 * 8
    args = (grad, q, k, v) if name.endswith("_backward") else (q, k, v)
    done = work_of(getattr(aten, name).default, args, {}, (torch.empty(shape, device="meta"),))
    assert done.flops == product * (5 if name.endswith("_backward") else 2)


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_products_count_as_one_product_a_group(groups: int) -> None:
    """Rows by their group's matrix, batches, and the gradient of the matrices."""
    m, k, n = 12, 5, 7
    x, y = torch.randn(m, k), torch.randn(groups, k, n)
    g = torch.randn(m, n)
    for args, made in (
        ((x, y), torch.randn(m, n)),
        ((torch.randn(groups, m // groups, k), y), torch.randn(groups, m // groups, n)),
        ((x.t(), g), torch.randn(groups, k, n)),
    ):
        for name in ("_grouped_mm", "_scaled_grouped_mm"):
            assert work_of(getattr(aten, name).default, args, {}, made).flops == 2 * m * k * n


def products() -> list[tuple[str, Any, Any, int]]:
    """An operation, its arguments, what it makes, and its multiplications by hand."""
    a, b, v = torch.randn(3, 5), torch.randn(5, 7), torch.randn(5)
    batch = torch.randn(2, 3, 5), torch.randn(2, 5, 7)
    return [
        ("mv", (a, v), torch.randn(3), 3 * 5),
        ("addmv", (torch.randn(3), a, v), torch.randn(3), 3 * 5),
        ("dot", (v, v), torch.randn(()), 5),
        ("vdot", (v, v), torch.randn(()), 5),
        ("addbmm", (torch.randn(3, 7), *batch), torch.randn(3, 7), 2 * 3 * 5 * 7),
        ("baddbmm", (torch.randn(2, 3, 7), *batch), torch.randn(2, 3, 7), 2 * 3 * 5 * 7),
        ("_addmm_activation", (torch.randn(7), a, b), torch.randn(3, 7), 3 * 5 * 7),
        ("linear", (torch.randn(2, 3, 5), b.t()), torch.randn(2, 3, 7), 2 * 3 * 5 * 7),
        ("_int_mm", (a, b), torch.randn(3, 7), 3 * 5 * 7),
        ("_weight_int8pack_mm", (a, b.t(), torch.randn(7)), torch.randn(3, 7), 3 * 5 * 7),
    ]


@pytest.mark.parametrize(
    ("name", "args", "made", "count"), products(), ids=[case[0] for case in products()]
)
def test_products_by_hand(name: str, args: Any, made: Any, count: int) -> None:
    """Two for each multiplication."""
    assert work_of(getattr(aten, name).default, args, {}, made).flops == 2 * count


@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_convolution_counts_as_one_convolution_a_group(transposed: bool) -> None:
    """Its backward as well, where PyTorch's counter forgets the groups."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    counts = {}
    for channels, groups in ((6, 3), (2, 1)):
        layer = kind(channels, channels * 2, 3, groups=groups)
        layers = nn.Sequential(nn.Conv2d(1, channels, 1), layer)
        graph = capture(layers, torch.randn(2, 1, 9, 9), training=True)
        of_layer = (op for op in graph.operators if op.module == "1")
        counts[groups] = [op.flops for op in of_layer if op.flops]
    assert counts[3] == [3 * count for count in counts[1]]
    assert len(counts[1]) == 2


def test_every_operation_of_the_core_has_a_formula_or_only_moves() -> None:
    """ATen's core is what captured graphs are mostly made of."""
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and not packet.startswith("sym_"):
            target = getattr(getattr(aten, packet), overload or "default", None)
            if target is not None and torch.Tag.core in target.tags and rule_of(target) is None:
                missing.append(name)
    assert not missing


def test_what_has_no_formula_says_so() -> None:
    """An operation of a user's own; a formula that is registered with PyTorch's counter counts."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    @torch.library.custom_op("placewright_tests::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    @thrice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return thrice(x) + 1

    kind = "placewright_tests.thrice.default"
    found = only_operator(capture(Model(), torch.randn(4)), kind)
    assert (found.flops, found.elementwise_flops, found.uncounted) == (0.0, 0.0, True)
    packet = torch.ops.placewright_tests.thrice
    register_flop_formula(packet)(lambda shape, **_: 3 * shape[0])
    try:
        found = only_operator(capture(Model(), torch.randn(4)), kind)
    finally:
        del flop_registry[packet]
    assert (found.flops, found.uncounted) == (12.0, False)


def test_arguments_that_a_formula_does_not_know_are_not_counted() -> None:
    """Without an error: a capture goes on."""
    done = work_of(aten._grouped_mm.default, (), {}, torch.randn(3))
    assert done.uncounted


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
    """Every name is an operation of ATen, of prims or of our own."""
    spaces = (aten, torch.ops.prims, torch.ops.placewright)
    for name in MOVES:
        assert any(hasattr(space, at) for space in spaces for at in (name, f"{name}_")), name
