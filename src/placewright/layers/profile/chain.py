"""A traced step as a chain of layers, cut where a single activation passes.

prelude      calls that depend on no parameter (masks, positions): every layer that reads one
             computes it again
layer        a heavy call (convolution, matrix product, attention, recurrent layer, embedding)
             or a block of them, and the cheap calls up to the next one
boundary     the values that the next layers read; mostly one

A layer's forward FLOPs follow from the shapes of its calls, by the formulas of
`placewright.capturing.call_flops`; its backward pass takes about twice as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch

from placewright.capturing.call_flops import work_of
from placewright.capturing.program_calls import operation, resolve_target
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.tracing import MODEL, TracedStep

HEAVY = frozenset(
    {
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
        "aten.lstm.input",
        "aten.gru.input",
        "aten.rnn_tanh.input",
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


def references(argument: Any) -> Iterator[str]:
    """Names of the values in an argument."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from references(part)
    elif isinstance(argument, dict):
        yield from references(tuple(argument.values()))


def reads(call: Instruction) -> list[str]:
    """Values that a call reads."""
    return list(dict.fromkeys(references((call.args, dict(call.kwargs)))))


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
        if in_place(call) or call.target in HEAVY or any(v in dependent for v in reads(call)):
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
    read = (v for k in calls for v in reads(step.instructions[k]))
    return tuple(dict.fromkeys(step.parameters[v] for v in read if v in step.parameters))


def _crossing(step: TracedStep, prelude: frozenset[int]) -> dict[int, tuple[str, ...]]:
    """Position -> values that calls before it make and calls from it on read, prelude apart."""
    last, made = {}, {}
    for k, call in enumerate(step.instructions):
        for name in reads(call):
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
