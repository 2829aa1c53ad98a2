"""The one registry of FLOP formulas: every capture counts its operators by these numbers.

In matrix products a multiply-add counts 2, and products (matrix products, convolutions, attention,
recurrent layers) are counted apart from the rest.

Everything else is counted per element: an addition, a comparison or a division counts 1 per
element, a transcendental function 10 (about the length of its polynomial, as in Cephes and SLEEF),
a draw of a random number 10. What only moves, picks or writes elements counts 0: its cost is its
bytes. Counts are of the algorithm, not of a kernel, and good to a factor of two; on every device
that is known these operators are bound by memory, and the count is there to say so where one is
not.

Operations are called as ATen calls them. `ALSO_CALLED` has what ONNX, OpenVINO and TensorFlow call
them, so that a model counts the same whichever file it comes in. How the calls of PyTorch are
counted by their arguments is in `placewright.capturing.call_flops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

Shape = Sequence[int]


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


TRANSCENDENTAL = 10.0
"""FLOPs of one exponential, logarithm, sine, error function or draw."""

_MOVING = """
_to_copy _unsafe_index _unsafe_view alias as_strided as_strided_copy as_strided_scatter arange
block_diag cat channel_shuffle clone col2im constant_pad_nd contiguous copy diag_embed diagonal
diagonal_backward diagonal_copy diagonal_scatter embedding embedding_renorm empty empty_like
empty_permuted empty_strided expand expand_copy eye fill flip full full_like gather im2col index
index_copy index_fill index_put index_select lift_fresh_copy linspace logspace masked_scatter
masked_select meshgrid narrow_copy new_empty new_empty_strided new_full new_ones new_zeros nonzero
nonzero_static one_hot ones ones_like pad permute permute_copy pixel_shuffle pixel_unshuffle put
reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
reflection_pad3d reflection_pad3d_backward repeat repeat_interleave replication_pad1d
replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
replication_pad3d_backward resize reshape roll scalar_tensor scatter select select_backward
select_copy select_scatter set slice slice_backward slice_copy slice_scatter split split_copy
split_with_sizes split_with_sizes_copy squeeze_copy stack sym_numel sym_size t_copy take
transpose_copy tril tril_indices triu triu_indices unbind_copy unfold_copy unfold_backward
unsafe_split unsafe_split_with_sizes unsqueeze_copy upsample_nearest1d upsample_nearest2d
upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy zero zeros
zeros_like _local_scalar_dense _assert_async _assert_scalar _assert_tensor_metadata
_convert_weight_to_int4pack _nested_view_from_buffer max_unpool2d max_unpool3d broadcast_in_dim
collapse_view convert_element_type device_put _jagged_to_padded_dense_forward
_padded_dense_to_jagged_forward _pack_padded_sequence _unsafe_masked_index masked_scatter_backward
lu_unpack complex _conj_copy _neg_view_copy _reshape_alias_copy _reshape_copy alias_copy detach
detach_copy lift resize_as range _lazy_clone _chunk_cat _stack fill_diagonal _to_dense
to_padded_tensor packed_padded packed_padded_backward checked _functional_assert_async
_functional_assert_scalar
"""
MOVES = frozenset(_MOVING.split())
"""Move, select or write elements and compute nothing; views do not even move them."""

_CURVES = """
acos acosh asin asinh atan atan2 atanh bernoulli celu cos cosh digamma elu erf erfc erfinv exp
exp2 expm1 exponential gelu gelu_backward geometric glu glu_backward igamma igammac lgamma log
log10 log1p log2 log_normal log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit
mish mish_backward multinomial mvlgamma native_dropout normal normal_functional poisson polygamma
pow rand rand_like randint randint_like randn randn_like randperm rrelu_with_noise selu sigmoid
silu silu_backward sin sinc sinh softplus softplus_backward special_i0 tan tanh uniform xlogy
polar random cauchy binomial hann_window hamming_window blackman_window bartlett_window
kaiser_window _fused_dropout _philox_normal _philox_uniform _standard_gamma _sample_dirichlet
binary_cross_entropy_with_logits
"""
CURVES = frozenset(_CURVES.split())
"""Take a transcendental function, or draw, an element."""

PER_ELEMENT = {
    # reductions and scans
    "sum": 1.0, "mean": 1.0, "amax": 1.0, "amin": 1.0, "max": 1.0, "min": 1.0, "aminmax": 2.0,
    "prod": 1.0, "any": 1.0, "all": 1.0, "argmax": 1.0, "argmin": 1.0, "var": 3.0, "std": 3.0,
    "var_mean": 3.0, "std_mean": 3.0, "norm": 2.0, "linalg_vector_norm": 2.0, "nansum": 1.0,
    "count_nonzero": 1.0, "logsumexp": 13.0, "cumsum": 1.0, "cumprod": 1.0, "cummax": 1.0,
    "cummin": 1.0, "logcumsumexp": 22.0, "histc": 3.0, "bincount": 1.0, "dist": 2.0,
    "median": 4.0, "nanmedian": 4.0, "mode": 4.0, "kthvalue": 4.0, "_is_all_true": 1.0,
    "_is_any_true": 1.0, "equal": 1.0, "bucketize": 8.0, "searchsorted": 8.0, "isin": 8.0,
    "trace": 1.0, "diff": 1.0, "renorm": 3.0, "_aminmax": 2.0, "histogram": 8.0,
    "native_norm": 2.0, "_logcumsumexp": 22.0, "_cummax_helper": 1.0, "_cummin_helper": 1.0,
    # normalisation: mean, variance, scaling; backward: two more reductions and the scaling
    "native_layer_norm": 8.0, "native_layer_norm_backward": 14.0, "native_group_norm": 8.0,
    "native_group_norm_backward": 14.0, "_fused_rms_norm": 5.0, "_fused_rms_norm_backward": 11.0,
    "native_batch_norm": 8.0, "_native_batch_norm_legit": 8.0,
    "_native_batch_norm_legit_functional": 8.0, "_native_batch_norm_legit_no_training": 4.0,
    "counted_batch_norm": 8.0,
    "_batch_norm_with_update": 8.0, "_batch_norm_with_update_functional": 8.0,
    "_batch_norm_no_update": 4.0, "batch_norm_backward": 14.0, "native_batch_norm_backward": 14.0,
    "cudnn_batch_norm": 8.0, "cudnn_batch_norm_backward": 14.0, "_weight_norm_interface": 4.0,
    "_weight_norm_interface_backward": 8.0, "batch_norm_stats": 4.0, "batch_norm_elemt": 4.0,
    "batch_norm_backward_reduce": 6.0, "batch_norm_backward_elemt": 8.0,
    "batch_norm_update_stats": 4.0, "batch_norm_gather_stats": 4.0,
    "batch_norm_gather_stats_with_counts": 4.0,
    # softmax: maximum, difference, exponential, sum, quotient
    "_softmax": 14.0, "_safe_softmax": 15.0, "_log_softmax": 14.0, "_masked_softmax": 15.0,
    "_softmax_backward_data": 4.0, "_log_softmax_backward_data": 14.0, "_fused_softmax": 14.0,
    # losses
    "nll_loss_forward": 1.0, "nll_loss_backward": 1.0, "nll_loss2d_forward": 1.0,
    "nll_loss2d_backward": 1.0, "mse_loss": 3.0, "mse_loss_backward": 3.0, "smooth_l1_loss": 5.0,
    "smooth_l1_loss_backward": 5.0, "huber_loss": 5.0, "huber_loss_backward": 5.0,
    "binary_cross_entropy": 25.0, "binary_cross_entropy_backward": 6.0, "soft_margin_loss": 22.0,
    "soft_margin_loss_backward": 14.0, "multi_margin_loss": 3.0, "multilabel_margin_loss_forward":
    3.0, "_ctc_loss": 60.0, "_ctc_loss_backward": 60.0, "ctc_loss": 60.0,
    "ctc_loss_backward": 120.0,
    # gradients that are added up where indices meet, and updates of parameters
    "embedding_dense_backward": 1.0, "_embedding_bag": 1.0, "_embedding_bag_forward_only": 1.0,
    "_embedding_bag_backward": 1.0, "index_add": 1.0, "index_reduce": 1.0, "scatter_add": 1.0,
    "scatter_reduce": 1.0, "_unsafe_index_put": 1.0, "segment_reduce": 1.0,
    "_unsafe_masked_index_put_accumulate": 1.0,
    "_segment_reduce_backward": 1.0, "_masked_softmax_backward": 4.0, "_masked_scale": 2.0,
    "_thnn_fused_lstm_cell": 13.0, "_thnn_fused_lstm_cell_backward_impl": 13.0,
    "_thnn_fused_gru_cell": 13.0, "_thnn_fused_gru_cell_backward": 13.0,
    # other work per element of the largest argument
    "max_pool2d_with_indices_backward": 1.0, "max_pool3d_with_indices_backward": 1.0,
    "_adaptive_avg_pool2d": 1.0, "_adaptive_avg_pool3d": 1.0, "adaptive_avg_pool1d": 1.0,
    "_adaptive_avg_pool2d_backward": 1.0, "_adaptive_avg_pool3d_backward": 1.0,
    "adaptive_max_pool2d": 1.0, "adaptive_max_pool3d": 1.0, "adaptive_max_pool2d_backward": 1.0,
    "adaptive_max_pool3d_backward": 1.0, "affine_grid_generator": 6.0, "cross": 3.0,
    "linalg_cross": 3.0, "native_dropout_backward": 2.0, "fake_quantize_per_tensor_affine": 5.0,
    "upsample_nearest1d_backward": 1.0, "upsample_nearest2d_backward": 1.0,
    "upsample_nearest3d_backward": 1.0, "_upsample_nearest_exact2d_backward": 1.0,
    "_foreach_norm": 2.0, "masked_fill": 1.0, "hardtanh": 2.0,
    "hardtanh_backward": 2.0, "_prelu_kernel": 2.0, "_prelu_kernel_backward": 3.0, "relu": 1.0,
    "quantize_per_tensor": 4.0, "dequantize": 2.0, "addr": 3.0, "outer": 1.0,
    "addcmul": 3.0, "addcdiv": 3.0, "lerp": 3.0, "clamp": 2.0, "floor_divide": 1.0,
}  # fmt: skip
"""FLOPs for each element of the largest tensor that is read or made."""

_ELSEWHERE_MOVING = """
assert assign assignvariableop bitcast broadcast broadcastgradientargs broadcastto cast castlike
checknumerics concat concatoffset concatv2 constantofshape convert convertlike depthtospace dropout
dynamicstitch ensureshape expanddims eyelike fakeconvert flatten gatherelements gathernd gatherv2
identity identityn invertpermutation mirrorpad noop onehot oneslike optional pack padv2
placeholderwithdefault preventgradient print printv2 rank readvalue readvariableop
resourcegather resourcescatterupdate reverse reversesequence reversev2 scatterelements
scatterelementsupdate scatternd scatterndupdate scatterupdate shape shapen shapeof size snapshot
spacetodepth splitv splittosequence squeeze stopgradient stridedslice stridedslicegrad
stringconcat stringjoin stringsplit tile transpose trilu unpack unsqueeze variableshape
variadicsplit zeroslike
"""
_ELSEWHERE_SIMPLE = """
abs add addn addv2 and assignadd assignaddvariableop assignsub assignsubvariableop biasadd
biasaddgrad bitshift ceil clip clipbyvalue div divide divnonan equal floor floordiv floormod greater
greaterequal greaterorequal hardsigmoid hardswish hsigmoid hswish inv isfinite isinf isnan l2loss
leakyrelu less lessequal lessorequal logicaland logicalnot logicalor logicalxor maximum minimum mod
mul multiply neg negative not notequal or prelu realdiv reciprocal relu6 resourcescatteradd rint
round rsqrt scatteradd select selectv2 sign softsign sqrt square squareddifference sub subtract
thresholdedrelu truncatediv unsortedsegmentsum where xor
"""
ELSEWHERE = {
    **dict.fromkeys(_ELSEWHERE_MOVING.split(), 0.0),
    **dict.fromkeys(_ELSEWHERE_SIMPLE.split(), 1.0),
    "fusedbatchnormgrad": PER_ELEMENT["native_batch_norm_backward"],
    # a loss and its gradient in one
    "softmaxcrossentropywithlogits": 2 * PER_ELEMENT["_log_softmax"],
    "sparsesoftmaxcrossentropywithlogits": 2 * PER_ELEMENT["_log_softmax"],
    # updates of parameters
    "resourceapplyadam": 12.0, "applyadam": 12.0, "resourceapplymomentum": 4.0,
    "resourceapplykerasmomentum": 4.0, "resourceapplygradientdescent": 2.0,
    "applygradientdescent": 2.0,
}  # fmt: skip
"""FLOPs for each element of the largest tensor, of what ATen has no name for or tags itself."""

_ALSO_CALLED = {
    "_softmax": "softmax hardmax",
    "_log_softmax": "logsoftmax",
    "_native_batch_norm_legit_no_training": "batchnormalization batchnorminference",
    "native_batch_norm": "fusedbatchnorm",
    "native_layer_norm": "instancenormalization layernormalization skiplayernormalization mvn "
    "groupnormalization meanvariancenormalization",
    "_fused_rms_norm": "simplifiedlayernormalization rmsnormalization rms",
    "std": "lpnormalization normalizel2",
    "logsumexp": "reducelogsumexp",
    "norm": "reducel2 reducesumsquare globallppool",
    "sum": "globalaveragepool globalmaxpool",
    "quantize_per_tensor": "quantizelinear",
    "dequantize": "dequantizelinear",
    "fake_quantize_per_tensor_affine": "fakequantize",
    "exp": "logistic swish randomnormal randomnormallike randomuniform randomuniformlike "
    "randomstandardnormal lrn",
    "pow": "power",
}
ALSO_CALLED = {other: name for name, others in _ALSO_CALLED.items() for other in others.split()}
"""What ONNX, OpenVINO and TensorFlow call operations (in lower case) -> what ATen calls them."""

TAPS = {
    "upsample_linear1d": 2, "upsample_bilinear2d": 4, "_upsample_bilinear2d_aa": 4,
    "upsample_trilinear3d": 8, "upsample_bicubic2d": 16, "_upsample_bicubic2d_aa": 16,
    "grid_sampler_2d": 4, "grid_sampler_3d": 8,
}  # fmt: skip
"""Inputs of each interpolated element: a product and a sum for each, and its weight."""

_INTERPOLATIONS = ("resize", "upsample", "interpolate", "gridsample")
_POOLS = ("averagepool", "maxpool", "avgpool", "lppool")


def per_element(name: str) -> float | None:
    """FLOPs of an operation for each element of the largest tensor that it reads or makes.

    `name`: as ATen calls it. ``None``: there is no such number.
    """
    if name in MOVES:
        return 0.0
    if name in CURVES or name.removesuffix("_backward") in CURVES:
        return TRANSCENDENTAL
    return PER_ELEMENT.get(name)


def work_of_kind(
    kind: str,
    given: Sequence[Shape],
    made: Sequence[Shape],
    *,
    product: Callable[[], float] | None = None,
    window: int = 1,
) -> Work:
    """FLOPs of an operator of a graph file: of ONNX, OpenVINO or TensorFlow.

    Parameters
    ----------
    kind
        As the format calls it.
    given, made
        Shapes of its inputs and outputs.
    product
        Its FLOPs, where it is a product.
    window
        Elements under a pooling window.
    """
    if product is not None:
        try:
            return Work(float(product()))
        except (IndexError, ValueError):  # fewer inputs or dimensions than the formula's
            return Work(uncounted=True)
    name = kind.lower()
    if name.startswith(_POOLS) and not name.startswith("maxpoolgrad"):
        windows = given[-1] if name.endswith("grad") else made[0]
        return Work(0.0, float(window * prod(windows)))
    count = _of_file(name)
    if count is None:
        return Work(uncounted=True)
    return Work(0.0, count * max((prod(shape) for shape in (*given, *made)), default=0))


def _of_file(name: str) -> float | None:
    """FLOPs for each element of the largest tensor, of an operator of a graph file."""
    if name.startswith(_INTERPOLATIONS):
        return 0.0 if "nearest" in name else 3.0 * TAPS["upsample_bilinear2d"]
    plain = name.removesuffix("v3").removesuffix("v2")
    for known in (name, plain, plain.removesuffix("grad")):
        count = ELSEWHERE.get(known, per_element(ALSO_CALLED.get(known, known)))
        if count is not None:
            return count
    return 1.0 if name.startswith(("reduce", "topk", "maxpoolgrad")) else None


def attention(
    query: Shape, key: Shape, value: Shape, *, by_width: int = 1, by_values: int = 1
) -> float:
    """FLOPs of attention; heads of queries may share keys.

    `by_width` products of the scores' size by the keys' width, `by_values` by the values': one of
    each forward.
    """
    scores = prod((*query[:-1], key[-2]))
    return 2.0 * scores * int(by_width * key[-1] + by_values * value[-1])


def recurrent(steps: Shape, weights: int) -> float:
    """FLOPs of a recurrent layer over a sequence: each step multiplies by every weight once."""
    return 2.0 * prod(int(n) for n in steps[:-1]) * weights


def einsum(equation: str, given: Sequence[Shape]) -> float:
    """Two operations for every combination of indices; none without a product."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) < 2:
        return 0.0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, given, strict=True):
        front = len(shape) - len(term.replace("...", ""))
        letters = term.replace("...", "".join(chr(0x100 + k) for k in range(front)))
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return 2.0 * prod(sizes.values())
