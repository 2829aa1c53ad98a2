"""FLOPs of PyTorch's calls by their arguments: its own formulas, or ours where it has none.

Products agree with PyTorch's counter (`torch.utils.flop_counter`), but for one error of it
(`_registered`): attention in full, whether its mask is causal or not, its backward pass with the
scores computed again. Formulas that a user registers there
(``torch.utils.flop_counter.register_flop_formula``) are used too. What is counted per element has
its numbers in `placewright.capturing.flops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from placewright.capturing.flops import (
    TAPS,
    TRANSCENDENTAL,
    Work,
    attention,
    per_element,
    recurrent,
)


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
    formula = _FORMULAS.get(str(packet))
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
    """Scores and their product with the values."""
    return attention(*(x.shape for x in args[:3]))


def _attention_backward(args: Any, made: Any) -> float:
    """Scores again, then gradients of values and scores, of queries and keys."""
    return attention(*(x.shape for x in args[1:4]), by_width=3, by_values=2)


def _recurrent(args: Any, made: Any) -> float:
    """One layer over a sequence: each step multiplies by both weight matrices."""
    steps, *weights = cast(Sequence[Tensor], args[:3])
    return recurrent(steps.shape, sum(int(w.numel()) for w in weights))


def _recurrent_backward(args: Any, made: Any) -> float:
    """Twice as much: gradients of weights and of inputs."""
    return 2.0 * _recurrent(args, made)


def _recurrent_layers(args: Any, made: Any) -> float:
    """All layers and directions: each step multiplies by every weight matrix once."""
    steps, weights = args[0], args[1]
    return recurrent(steps.shape, sum(int(w.numel()) for w in weights if w.dim() > 1))


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
} | {
    "placewright.packed_recurrent": lambda args, made: _recurrent_layers((args[1], args[4]), made),
    # The forward pass again, and gradients of inputs and weights.
    "placewright.packed_recurrent_backward": lambda args, made: (
        3.0 * _recurrent_layers((args[1], args[4]), made)
    ),
}
"""By operation, where PyTorch's counter has no formula."""


_Count = Callable[[Any, Any, Any], float]
"""FLOPs from arguments, keywords and results of a call; of tensors only shapes count."""


def elementwise_rule(target: torch._ops.OpOverload) -> _Count | None:
    """Formula for the calls of an operation, ``None`` where there is none."""
    if target.namespace not in ("aten", "prims", "placewright"):
        return None
    name = str(target._opname)
    name = name if name.endswith("__") else name.removesuffix("_")
    forward = name.removesuffix("_backward")
    if name in _ELEMENTWISE:
        return _ELEMENTWISE[name]
    if forward in TAPS:
        return _interpolation(TAPS[forward], backward=forward != name)
    if getattr(target, "is_view", False):
        return _each(0.0)
    count = per_element(name)
    if count is not None:
        return _each(count)
    if name.startswith("_foreach_"):
        return lambda args, kwargs, made: float(sum(x.numel() for x in _tensors(args)))
    simple = torch.Tag.pointwise in target.tags or torch.Tag.reduction in target.tags
    return _each(1.0) if simple else None


def _each(count: float) -> _Count:
    """`count` for each element of the largest tensor that is read or made."""
    return lambda args, kwargs, made: count * _largest((args, kwargs, made))


def _interpolation(taps: int, *, backward: bool) -> _Count:
    """Product, sum and weight of each tap, for elements made or whose gradient is given."""
    return lambda args, kwargs, made: 3.0 * taps * _largest(args[:1] if backward else made)


def _tensors(values: Any) -> Iterable[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _largest(values: Any) -> int:
    return max((tensor.numel() for tensor in _tensors(values)), default=0)


def _logarithm(n: float) -> float:
    return max(1.0, math.log2(max(n, 1.0)))


def _power(args: Any, kwargs: Any, made: Any) -> float:
    """A square, a cube or a root takes no exponential and logarithm."""
    exponent = args[1] if len(args) > 1 else None
    simple = isinstance(exponent, int | float) and exponent in (-1, -0.5, 0.5, 1, 2, 3)
    return (1.0 if simple else TRANSCENDENTAL) * _largest((args, made))


def _sorted(args: Any, kwargs: Any, made: Any) -> float:
    """Comparisons of a merge sort along the longest dimension."""
    values = next(iter(_tensors(args)))
    return float(values.numel() * _logarithm(max(values.shape, default=1)))


def _best(args: Any, kwargs: Any, made: Any) -> float:
    """A heap of the k best: one comparison an element and log k where it enters."""
    return _largest(args) * _logarithm(args[1] if len(args) > 1 else 1)


def _window(args: Any, kwargs: Any, made: Any) -> float:
    """One addition or comparison for each element under each window."""
    dims = next(iter(_tensors(args))).dim() - 2
    given = args[1] if not isinstance(args[1], Tensor) else args[2]
    kernel = [given] * dims if isinstance(given, int) else list(given)
    kernel = kernel * dims if len(kernel) == 1 else kernel
    windows = args[0] if isinstance(args[1], Tensor) else next(iter(_tensors(made)))
    return float(windows.numel() * math.prod(kernel))


def _transform(args: Any, kwargs: Any, made: Any) -> float:
    """``5 n log2 n`` for complex numbers, the convention of FFTW; half of it for real ones."""
    values, dims = args[0], args[1]
    whole = max(_largest(values), _largest(made))
    lengths = math.prod(max(values.shape[d], made.shape[d]) for d in dims)
    real = not (values.is_complex() and made.is_complex())
    return (2.5 if real else 5.0) * whole * _logarithm(lengths)


def _distances(args: Any, kwargs: Any, made: Any) -> float:
    """Difference, power and sum over the last dimension."""
    return 3.0 * _largest(made) * int(args[0].shape[-1])


def _distances_back(args: Any, kwargs: Any, made: Any) -> float:
    return 5.0 * int(args[0].numel()) * int(args[1].shape[-1])


def _trilinear(args: Any, kwargs: Any, made: Any) -> float:
    """Two products and a sum for each element that the three arguments span together."""
    spanned = []
    for values, added in zip(args[:3], args[3:6], strict=True):
        shape = list(values.shape)
        for dim in sorted(added):
            shape.insert(dim, 1)
        spanned.append(shape)
    return 3.0 * math.prod(int(max(sizes)) for sizes in zip(*spanned, strict=True))


def _put(args: Any, kwargs: Any, made: Any) -> float:
    """One addition an element where values are added up."""
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    return float(_largest(args[2:3])) if adds else 0.0


def _cubed(factor: float) -> _Count:
    """``factor m n min(m, n)`` for each matrix of a batch: dense linear algebra of LAPACK."""

    def count(args: Any, kwargs: Any, made: Any) -> float:
        values = max(_tensors(args), key=lambda tensor: tensor.numel())
        return float(factor * values.numel() * min(values.shape[-2:]))

    return count


_ELEMENTWISE: dict[str, _Count] = {
    "pow": _power,
    "sort": _sorted, "argsort": _sorted, "msort": _sorted, "_unique2": _sorted,
    "unique_dim": _sorted, "unique_consecutive": lambda a, k, m: float(_largest(a)),
    "topk": _best,
    "avg_pool1d": _window, "avg_pool2d": _window, "avg_pool3d": _window,
    "avg_pool2d_backward": _window, "avg_pool3d_backward": _window, "max_pool1d": _window,
    "max_pool2d_with_indices": _window, "max_pool3d_with_indices": _window,
    "_fft_c2c": _transform, "_fft_r2c": _transform, "_fft_c2r": _transform,
    "_cdist_forward": _distances, "_pdist_forward": _distances,
    "_cdist_backward": _distances_back, "_trilinear": _trilinear, "index_put": _put,
    "linalg_cholesky_ex": _cubed(1 / 3), "linalg_lu_factor_ex": _cubed(2 / 3),
    "linalg_lu": _cubed(2 / 3), "_linalg_det": _cubed(2 / 3), "_linalg_slogdet": _cubed(2 / 3),
    "linalg_inv_ex": _cubed(2.0), "_linalg_solve_ex": _cubed(8 / 3), "linalg_qr": _cubed(4.0),
    "linalg_solve_triangular": _cubed(1.0), "triangular_solve": _cubed(1.0),
    "linalg_lu_solve": _cubed(2.0), "cholesky_solve": _cubed(2.0), "geqrf": _cubed(2.0),
    "cholesky_inverse": _cubed(2.0), "_linalg_eigh": _cubed(9.0), "linalg_eig": _cubed(25.0),
    "_linalg_svd": _cubed(22.0), "linalg_lstsq": _cubed(4.0), "linalg_matrix_exp": _cubed(30.0),
    "linalg_householder_product": _cubed(2.0), "ormqr": _cubed(4.0),
    "linalg_pinv": _cubed(26.0),
}  # fmt: skip
"""Formulas of their own: sorting, windows, transforms, distances, linear algebra."""
