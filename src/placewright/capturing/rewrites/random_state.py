"""Random numbers: dropout masks with the strides of eager mode, and draws that are repeated.

1. ``aten.bernoulli_`` fills memory in an order that depends on strides, and dropout gives its mask
   the strides of its input. The functional twin, ``aten.bernoulli.p``, always makes a row-major
   tensor: the same draws at other positions (PyTorch 2.13). So masks are drawn by an operation of
   our own, ``placewright.bernoulli``, which takes the strides. It reads no tensor, so nothing has
   to be sent to it.
2. Activation checkpointing saves the RNG state in the forward pass and restores it before it
   computes the forward pass again, so that the same masks come. A graph has no generator to
   restore. While a trace records, an RNG state is a position in the graph; draws that are repeated
   from one state are found afterwards and take the result of the first draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import tree_map_only

from placewright.errors import UnsupportedError

aten = torch.ops.aten

_LIBRARY = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "bernoulli(SymInt[] size, SymInt[] stride, float p, *, ScalarType dtype, Device device)"
    " -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _bernoulli(size: Sequence[int], stride: Sequence[int], p: float, **options: Any) -> Tensor:
    return torch.empty_strided(size, stride, **options).bernoulli_(p)


def _bernoulli_shape(
    size: Sequence[int], stride: Sequence[int], p: float, **options: Any
) -> Tensor:
    return torch.empty_strided(size, stride, **options)


_LIBRARY.impl("bernoulli", _bernoulli, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("placewright::bernoulli", _bernoulli_shape, lib=_LIBRARY)


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
    draw = torch.ops.placewright.bernoulli.default
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
