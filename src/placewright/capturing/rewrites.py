"""What PyTorch (2.13) traces or draws wrongly, replaced by calls with the same result, bit for bit.

1. ``aten.native_batch_norm`` updates the running statistics, which its schema does not declare, so
   functionalization misses it. Its ``_legit`` twins call the same kernels and declare the update.
2. In-place pointwise operations on strided views keep the strides. A CPU kernel computes whole
   vectors as far as memory is contiguous and the rest element by element, and for sigmoid, tanh or
   exp the two round differently. Eager mode writes into a view with gaps (the gates of a GRU, a
   third of each row); the functional twin makes a dense tensor, whose rows are computed together.
3. Factory calls that read a tensor only for its shape read none: ``zeros_like(x)`` would otherwise
   tie itself to the device of ``x``, or move ``x`` there.
4. ``nn.TransformerEncoder`` with a padding mask packs its tokens where eager takes the fast path
   (evaluation mode, no gradients), so that padded positions of its output are zero. A trace has no
   packed tensors: it fills in the zeros.
5. ``torch.linalg.cholesky`` and its like are a call that gives an error code, and one that raises
   where that is not zero. Nothing reads what the second one gives, so the first raises itself.

1. ``aten.bernoulli_`` fills memory in an order that depends on strides, and dropout gives its mask
   the strides of its input. The functional twin, ``aten.bernoulli.p``, always makes a row-major
   tensor: the same draws at other positions (PyTorch 2.13). So masks are drawn by an operation of
   our own, ``placewright.bernoulli``, which takes the strides. It reads no tensor, so nothing has
   to be sent to it.
2. Activation checkpointing saves the RNG state in the forward pass and restores it before it
   computes the forward pass again, so that the same masks come. A graph has no generator to
   restore. While a trace records, an RNG state is a position in the graph; draws that are repeated
   from one state are found afterwards and take the result of the first draw.

`define_operation` defines operations of our own among PyTorch's, ``torch.ops.placewright``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import getitem
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import tree_map_only

from placewright.errors import UnsupportedError

OPERATIONS: Any = torch.ops.placewright
"""All that `define_operation` has defined, by name."""

_LIBRARY = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]


def define_operation(
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any] | None = None,
    gradients: tuple[Callable[..., None], Callable[..., Any]] | None = None,
    *,
    draws: bool = False,
) -> None:
    """Define an operation for every device.

    `shapes` is computed in its place while PyTorch traces; `gradients` are what its forward pass
    keeps and its backward pass, as in ``torch.library.register_autograd``; `draws`: it takes random
    numbers from a generator.
    """
    tags = (torch.Tag.nondeterministic_seeded,) if draws else ()
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    if shapes is not None:
        torch.library.register_fake(f"placewright::{name}", shapes, lib=_LIBRARY)
    if gradients is not None:
        keep, backward = gradients
        torch.library.register_autograd(
            f"placewright::{name}", backward, setup_context=keep, lib=_LIBRARY
        )


aten = torch.ops.aten


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if mean is None or variance is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if training:
        return aten._native_batch_norm_legit.default(
            x, weight, bias, mean, variance, training, momentum, eps
        )
    return aten._native_batch_norm_legit_no_training.default(
        x, weight, bias, mean, variance, momentum, eps
    )


FUNCTIONAL_BATCH_NORM = {aten.native_batch_norm.default: _native_batch_norm}
"""Decomposition table for the trace."""

_SAME_ROUNDING = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "abs_", "copy_", "fill_", "zero_", "relu_", "clamp_"}
    | {"masked_fill_", "clamp_min_", "clamp_max_", "threshold_", "sqrt_", "round_", "floor_"}
)
"""In-place operations that round equally in a vector and element by element."""


def strided_updates(recorded: fx.Graph) -> set[fx.Node]:
    """Updates of views whose rounding depends on strides, and the updates of the view before."""
    found: set[fx.Node] = set()
    for node in recorded.nodes:
        if _is_strided_update(node) and node.target._opname not in _SAME_ROUNDING:
            while isinstance(node, fx.Node) and _is_strided_update(node):
                found.add(node)
                node = node.args[0]
    return found


def checked_calls(recorded: fx.Graph) -> set[fx.Node]:
    """Calls whose error code a later call of the step raises for."""
    codes = [n.args[0] for n in recorded.nodes if n.target is aten._linalg_check_errors.default]
    makers = [code.args[0] for code in codes if code.target is getitem]
    return {n for n in makers if _CHECKS in {a.name for a in n.target._schema.arguments}}


_CHECKS = "check_errors"


def raising(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Compute one of `checked_calls` so that it raises itself."""
    target: Any = node.target
    return target(*args, **{**kwargs, _CHECKS: True})


def update_strided(node: fx.Node, args: Any, kwargs: Any) -> Tensor:
    """Compute `node` by its functional twin and a copy that keeps the strides."""
    changed: Tensor = args[0]
    twin = _functional_twin(node)
    assert twin is not None
    return changed.copy_(twin(*args, **kwargs))


def _is_strided_update(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    changed: Any = node.args[0]
    if torch.Tag.pointwise not in target.tags or not isinstance(changed, fx.Node):
        return False
    return _functional_twin(node) is not None and not is_dense(changed.meta["val"])


def _functional_twin(node: fx.Node) -> Callable[..., Tensor] | None:
    target: Any = node.target
    packet = getattr(aten, target._opname.removesuffix("_"), None)
    return getattr(packet, target._overloadname, None)


_EMPTY = (aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default)
_ZEROS = (aten.zeros_like.default, aten.new_zeros.default)
_ONES = (aten.ones_like.default, aten.new_ones.default)
_FULL = (aten.full_like.default, aten.new_full.default)


def without_source(node: fx.Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Target, arguments and keywords of `node`, without a tensor that only gives a shape."""
    made = node.meta["val"]
    unchanged = (str(node.target), node.args, dict(node.kwargs))
    if node.target in _EMPTY:
        return "aten.empty_strided.default", (tuple(made.shape), made.stride()), _options(made)
    # The plain factories make row-major tensors; strides are kept, kernels may depend on them.
    if not isinstance(made, Tensor) or not _is_row_major(made):
        return unchanged
    if node.target in _ZEROS:
        return "aten.zeros.default", (tuple(made.shape),), _options(made)
    if node.target in _ONES:
        return "aten.ones.default", (tuple(made.shape),), _options(made)
    if node.target in _FULL and not isinstance(node.args[-1], fx.Node):
        fill = node.args[1] if node.target is aten.full_like.default else node.args[2]
        return "aten.full.default", (tuple(made.shape), fill), _options(made)
    return unchanged


def _is_row_major(made: Tensor) -> bool:
    """Whether the strides equal those of a fresh tensor, dimensions of size one included."""
    stride, expected = 1, []
    for size in reversed(made.shape):
        expected.append(stride)
        stride *= max(size, 1)
    return tuple(made.stride()) == tuple(reversed(expected))


def _options(made: Tensor) -> dict[str, Any]:
    return {"dtype": made.dtype, "device": made.device}


@contextmanager
def padding_as_in_eager() -> Iterator[None]:
    """Let encoders give zeros at padded positions where eager's fast path does."""
    plain = nn.TransformerEncoder.forward

    def forward(
        encoder: nn.TransformerEncoder,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        padded = src_key_padding_mask
        if padded is None or mask is not None or not _packs(encoder, src):
            return plain(encoder, src, mask, padded, is_causal)
        output = src
        for layer in encoder.layers:
            output = layer(output, src_key_padding_mask=padded)
        kept = ~padded if padded.dtype is torch.bool else padded == 0
        # Eager packs a batch only where the padding of every sample is at its end.
        places = torch.arange(kept.shape[1], device=kept.device)
        at_the_end = (kept == (places < kept.sum(1, keepdim=True))).all()
        output = output.masked_fill((~kept & at_the_end).unsqueeze(-1), 0.0)
        return output if encoder.norm is None else encoder.norm(output)

    with patch.object(nn.TransformerEncoder, "forward", forward):
        yield


def _packs(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether eager takes the fast path of an encoder, given a padding mask."""
    first: Any = encoder.layers[0]
    attention = first.self_attn
    read = [src, attention.in_proj_weight, attention.in_proj_bias, first.norm1.weight]
    read += [attention.out_proj.weight, first.norm2.weight, first.linear1.weight]
    return (
        torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not first.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and any(value.requires_grad for value in read))
    )


def _bernoulli(size: Sequence[int], stride: Sequence[int], p: float, **options: Any) -> Tensor:
    return torch.empty_strided(size, stride, **options).bernoulli_(p)


def _bernoulli_shape(
    size: Sequence[int], stride: Sequence[int], p: float, **options: Any
) -> Tensor:
    return torch.empty_strided(size, stride, **options)


define_operation(
    "bernoulli(SymInt[] size, SymInt[] stride, float p, *, ScalarType dtype, Device device)"
    " -> Tensor",
    _bernoulli,
    _bernoulli_shape,
    draws=True,
)


def is_random(node: fx.Node) -> bool:
    """Whether the call draws random numbers: tagged so, and its dropout, if any, is not zero."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return not ("dropout_p" in names and given.get("dropout_p", 0.0) == 0.0)


def is_dropout_mask(node: fx.Node) -> bool:
    """Whether a recorded node fills a fresh, otherwise unused tensor with a draw."""
    if node.target is not aten.bernoulli_.float:
        return False
    empty: Any = node.args[0]
    return empty.target in _FRESH and len(empty.users) == 1


_FRESH = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)


def dropout_mask(empty: Tensor, p: float = 0.5) -> Tensor:
    """The draw that ``empty.bernoulli_(p)`` would make, as a new tensor."""
    draw = OPERATIONS.bernoulli.default
    made: Tensor = draw(empty.shape, empty.stride(), p, dtype=empty.dtype, device=empty.device)
    return made


@dataclass(frozen=True, slots=True)
class SavedState:
    """Stands for an RNG state: the last node that had been recorded when it was saved."""

    node: fx.Node


@dataclass(slots=True)
class StateRestores:
    """RNG state restores: the last node recorded before each, and before the state was saved."""

    events: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)

    def repeated_draws(self, graph: fx.Graph) -> dict[fx.Node, fx.Node]:
        """Draw -> the earlier draw of the same numbers.

        Raise where other numbers are drawn after a restore, or are not all drawn again.
        """
        restores: dict[fx.Node, list[fx.Node]] = {}
        for last, saved in self.events:
            restores.setdefault(last, []).append(saved)
        position, draws = 0, list[fx.Node]()
        position_after: dict[fx.Node, int] = {}
        found: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if is_random(node):
                # Within what was drawn before: the same numbers again. Beyond it: new ones.
                if position < len(draws):
                    found[node] = _checked_repeat(draws[position], node)
                else:
                    draws.append(node)
                position += 1
            position_after[node] = position
            for saved in restores.get(node, ()):
                # A restore sets the generator back: the draws from here on are those that followed
                # the save.
                position = position_after[saved]
        if position != len(draws):
            raise _other_draws(draws[position])
        return found


@contextmanager
def recorded_rng_state() -> Iterator[StateRestores]:
    """Record how a trace saves and restores the state of the global generator."""
    restores = StateRestores()
    real_get, real_set, real_seed = (getattr(torch, name) for name in _PATCHED)

    def get_state() -> Any:
        last = _last_recorded()
        return real_get() if last is None else SavedState(last)

    def set_state(state: Any) -> None:
        last = _last_recorded()
        if last is None:  # PyTorch itself, between two traces
            real_set(state)
        elif isinstance(state, SavedState):
            restores.events.append((last, state.node))
        else:
            raise _seeded()

    def seed(value: int) -> Any:
        if _last_recorded() is None:
            return real_seed(value)
        raise _seeded()

    with ExitStack() as patches:
        for name, replacement in zip(_PATCHED, (get_state, set_state, seed), strict=True):
            for holder in (torch, torch.random):
                patches.enter_context(patch.object(holder, name, replacement))
        yield restores


_PATCHED = ("get_rng_state", "set_rng_state", "manual_seed")


def _last_recorded() -> fx.Node | None:
    mode = get_proxy_mode()
    return None if mode is None else next(iter(reversed(mode.tracer.graph.nodes)))


def _checked_repeat(first: fx.Node, again: fx.Node) -> fx.Node:
    """`first`, where `again` draws the same numbers."""
    if first.target != again.target or _draw_key(first) != _draw_key(again):
        raise _other_draws(again)
    return first


def _draw_key(node: fx.Node) -> Any:
    """What a draw depends on beside the RNG state: shapes, strides, dtypes and numbers."""
    made = tree_map_only(Tensor, lambda t: (tuple(t.shape), t.stride(), t.dtype), node.meta["val"])
    given = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: str(n.meta["val"].shape))
    return made, given


def _other_draws(node: fx.Node) -> UnsupportedError:
    module = (node.meta.get("custom") or {}).get("module", "")
    return UnsupportedError(
        "the state of the random generator is restored, and then other numbers are drawn from it",
        where=f"operator {node.name!r}" + (f" of module {module!r}" if module else ""),
        by=str(node.target),
        hint="leave the generator as it is inside a step",
    )


def _seeded() -> UnsupportedError:
    return UnsupportedError(
        "the random generator is seeded inside of a step",
        where="torch.manual_seed or torch.set_rng_state",
        hint="seed it before the step, or draw the numbers outside and pass them as an input",
    )
