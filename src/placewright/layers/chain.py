"""A traced step as a chain of layers, and how each is split over workers.

The chain is cut where a single activation passes:

prelude      calls that depend on no parameter (masks, positions): every layer that reads one
             computes it again
layer        a heavy call (convolution, matrix product, attention, recurrent layer, embedding)
             or a block of them, and the cheap calls up to the next one
boundary     the values that the next layers read; mostly one

A layer's forward FLOPs follow from the shapes of its calls, by the formulas of
`placewright.capturing.call_flops`; its backward pass takes about twice as many.

Over the workers of a replica (tensor parallelism) a layer is split call by call:

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, cast

import torch

from placewright.capturing.call_flops import work_of
from placewright.capturing.program_calls import operation, resolve_target
from placewright.graph.graph import Instruction, Ref, TensorSpec, references
from placewright.layers.tracing import MODEL, TracedStep

RECURRENT = tuple(f"aten.{kind}.input" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Layers whose sixth argument is a dropout, the seventh whether they are trained."""

HEAVY = frozenset(
    {
        *RECURRENT,
        "aten.conv1d.default",
        "aten.conv2d.default",
        "aten.conv2d.padding",
        "aten.conv3d.default",
        "aten.conv_transpose2d.input",
        "aten.linear.default",
        "aten.addmm.default",
        "aten.mm.default",
        "aten.bmm.default",
        "aten.matmul.default",
        "aten.embedding.default",
        "aten.lstm_cell.default",
        "aten.gru_cell.default",
        "aten.scaled_dot_product_attention.default",
    }
)
"""Calls that make a layer of their own, where the chain can be cut before them."""

WIDEST = 3
"""Values at most that pass a cut inside a block that is too large for a single layer."""

LARGEST_SHARE = 0.25
"""Of the heavy calls, in one layer, before it is cut where several values pass."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Consecutive calls of a traced step.

    Attributes
    ----------
    name, kind
        The module that holds it, unique; the kind of its calls (``conv2d``, ``attention``).
    first, end
        Its calls, as a range of `TracedStep.instructions`.
    inputs, outputs
        Values that it reads from the layer before, and that the layers after it read.
    parameters
        Names in the model, each once.
    """

    name: str
    kind: str
    first: int
    end: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


def in_place(call: Instruction) -> bool:
    """Whether a call changes its first argument."""
    name = call.target.split(".")[1]
    return name.endswith("_") and not name.endswith("__")


def prelude_of(step: TracedStep) -> frozenset[int]:
    """Calls that depend on neither parameters nor random numbers, and whose values are cheap."""
    held = {*step.parameters, *step.buffers}
    dependent: set[str] = set(held)
    found = set()
    for k, call in enumerate(step.instructions):
        if in_place(call) or call.target in HEAVY or any(v in dependent for v in call.reads()):
            dependent.update(call.results)
        else:
            found.add(k)
    return frozenset(found)


def chain(step: TracedStep) -> tuple[Layer, ...]:
    """The layers of a step, in order."""
    prelude = prelude_of(step)
    whole = _changed_through_views(step)
    crossing = {k: v for k, v in _crossing(step, prelude).items() if k not in whole}
    targets = [call.target for call in step.instructions]
    heavy = [k for k, target in enumerate(targets) if target in HEAVY and k not in prelude]
    cuts = _cuts(heavy, [k for k, names in crossing.items() if len(names) == 1])
    cuts = _refined(cuts, heavy, crossing, len(step.instructions))
    bounds = [0, *cuts, len(step.instructions)]
    layers: list[Layer] = []
    names: set[str] = set()
    for first, end in pairwise(bounds):
        calls = [k for k in range(first, end) if k not in prelude]
        name = _unique(_common([step.modules[k] for k in calls if k in heavy]), names)
        layers.append(
            Layer(
                name,
                kind_of([targets[k] for k in calls]),
                first,
                end,
                crossing.get(first, ()),
                crossing.get(end, ()) if end < len(step.instructions) else (step.loss,),
                parameters_of(step, calls),
            )
        )
    return tuple(layers)


def parameters_of(step: TracedStep, calls: Iterable[int]) -> tuple[str, ...]:
    """Names of the parameters that these calls read, each once."""
    read = (v for k in calls for v in step.instructions[k].reads())
    return tuple(dict.fromkeys(step.parameters[v] for v in read if v in step.parameters))


def _crossing(step: TracedStep, prelude: frozenset[int]) -> dict[int, tuple[str, ...]]:
    """Position -> values that calls before it make and calls from it on read, prelude apart."""
    last, made = {}, {}
    for k, call in enumerate(step.instructions):
        for name in call.reads():
            last[name] = k
        for name in call.results:
            made[name] = k
    last[step.loss] = len(step.instructions)
    alive: dict[int, list[str]] = {k: [] for k in range(1, len(step.instructions))}
    for name, at in made.items():
        if at not in prelude:
            for k in range(at + 1, min(last.get(name, at), len(step.instructions) - 1) + 1):
                alive[k].append(name)
    return {k: tuple(names) for k, names in alive.items() if names}


def _changed_through_views(step: TracedStep) -> frozenset[int]:
    """Positions between a value's call and one that changes it in place while it has views.

    A layer changes a copy of what it is given, which views of it that others hold would not see.
    A value without views needs no such care: later calls read the result of the change.
    """
    made, origin, viewed, found = {}, dict[str, str](), set[str](), set[int]()
    for k, call in enumerate(step.instructions):
        made.update(dict.fromkeys(call.results, k))
        first = call.args[0] if call.args else None
        changes = in_place(call)
        if not isinstance(first, Ref) or not (changes or _is_view(call)):
            continue
        base = origin.get(first.name, first.name)
        origin.update(dict.fromkeys(call.results, base))
        if not changes:
            viewed.add(base)
        elif base in viewed:
            found.update(range(made.get(base, -1) + 1, k + 1))
    return frozenset(found)


def changed_state(step: TracedStep) -> dict[int, str]:
    """Calls that change a parameter or a buffer in place -> its name in the model."""
    names = views_of_state(step)
    return {
        k: names[value]
        for k, call in enumerate(step.instructions)
        for value in written(call)
        if value in names
    }


def written(call: Instruction) -> list[str]:
    """Values that a call writes to: its first argument in place, or ``out=``."""
    arguments = operation(call.target)._schema.arguments
    given = dict(zip((a.name for a in arguments), call.args, strict=False)) | dict(call.kwargs)
    found = (a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return [name for a in found if a in given for name in references(given[a])]


def views_of_state(step: TracedStep) -> dict[str, str]:
    """Values in the memory of a parameter or a buffer -> its name in the model."""
    found = {**step.parameters, **step.buffers}
    for call in step.instructions:
        first = call.args[0] if call.args else None
        if isinstance(first, Ref) and first.name in found and (in_place(call) or _is_view(call)):
            found.update(dict.fromkeys(call.results, found[first.name]))
    return found


def _is_view(call: Instruction) -> bool:
    """Whether a result may share its first argument's memory."""
    returned = operation(call.target)._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returned)


def _cuts(heavy: Sequence[int], allowed: Sequence[int]) -> list[int]:
    """Before a heavy call, at the nearest position that is allowed, once per heavy call."""
    cuts: list[int] = []
    for before, call in pairwise(heavy):
        between = [k for k in allowed if before < k <= call]
        if between:
            cuts.append(between[-1])
    return cuts


def _refined(
    cuts: list[int], heavy: Sequence[int], crossing: dict[int, tuple[str, ...]], count: int
) -> list[int]:
    """Cut layers that hold too many of the heavy calls where more values pass."""
    found = list(cuts)
    bounds = [0, *cuts, count]
    for first, end in pairwise(bounds):
        inside = [k for k in heavy if first <= k < end]
        if len(inside) > max(2, LARGEST_SHARE * len(heavy)):
            allowed = [
                k for k, names in crossing.items() if first < k < end and len(names) <= WIDEST
            ]
            found += _cuts(inside, allowed)
    return sorted(set(found))


def _common(modules: Sequence[str]) -> str:
    """The innermost module that holds all of them."""
    if not modules:
        return "layer"
    parts = [path.removeprefix(MODEL).split(".") for path in modules]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared) or "layer"


def _unique(name: str, names: set[str]) -> str:
    candidate, k = name or "layer", 2
    while candidate in names:
        candidate, k = f"{name}#{k}", k + 1
    names.add(candidate)
    return candidate


def kind_of(targets: Sequence[str]) -> str:
    """What a layer is, by its calls."""
    have = {target.split(".")[1] for target in targets}
    linear = sum(t.split(".")[1] in ("linear", "addmm", "mm") for t in targets)
    if "scaled_dot_product_attention" in have or ("softmax" in have and "matmul" in have):
        return "attention"
    for kind in ("lstm", "gru", "lstm_cell", "gru_cell", "conv2d", "conv1d", "embedding"):
        if kind in have:
            return kind.removesuffix("_cell")
    if linear:
        return "mlp" if linear > 1 else "linear"
    return "elementwise"


def layer_flops(step: TracedStep, layer: Layer) -> float:
    """Forward FLOPs of the calls of a layer, on the batch that was traced."""
    calls = step.instructions[layer.first : layer.end]
    return sum(call_flops(call, step.specs) for call in calls)


def call_flops(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    """Forward FLOPs of one call; 0 for what only computes per element."""
    args, kwargs, made = (
        _with_shapes(part, specs)
        for part in (call.args, dict(call.kwargs), tuple(Ref(name) for name in call.results))
    )
    return work_of(_operation(call.target), args, kwargs, made).flops


def _operation(target: str) -> torch._ops.OpOverload:
    return cast(torch._ops.OpOverload, resolve_target(target))


def _with_shapes(value: Any, specs: Mapping[str, TensorSpec]) -> Any:
    """Arguments with tensors of no memory in the places of names."""
    if isinstance(value, Ref):
        spec = specs[value.name]
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
    if isinstance(value, tuple | list):
        return tuple(_with_shapes(part, specs) for part in value)
    if isinstance(value, dict):
        return {key: _with_shapes(part, specs) for key, part in value.items()}
    return value


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
    if call.target == "placewright.packed_recurrent.default":
        return bool(args[7] > 0)
    if call.target in RECURRENT:
        return bool(args[5] > 0 and args[6])
    return _is_drawn(call.target)


@cache
def _is_drawn(target: str) -> bool:
    """Whether PyTorch says that an operation takes numbers from a generator."""
    from torch import Tag

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
    read = Counter(value for i in instructions for value in i.reads())
    once = frozenset(value for value, times in read.items() if times == 1)
    splitter = _Splitter(specs, parameters, once, degree)
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
            split = [(v, self.cuts.pop(v)) for v in i.reads() if v in self.cuts]
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
        read = [v for v in i.reads() if v in self.specs]
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


def _name(argument: Any) -> str:
    return argument.name if isinstance(argument, Ref) else ""
