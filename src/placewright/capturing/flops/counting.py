"""FLOPs of a call: matrix products by PyTorch's own formulas, or ours where it has none.

A multiply-add counts 2. Counts agree with PyTorch's counter (`torch.utils.flop_counter`), but for
one error of it (`_registered`): attention in full, whether its mask is causal or not, its backward
pass with the scores computed again. Formulas that a user registers there
(``torch.utils.flop_counter.register_flop_formula``) are used too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from placewright.capturing.flops.elementwise import elementwise_rule


class Work(NamedTuple):
    """FLOPs of a call.

    Attributes
    ----------
    flops
        Of matrix products, convolutions, attention and recurrent layers.
    elementwise_flops
        Of everything else: per element, reductions, sorting, transforms.
    uncounted
        Whether there is no formula; then both are 0.
    """

    flops: float = 0.0
    elementwise_flops: float = 0.0
    uncounted: bool = False


def work(node: fx.Node) -> Work:
    """FLOPs of a node, from shapes alone."""
    args = fx.node.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: n.meta["val"])
    return work_of(cast(torch._ops.OpOverload, node.target), args, kwargs, node.meta["val"])


def work_of(target: torch._ops.OpOverload, args: Any, kwargs: Any, made: Any) -> Work:
    """FLOPs of a call with these arguments and results; of tensors only shapes count."""
    rule = rule_of(target)
    try:
        return Work(uncounted=True) if rule is None else rule(args, kwargs, made)
    except Exception:
        return Work(uncounted=True)  # unforeseen arguments, or an error in a user's formula


def rule_of(target: torch._ops.OpOverload) -> Callable[[Any, Any, Any], Work] | None:
    """Formula for the calls of an operation, ``None`` where there is none."""
    packet = target.overloadpacket
    if packet in flop_registry:
        return lambda args, kwargs, made: Work(_registered(packet, args, kwargs, made))
    formula = _FORMULAS.get(str(packet)) if target.namespace == "aten" else None
    if formula is not None:
        return lambda args, kwargs, made: Work(float(formula(args, made)))
    rest = elementwise_rule(target)
    if rest is None:
        return None
    return lambda args, kwargs, made: Work(0.0, rest(args, kwargs, made))


def _registered(packet: Any, args: Any, kwargs: Any, made: Any) -> float:
    """FLOPs by the formula of PyTorch's counter.

    PyTorch 2.13 ignores the groups of a convolution in the gradient of the weight, which counts it
    as many times as there are groups (thousands for a depthwise one); corrected here.
    """
    formula = flop_registry[packet]
    if packet is not torch.ops.aten.convolution_backward or args[9] == 1:
        return float(formula(*args, **kwargs, out_val=made))
    groups, (to_input, to_weight, _) = args[9:11]
    inputs = formula(*args[:10], (to_input, False, False), out_val=made)
    weights = formula(*args[:10], (False, to_weight, False), out_val=made)
    return float(inputs + weights / groups)


def _rows_by_columns(args: Any, made: Any) -> float:
    """2 x elements of the result x length of the rows of the first matrix."""
    return 2.0 * _size(made) * int(args[0].shape[-1])


def _last_two(args: Any, made: Any) -> float:
    """A vector or matrix plus the product of the second and third arguments."""
    first, second = args[1:3]
    return 2.0 * int(first.numel()) * (1 if second.dim() == 1 else int(second.shape[-1]))


def _vectors(args: Any, made: Any) -> float:
    """An inner product: each element of the first argument is multiplied once."""
    return 2.0 * int(args[0].numel())


def _grouped(args: Any, made: Any) -> float:
    """Rows (or columns) of a matrix, each by the matrix of its group.

    Two matrices are multiplied in segments of their common dimension: one product per group, all
    groups together as much as one product without groups.
    """
    first, second = args[:2]
    if first.dim() == second.dim() == 2:
        return 2.0 * int(first.numel()) * int(second.shape[1])
    return 2.0 * _size(made) * int(first.shape[-1])


def _attention(args: Any, made: Any) -> float:
    """Scores and their product with the values; heads of queries may share keys."""
    return _products(*args[:3], by_width=1, by_values=1)


def _attention_backward(args: Any, made: Any) -> float:
    """Scores again, then gradients of values and scores, of queries and keys."""
    return _products(*args[1:4], by_width=3, by_values=2)


def _products(query: Tensor, key: Tensor, value: Tensor, *, by_width: int, by_values: int) -> float:
    """`by_width` products of the scores' size by the keys' width, `by_values` by the values'."""
    scores = math.prod((*query.shape[:-1], key.shape[-2]))
    width = by_width * key.shape[-1] + by_values * value.shape[-1]
    return 2.0 * scores * int(width)


def _recurrent(args: Any, made: Any) -> float:
    """One layer over a sequence: each step multiplies by both weight matrices."""
    steps, *weights = cast(Sequence[Tensor], args[:3])
    numbers = sum(int(w.numel()) for w in weights)
    return 2.0 * math.prod(int(n) for n in steps.shape[:-1]) * numbers


def _recurrent_backward(args: Any, made: Any) -> float:
    """Twice as much: gradients of weights and of inputs."""
    return 2.0 * _recurrent(args, made)


def _recurrent_layers(args: Any, made: Any) -> float:
    """All layers and directions: each step multiplies by every weight matrix once."""
    steps, weights = args[0], args[1]
    matrices = sum(int(w.numel()) for w in weights if w.dim() > 1)
    return 2.0 * math.prod(int(n) for n in steps.shape[:-1]) * matrices


def _recurrent_layers_backward(args: Any, made: Any) -> float:
    return 2.0 * _recurrent_layers(args, made)


def _sequence(args: Any, made: Any) -> float:
    """As `_recurrent_layers`, the weights behind the first states, or behind a packed batch."""
    packed = isinstance(args[1], Tensor) and args[1].dim() == 1
    return _recurrent_layers((args[0], args[3 if packed else 2]), made)


def _cell(args: Any, made: Any) -> float:
    """One step of a recurrent layer: input, states, weights of both."""
    return 2.0 * int(args[0].numel() // args[0].shape[-1]) * sum(int(w.numel()) for w in args[2:4])


def _convolution(args: Any, made: Any) -> float:
    """One product with a filter for every element of the result."""
    return 2.0 * _size(made) * math.prod(int(size) for size in args[1].shape[1:])


def _transposed(args: Any, made: Any) -> float:
    """One product with a filter for every element of the input."""
    return 2.0 * int(args[0].numel()) * math.prod(int(size) for size in args[1].shape[1:])


def _heads(args: Any, made: Any) -> float:
    """Projections in and out, and attention; the arguments are query, key, value, width, heads."""
    query, key, value, width = args[:4]
    batch, rows, columns = int(query.shape[0]), int(query.shape[1]), int(key.shape[1])
    projected = sum(int(x.numel()) for x in (query, key, value)) + batch * rows * width
    return 2.0 * int(width) * int(projected + 2 * batch * rows * columns)


def _encoder_layer(args: Any, made: Any) -> float:
    """Self-attention and two linear layers: source, width, heads, ..., weights of the latter."""
    source, width = args[0], args[1]
    linear = next(w for w in args[11:] if isinstance(w, Tensor) and w.dim() == 2)
    inner = 4.0 * int(source.numel()) * int(linear.shape[0])
    return _heads((source, source, source, width), made) + inner


def _size(made: Any) -> int:
    """Elements of the first result."""
    return int((made if isinstance(made, Tensor) else made[0]).numel())


_Formula = Callable[[Any, Any], float]
_FORMULAS: dict[str, _Formula] = {
    f"aten.{name}": formula
    for formula, names in (
        (
            _rows_by_columns,
            "linear mkldnn_linear _mkl_linear matmul _int_mm _weight_int8pack_mm "
            "_weight_int4pack_mm_for_cpu _scaled_mm_v2 _mixed_dtypes_linear _dyn_quant_matmul_4bit "
            "_weight_int4pack_mm _weight_int4pack_mm_with_scales_and_zeros mv",
        ),
        (_last_two, "addmv addbmm _addmm_activation sspaddmm"),
        (_vectors, "dot vdot"),
        (_grouped, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
        (
            _attention,
            "_scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention "
            "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
            "_scaled_dot_product_attention_math_for_mps",
        ),
        (
            _attention_backward,
            "_scaled_dot_product_flash_attention_for_cpu_backward "
            "_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        (_recurrent, "mkldnn_rnn_layer"),
        (_recurrent_backward, "mkldnn_rnn_layer_backward"),
        (_recurrent_layers, "_cudnn_rnn miopen_rnn"),
        (_recurrent_layers_backward, "_cudnn_rnn_backward miopen_rnn_backward"),
        (_sequence, "lstm gru rnn_tanh rnn_relu"),
        (_cell, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
        (_transposed, "conv_transpose1d conv_transpose2d conv_transpose3d"),
        (
            _convolution,
            "conv1d conv2d conv3d mkldnn_convolution _mkldnn_convolution miopen_convolution "
            "conv_depthwise3d _conv_depthwise2d slow_conv3d_forward slow_conv_dilated2d "
            "slow_conv_dilated3d _nnpack_spatial_convolution",
        ),
        (_heads, "_native_multi_head_attention"),
        (_encoder_layer, "_transformer_encoder_layer_fwd"),
    )
    for name in names.split()
}
"""By operation, where PyTorch's counter has no formula."""
