"""How a layer is split over the workers of a replica (tensor parallelism), call by call.

    column   whole input, a part of the output features (channels, neurons, heads) on each worker
    row      an input that is split by features: each worker has a part of a sum, all-reduced
    keep     works on split values as it does on whole ones (activations, pooling, attention heads)
    whole    needs whole values: split ones are gathered before it

A column call followed by ``keep`` calls and a row call is Megatron's pattern (arXiv:1909.08053):
one all-reduce in the forward pass, one in the backward pass. Whatever else comes after a column
call costs an all-gather.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.chain import reads

Way = Literal["column", "row", "keep", "whole"]

LINEAR, ADDMM, EMBEDDING = "aten.linear.default", "aten.addmm.default", "aten.embedding.default"
CONVOLUTIONS = ("aten.conv2d.default", "aten.conv2d.padding")

POINTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *("relu.default", "relu_.default", "gelu.default", "tanh.default", "silu.default"),
        *("silu_.default", "sigmoid.default", "leaky_relu.default", "elu.default", "erf.default"),
        *("hardswish.default", "contiguous.default", "clone.default", "pow.Tensor_Scalar"),
        *("mul.Scalar", "add.Scalar", "div.Scalar", "to.dtype", "dropout.default"),
    )
)
POOLS = frozenset(
    f"aten.{name}.default" for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")
)
"""Each works on the last two dimensions as a whole."""

BINARY = frozenset({"aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.sub.Tensor"})
RESHAPES = ("aten.view.default", "aten.reshape.default")
ATTENTION = "aten.scaled_dot_product_attention.default"


@dataclass(frozen=True, slots=True)
class Cut:
    """Along which dimension a value is split, and the sizes of the workers' parts."""

    dim: int
    sizes: tuple[int, ...]

    def scaled(self, before: int, after: int) -> Cut | None:
        """The same parts where the dimension has `after` entries; ``None`` if they are no whole."""
        if any(size * after % before for size in self.sizes):
            return None
        return Cut(self.dim, tuple(size * after // before for size in self.sizes))


@dataclass(frozen=True, slots=True)
class SplitCall:
    """One call of a split layer.

    Attributes
    ----------
    way
        See the module.
    weight, bias
        Value names of the parameters that are split; `Split.parameters` has how.
    gathers
        Values that are gathered before the call, and how they were split.
    result
        How its result is split, ``None`` for whole.
    """

    way: Way
    weight: str = ""
    bias: str = ""
    gathers: tuple[tuple[str, Cut], ...] = ()
    result: Cut | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A layer split over `degree` workers.

    Attributes
    ----------
    calls
        By call.
    parameters
        Value of a parameter -> how it is split.
    ends
        Split outputs of the layer, which are gathered.
    draws
        Whether a call draws random numbers for a part of a value.
    refusal
        Why the layer cannot be split so; empty if it can.
    """

    degree: int
    calls: tuple[SplitCall, ...]
    parameters: Mapping[str, Cut]
    ends: Mapping[str, Cut]
    draws: bool = False
    refusal: str = ""


def draws(call: Instruction) -> bool:
    """Whether a call draws random numbers; dropout only in training, with a rate above zero."""
    args = call.args
    if call.target == "aten.dropout.default":
        return bool(args[1] > 0 and args[2])
    if call.target == ATTENTION:
        return bool(args[4] if len(args) > 4 else call.kwargs.get("dropout_p", 0.0))
    rate = {"aten.lstm.input": 5, "aten.gru.input": 5}.get(call.target)
    if rate is not None:
        return bool(args[rate] > 0 and args[6])
    return _is_drawn(call.target)


@cache
def _is_drawn(target: str) -> bool:
    """Whether PyTorch says that an operation takes numbers from a generator."""
    from torch import Tag

    from placewright.capturing.program_calls import operation

    return Tag.nondeterministic_seeded in operation(target).tags


def parts(size: int, degree: int) -> tuple[int, ...]:
    """The sizes of `degree` parts, the first ones larger by one."""
    return tuple(size // degree + (k < size % degree) for k in range(degree))


def split_layer(
    instructions: Sequence[Instruction],
    specs: Mapping[str, TensorSpec],
    parameters: frozenset[str],
    outputs: Sequence[str],
    degree: int,
) -> Split:
    """Split a layer.

    `parameters`: values of parameters that nothing outside the layer uses.
    """
    splitter = _Splitter(specs, parameters, _used_once(instructions), degree)
    calls = [splitter.call(i) for i in instructions]
    ends = {v: splitter.cuts[v] for v in outputs if v in splitter.cuts}
    refusal = splitter.refusal
    if not refusal and not splitter.parameters:
        refusal = "none of its weights can be split"
    drawn = any(c.way == "keep" and draws(i) for c, i in zip(calls, instructions, strict=True))
    return Split(degree, tuple(calls), splitter.parameters, ends, drawn, refusal)


class _Splitter:
    """Walks the calls; `cuts` has every value that is split."""

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        parameters: frozenset[str],
        once: frozenset[str],
        degree: int,
    ) -> None:
        self.specs, self.free, self.degree = specs, parameters & once, degree
        self.cuts: dict[str, Cut] = {}
        self.parameters: dict[str, Cut] = {}
        self.refusal = ""

    def call(self, i: Instruction) -> SplitCall:
        made = self._weighted(i) or self._kept(i)
        if made is None:
            split = [(v, self.cuts.pop(v)) for v in reads(i) if v in self.cuts]
            made = SplitCall("whole", gathers=tuple(split))
        if made.result is not None:
            self.cuts.update(dict.fromkeys(i.results, made.result))
        return made

    def _weighted(self, i: Instruction) -> SplitCall | None:
        if i.target == LINEAR:
            x, weight, bias = (*map(_name, i.args), "")[:3]
            return self._product(x, weight, bias, len(self.specs[x].shape) - 1, (0, 1))
        if i.target == ADDMM and not i.kwargs:
            bias, x, weight = map(_name, i.args[:3])
            return self._product(x, weight, bias, 1, (1, 0))
        if i.target in CONVOLUTIONS and (len(i.args) < 7 or i.args[6] == 1):
            x, weight, bias = (*map(_name, i.args[:3]), "")[:3]
            return self._product(x, weight, bias, 1, (0, 1))
        if i.target == EMBEDDING and _name(i.args[0]) in self.free:
            weight = _name(i.args[0])
            if self._wide(weight, 1):
                sizes = self._parts(weight, 1)
                self.parameters[weight] = Cut(1, sizes)
                dim = len(self.specs[i.results[0]].shape) - 1
                return SplitCall("column", weight, result=Cut(dim, sizes))
        return None

    def _product(
        self, x: str, weight: str, bias: str, dim: int, dims: tuple[int, int]
    ) -> SplitCall | None:
        """A product; ``dims``: of output features and of inputs in its weight."""
        if weight not in self.free:
            return None
        if x in self.cuts and self.cuts[x].dim == dim:
            self.parameters[weight] = Cut(dims[1], self.cuts[x].sizes)
            return SplitCall("row", weight, bias)
        if not self._wide(weight, dims[0]) or (bias and bias not in self.free):
            return None
        gathers = ((x, self.cuts.pop(x)),) if x in self.cuts else ()
        sizes = self._parts(weight, dims[0])
        self.parameters[weight] = Cut(dims[0], sizes)
        if bias:
            self.parameters[bias] = Cut(0, sizes)
        return SplitCall("column", weight, bias, gathers, Cut(dim, sizes))

    def _parts(self, weight: str, dim: int) -> tuple[int, ...]:
        return parts(self.specs[weight].shape[dim], self.degree)

    def _wide(self, weight: str, dim: int) -> bool:
        """Whether every worker gets something."""
        return self.specs[weight].shape[dim] >= self.degree

    def _kept(self, i: Instruction) -> SplitCall | None:
        read = [v for v in reads(i) if v in self.specs]
        split = [v for v in read if v in self.cuts]
        if not split:
            return None
        cut, shape = self.cuts[split[0]], self.specs[split[0]].shape
        dim = cut.dim
        if i.target in POINTWISE or (i.target in POOLS and dim < len(shape) - 2):
            return SplitCall("keep", result=cut)
        if i.target in BINARY and len(split) == len(read):
            alike = all(self.cuts[v] == cut and self.specs[v].shape == shape for v in read)
            return SplitCall("keep", result=cut) if alike else None
        if i.target == "aten.transpose.int":
            a, b = (int(d) % len(shape) for d in i.args[1:3])
            return SplitCall("keep", result=Cut({a: b, b: a}.get(dim, dim), cut.sizes))
        if i.target == "aten.flatten.using_ints":
            start = int(i.args[1]) % len(shape) if len(i.args) > 1 else 0
            return self._reshaped(i, shape, cut) if dim == start else None
        if i.target in RESHAPES:
            return self._reshaped(i, shape, cut)
        if i.target == ATTENTION:
            return self._attention(i)
        return None

    def _reshaped(self, i: Instruction, shape: tuple[int, ...], cut: Cut) -> SplitCall | None:
        """Dimensions after the split one are merged into it, or it is divided into several."""
        made, dim = self.specs[i.results[0]].shape, cut.dim
        alike = made[:dim] == shape[:dim] and len(made) > dim
        if not alike or math.prod(made[dim:]) != math.prod(shape[dim:]):
            return None
        scaled = cut.scaled(shape[dim], made[dim])
        if scaled is None:
            self.refusal = self.refusal or (
                f"{made[dim]} heads cannot be divided by {self.degree} workers"
            )
            return None
        return SplitCall("keep", result=scaled)

    def _attention(self, i: Instruction) -> SplitCall | None:
        query, key, value = map(_name, i.args[:3])
        cuts = [self.cuts.get(v) for v in (query, key, value)]
        alike = cuts[0] is not None and cuts[0].dim == 1 and cuts == [cuts[0]] * 3
        mask = i.args[3] if len(i.args) > 3 else i.kwargs.get("attn_mask")
        if isinstance(mask, Ref):
            size = self.specs[mask.name].shape
            alike = alike and (len(size) < 3 or size[-3] == 1)
        return SplitCall("keep", result=cuts[0]) if alike else None


def _used_once(instructions: Sequence[Instruction]) -> frozenset[str]:
    count: dict[str, int] = {}
    for i in instructions:
        for value in reads(i):
            count[value] = count.get(value, 0) + 1
    return frozenset(value for value, times in count.items() if times == 1)


def _name(argument: Any) -> str:
    return argument.name if isinstance(argument, Ref) else ""
