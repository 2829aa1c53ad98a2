"""FLOPs of operators of ONNX and OpenVINO by their kind and the shapes of their tensors.

As everywhere in the package a multiplication and an addition are two operations, and products
(matrix products, convolutions, attention, recurrent layers) are counted apart from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

Shape = tuple[int, ...]


def _words(text: str) -> list[str]:
    return text.split()


MOVING = frozenset(
    _words(
        "cast castlike concat constantofshape depthtospace dropout expand eyelike flatten "
        "gather gatherelements gathernd identity nonzero onehot optional pad reshape "
        "reversesequence scatter scatterelements scatternd shape size slice spacetodepth "
        "split splittosequence squeeze tile transpose trilu unsqueeze where range convert "
        "convertlike broadcast shapeof variadicsplit stridedslice select scatterupdate "
        "scatterelementsupdate scatterndupdate reverse roll fakeconvert readvalue assign "
    )
)
"""Operators that move or select elements and compute nothing."""

PER_ELEMENT = {
    **dict.fromkeys(
        _words(
            "abs add and ceil clip div equal floor greater greaterorequal greaterequal "
            "hardsigmoid hardswish hswish leakyrelu less lessorequal lessequal max maximum "
            "min minimum mean mod floormod mul multiply divide subtract neg negative not "
            "notequal logicaland logicalor logicalnot logicalxor or prelu reciprocal relu "
            "round sign sqrt square squareddifference sub sum thresholdedrelu xor bitshift "
            "isnan isinf clamp quantizelinear dequantizelinear floordiv "
        ),
        1.0,
    ),
    **dict.fromkeys(
        _words(
            "acos acosh asin asinh atan atanh celu cos cosh elu erf exp gelu log logistic "
            "mish pow power selu sigmoid silu sin sinh softplus softsign swish tan tanh "
            "hsigmoid fakequantize "
        ),
        4.0,
    ),
    **dict.fromkeys(["softmax", "logsoftmax", "hardmax"], 5.0),
    **dict.fromkeys(
        _words(
            "batchnormalization batchnorminference instancenormalization layernormalization "
            "mvn groupnormalization lpnormalization meanvariancenormalization normalizel2 lrn "
            "simplifiedlayernormalization skiplayernormalization rmsnormalization rms "
        ),
        7.0,
    ),
    **dict.fromkeys(["resize", "upsample", "interpolate", "cumsum", "gridsample"], 4.0),
}
"""Operations per element of the output."""

REDUCING = (
    "reduce",
    "argmax",
    "argmin",
    "globalaveragepool",
    "globalmaxpool",
    "topk",
    "globallppool",
)
"""What operators whose cost is one operation per element of the input begin with."""

POOLING = ("averagepool", "maxpool", "avgpool", "lppool")

PRODUCTS: dict[str, Callable[[Sequence[Shape], Shape], float]] = {
    "conv": lambda given, made: 2.0 * prod(made) * prod(given[1][1:]),
    "convinteger": lambda given, made: 2.0 * prod(made) * prod(given[1][1:]),
    "convolution": lambda given, made: 2.0 * prod(made) * prod(given[1][1:]),
    "groupconvolution": lambda given, made: 2.0 * prod(made) * prod(given[1][2:]),
    "convtranspose": lambda given, made: 2.0 * prod(given[0]) * prod(given[1][1:]),
    "convolutionbackpropdata": lambda given, made: 2.0 * prod(given[0]) * prod(given[1][1:]),
    "scaleddotproductattention": lambda given, made: _attention(given),
    "lstm": lambda given, made: _recurrent(given),
    "gru": lambda given, made: _recurrent(given),
    "rnn": lambda given, made: _recurrent(given),
}


def flops(
    kind: str,
    given: Sequence[Shape],
    made: Sequence[Shape],
    *,
    inner: int = 0,
    window: int = 1,
) -> tuple[float, float, bool]:
    """Operations of products, operations per element, and whether there is no formula.

    Parameters
    ----------
    kind
        The operator's type, in lower case.
    given, made
        Shapes of its inputs and outputs.
    inner
        Length of the dimension over which a matrix product adds.
    window
        Elements of a pooling window.
    """
    out = made[0] if made else ()
    if inner:
        return 2.0 * prod(out) * inner, 0.0, False
    if kind in PRODUCTS:
        try:
            return PRODUCTS[kind](given, out), 0.0, False
        except (IndexError, ValueError):  # fewer inputs or dimensions than the formula's
            return 0.0, 0.0, True
    if kind in MOVING:
        return 0.0, 0.0, False
    if kind in PER_ELEMENT:
        return 0.0, PER_ELEMENT[kind] * prod(out), False
    if kind.startswith(POOLING):
        return 0.0, float(prod(out) * window), False
    if kind.startswith(REDUCING):
        return 0.0, float(prod(given[0])) if given else 0.0, False
    return 0.0, 0.0, True


def _attention(given: Sequence[Shape]) -> float:
    query, key, value = given[:3]
    return 2.0 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent(given: Sequence[Shape]) -> float:
    """Inputs of ONNX: X (steps, batch, width), W and R (directions, gates x hidden, ...)."""
    steps, batch, _ = given[0]
    return 2.0 * steps * batch * (prod(given[1]) + prod(given[2]))
