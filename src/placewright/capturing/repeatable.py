"""Refuse a step that is not a function of its inputs: a captured one repeats its first run.

What the code of a model draws from Python's or NumPy's random numbers, counts in an attribute or
reads from a clock is a number for a trace, which every later step would have again. So the forward
pass is traced twice, with all numbers far away that the first trace has changed (counters), and
both traces must record the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.python_state import Container, PythonState
from placewright.errors import PlacewrightError, UnsupportedError

_FAR = 100_003
"""Added to every counter in the second trace: beyond any warm-up that a model counts down."""


@contextmanager
def python_generators_kept() -> Iterator[Callable[[], list[str]]]:
    """Put the generators of Python and NumPy back at the end; yields which have been drawn from."""
    python, numpy = random.getstate(), np.random.get_state()

    def drawn() -> list[str]:
        found = ["random"] if random.getstate() != python else []
        return found + ["numpy.random"] * _differ(np.random.get_state(), numpy)

    try:
        yield drawn
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def python_draws_refused(model: str) -> Iterator[None]:
    """Raise `UnsupportedError` where the block draws from the generators of Python or NumPy.

    Also where it ends in an error of ours, which draws may be the cause of: a model whose layers
    were all dropped by chance has a loss that depends on no parameter.
    """
    cause: PlacewrightError | None = None
    with python_generators_kept() as drawn:
        try:
            yield
        except PlacewrightError as error:
            cause = error
        found = drawn()
    if found:
        raise UnsupportedError(
            f"the forward pass draws from {' and '.join(found)}, so every step of a program would "
            "have the first numbers again",
            where=f"model {model}",
            hint="draw with torch (torch.rand, dropout), whose draws are operators; or outside of "
            "the model, and give them as an input",
        ) from cause
    if cause is not None:
        raise cause


def check_repeatable(
    recorded: fx.Graph, again: Callable[[], fx.GraphModule], state: PythonState, model: str
) -> None:
    """Trace the forward pass `again`, from `state`, and compare it with what was recorded.

    Raises `UnsupportedError`: they differ.
    """
    counters, made = state.changed_numbers(), state.new_numbers()
    state.restore()
    if made:
        _check_made(recorded, again, state, model, made)
    for container, key, old, _ in counters:
        container.put(key, old + _FAR)
    error: PlacewrightError | None = None
    try:
        difference = _first_difference(recorded, again())
    except PlacewrightError as raised:
        if not counters:
            raise
        error, difference = raised, (next(iter(recorded.nodes)), raised.what)
    finally:
        state.restore()
    if difference is None:
        return
    if counters:
        try:  # whether it is they that matter
            other = _first_difference(recorded, again())
        finally:
            state.restore()
        names = [f"{box.path}.{key}".rstrip(".") for box, key, _, _ in counters[:3]]
        if other is None:
            raise _counted(model, ", ".join(names), *difference) from error
        difference = other
    node, what = difference
    raise UnsupportedError(
        "the forward pass is not a function of its inputs: called twice, it does something else",
        where=_where(model, node),
        by=what,
        hint="a clock, a generator of its own or a counter decides: draw or read it outside and "
        "give it as an input, or register a buffer and change it in place",
    )


def _check_made(
    recorded: fx.Graph,
    again: Callable[[], fx.GraphModule],
    state: PythonState,
    model: str,
    made: Sequence[tuple[Container, Any, Any]],
) -> None:
    """Refuse counters that the first trace has made, ``getattr(self, "calls", 0) + 1`` say.

    A second trace begins with them. Where it fails, they belong to something else that is made
    once, and say nothing.
    """
    for container, key, value in made:
        container.put(key, value)
    try:
        difference = _first_difference(recorded, again())
    except Exception:
        return
    finally:
        state.restore()
    if difference is None:
        return
    try:
        other = _first_difference(recorded, again())
    finally:
        state.restore()
    if other is None:
        names = [f"{box.path}.{key}".rstrip(".") for box, key, _ in made[:3]]
        raise _counted(model, ", ".join(names), *difference)


def _where(model: str, node: fx.Node) -> str:
    module = (node.meta.get("custom") or {}).get("module", "")
    return f"model {model}" + (f", module {module!r}" if module else "")


def _counted(model: str, counters: str, node: fx.Node, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the forward pass computes with numbers that it changes itself ({counters}), so every "
        "step of a program would have the first ones again",
        where=_where(model, node),
        by=what,
        hint="make them buffers (register_buffer) that are changed in place",
    )


def _first_difference(first: fx.Graph, second: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """The first call of `first` that `second`, whose calls are its beginning, does otherwise."""
    theirs = {node: k for k, node in enumerate(second.graph.nodes)}
    ours = {node: k for k, node in enumerate(first.nodes)}
    for one, other in zip(first.nodes, second.graph.nodes, strict=False):
        if other.op == "output":
            return None
        mine, its = _key(one, first.owning_module, ours), _key(other, second, theirs)
        if mine != its:
            return one, f"{one.target} {_differing(mine, its)}"
    return None


def _key(node: fx.Node, owner: Any, numbers: dict[fx.Node, int]) -> tuple[Any, ...]:
    """What a node does: its target and arguments, nodes by their position."""
    if node.op == "get_attr":
        value = getattr(owner, str(node.target), None)
        return node.op, _contents(value)
    place = lambda n: ("node", numbers[n])  # noqa: E731
    given = fx.node.map_arg((node.args, dict(node.kwargs)), place)
    return node.op, "" if node.op == "placeholder" else str(node.target), repr(given)


def _contents(value: Any) -> Any:
    """A constant's bytes; fakes have what they were made of."""
    real = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if not isinstance(real, Tensor) or real.layout is not torch.strided or real.is_meta:
        return type(value).__name__
    raw = real.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return tuple(real.shape), str(real.dtype), hash(raw.numpy().tobytes())


def _differing(mine: tuple[Any, ...], its: tuple[Any, ...]) -> str:
    if mine[0] == "get_attr" or its[0] == "get_attr":
        return "reads another constant"
    if mine[1] != its[1]:
        return f"is replaced by {its[1]}"
    return f"gets {mine[2]}, then {its[2]}"[:200]


def _differ(one: Any, other: Any) -> bool:
    return any(np.any(a != b) for a, b in zip(one, other, strict=True))
