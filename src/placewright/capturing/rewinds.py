"""Random numbers that are drawn a second time.

Activation checkpointing notes the state of the random generator in the forward pass and sets it
back before it computes the forward again, so that the same dropout masks come. A graph has no
generator to set back. While a trace records, the generator's state is a position in the graph;
what is drawn twice from one place in the sequence is found afterwards and drawn once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import tree_map_only

from placewright.capturing.draws import is_draw
from placewright.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for a state of the generator: what had been recorded when it was noted."""

    node: fx.Node


@dataclass(slots=True)
class Rewinds:
    """When a trace set the generator back, and to where.

    Attributes
    ----------
    events
        The last node recorded before it was set back, the last one before the state was noted.
    """

    events: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)

    def repeats(self, graph: fx.Graph) -> dict[fx.Node, fx.Node]:
        """Draw -> the earlier draw of the same numbers.

        Raises
        ------
        UnsupportedError
            Other numbers are drawn from there, or the step ends at an earlier place.
        """
        back: dict[fx.Node, list[fx.Node]] = {}
        for last, noted in self.events:
            back.setdefault(last, []).append(noted)
        position, drawn = 0, list[fx.Node]()
        after: dict[fx.Node, int] = {}
        found: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if is_draw(node):
                if position < len(drawn):
                    found[node] = _same(drawn[position], node)
                else:
                    drawn.append(node)
                position += 1
            after[node] = position
            for noted in back.get(node, ()):
                position = after[noted]
        if position != len(drawn):
            raise _refused(drawn[position])
        return found


@contextmanager
def followed_generator() -> Iterator[Rewinds]:
    """Note while a trace records how the global generator is used."""
    rewinds = Rewinds()
    real_noted, real_set_back, real_seed = (getattr(torch, name) for name in _FOLLOWED)

    def noted() -> Any:
        last = _last_recorded()
        return real_noted() if last is None else Place(last)

    def set_back(state: Any) -> None:
        last = _last_recorded()
        if last is None:  # PyTorch's own business between two traces
            real_set_back(state)
        elif isinstance(state, Place):
            rewinds.events.append((last, state.node))
        else:
            raise _seeded()

    def seeded(seed: int) -> Any:
        if _last_recorded() is None:
            return real_seed(seed)
        raise _seeded()

    with ExitStack() as patches:
        for name, instead in zip(_FOLLOWED, (noted, set_back, seeded), strict=True):
            for holder in (torch, torch.random):
                patches.enter_context(patch.object(holder, name, instead))
        yield rewinds


_FOLLOWED = ("get_rng_state", "set_rng_state", "manual_seed")


def _last_recorded() -> fx.Node | None:
    mode = get_proxy_mode()
    return None if mode is None else next(iter(reversed(mode.tracer.graph.nodes)))


def _same(first: fx.Node, again: fx.Node) -> fx.Node:
    alike = first.target == again.target and _shape(first) == _shape(again)
    if not alike or _numbers(first) != _numbers(again):
        raise _refused(again)
    return first


def _shape(node: fx.Node) -> Any:
    made = node.meta["val"]
    return tree_map_only(Tensor, lambda t: (tuple(t.shape), t.stride(), t.dtype), made)


def _numbers(node: fx.Node) -> list[Any]:
    given = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: str(n.meta["val"].shape))
    return [given]


def _refused(node: fx.Node) -> UnsupportedError:
    module = (node.meta.get("custom") or {}).get("module", "")
    return UnsupportedError(
        "the random generator is set back, and then other numbers are drawn from there",
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
