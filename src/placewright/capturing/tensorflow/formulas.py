"""FLOPs of TensorFlow operators by their kind, shapes and attributes.

A multiplication and an addition are two operations. Products are counted apart from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

Shape = Sequence[int]

_MOVING = (
    "Identity IdentityN StopGradient PreventGradient NoOp Reshape Squeeze ExpandDims Shape "
    "ShapeN Size Rank Cast Transpose Pack Unpack Concat ConcatV2 Split SplitV Slice "
    "StridedSlice StridedSliceGrad Tile Gather GatherV2 GatherNd ResourceGather ScatterNd Pad "
    "PadV2 MirrorPad ReverseV2 Reverse Fill Range OneHot BroadcastTo BroadcastGradientArgs "
    "ConcatOffset ReadVariableOp AssignVariableOp Assign ZerosLike OnesLike Select SelectV2 "
    "Where Bitcast VariableShape InvertPermutation ResourceScatterUpdate DepthToSpace "
    "SpaceToDepth EnsureShape Assert Print PrintV2 CheckNumerics DynamicStitch "
    "PlaceholderWithDefault Snapshot"
)
MOVING = frozenset(_MOVING.split())
"""Operators that move or select elements and compute nothing."""

CONVOLUTIONS = {
    "Conv1D": 1,
    "Conv2D": 1,
    "Conv3D": 1,
    "Conv2DBackpropInput": 1,
    "Conv2DBackpropFilter": 1,
    "Conv3DBackpropInputV2": 1,
    "Conv3DBackpropFilterV2": 1,
    "DepthwiseConv2dNative": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
}
"""Convolutions; 2 where each channel has filters of its own."""

PER_ELEMENT = {
    **dict.fromkeys(["Softmax", "LogSoftmax", "SoftmaxCrossEntropyWithLogits"], 5.0),
    "SparseSoftmaxCrossEntropyWithLogits": 5.0,
    **dict.fromkeys(["Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Erf", "Pow"], 4.0),
    **dict.fromkeys(["Sin", "Cos", "Softplus", "Elu"], 4.0),
    **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"], 7.0),
    **dict.fromkeys(["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"], 11.0),
    **dict.fromkeys(["ResourceApplyAdam", "ApplyAdam"], 12.0),
    **dict.fromkeys(["ResourceApplyMomentum", "ResourceApplyKerasMomentum"], 4.0),
    **dict.fromkeys(["ResourceApplyGradientDescent", "ApplyGradientDescent"], 2.0),
}
"""Operations per element, where they are not 1."""


def flops(
    op: str, given: Sequence[Shape], made: Sequence[Shape], attributes: Mapping[str, Any]
) -> tuple[float, float]:
    """Operations of products, and operations per element.

    `given`, `made`: shapes of inputs and outputs.
    """
    if op in ("MatMul", "SparseMatMul") and len(given) > 1:
        inner = given[0][0 if attributes.get("transpose_a") else -1]
        return 2.0 * prod(made[0]) * inner, 0.0
    if op.startswith("BatchMatMul") and len(given) > 1:
        return 2.0 * prod(made[0]) * given[0][-2 if attributes.get("adj_x") else -1], 0.0
    if op == "Einsum":
        return _einsum(str(attributes.get("equation", "")), given), 0.0
    if op in CONVOLUTIONS:
        return _convolution(op, given, made), 0.0
    if op in MOVING:
        return 0.0, 0.0
    pool = op.endswith(("Pool", "PoolGrad", "PoolV2"))
    window = prod(attributes.get("ksize") or (1,)) if pool else 1
    elements = max((prod(shape) for shape in (*given, *made)), default=0)
    if pool:
        elements = prod(made[0]) * window
    return 0.0, PER_ELEMENT.get(op, 1.0) * elements


def _einsum(equation: str, given: Sequence[Shape]) -> float:
    """Two operations for every combination of indices; none without a product."""
    terms = equation.partition("->")[0].split(",")
    if len(terms) < 2:
        return 0.0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, given, strict=True):
        front = len(shape) - len(term.replace("...", ""))
        letters = term.replace("...", "".join(chr(0x100 + k) for k in range(front)))
        sizes |= dict(zip(letters, shape, strict=True))
    return 2.0 * prod(sizes.values())


def _convolution(op: str, given: Sequence[Shape], made: Sequence[Shape]) -> float:
    """Each element of the output adds over a window and, unless depthwise, over channels.

    Gradients do the products of the forward pass again: the output is then the last input, the
    filter the second input or what is made.
    """
    forward = "Backprop" not in op
    output = made[0] if forward else given[2]
    weights = made[0] if op.endswith(("Filter", "FilterV2")) else given[1]
    inner = prod(weights[:-2]) * (1 if CONVOLUTIONS[op] == 2 else weights[-2])
    return 2.0 * prod(output) * inner
