"""Of a trace nothing stays in the user's model, its classes, closures, globals and caches."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.isolation import isolated_trace
from placewright.capturing.model import capture
from placewright.errors import UnsupportedError

_MASKS: dict[int, Tensor] = {}


@functools.cache
def _unbounded(length: int) -> Tensor:
    return torch.ones(length, length).tril()


@functools.lru_cache(maxsize=4)
def _bounded(length: int) -> tuple[str, Tensor]:
    return "mask", torch.ones(length, length).tril()


class _Store:
    __slots__ = ("mask",)

    def __init__(self) -> None:
        self.mask: Any = None


class _Keeping(nn.Module):
    """Keeps a mask wherever `keep` says; the mask is made anew if it is no real tensor's."""

    of_class: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, keep: Callable[[Any, int], Tensor]) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(4, 4), keep
        self.store, self.names = _Store(), SimpleNamespace(masks={})
        self.nested: dict[str, list[dict[int, Tensor]]] = {"by length": [{}]}

    @functools.lru_cache  # noqa: B019 - what users write
    def method(self, length: int) -> Tensor:
        return torch.ones(length, length).tril()

    def forward(self, x: Tensor) -> Tensor:
        return self.keep(self, len(x)) @ self.layer(x)


def _in(masks: dict[int, Tensor], length: int) -> Tensor:
    if length not in masks:
        masks[length] = torch.ones(length, length).tril()
    return masks[length]


def _slot(model: _Keeping, length: int) -> Tensor:
    if model.store.mask is None:
        model.store.mask = torch.ones(length, length).tril()
    return model.store.mask


def _closure() -> Callable[[Any, int], Tensor]:
    kept: Any = None

    def mask(_: Any, length: int) -> Tensor:
        nonlocal kept
        kept = torch.ones(length, length).tril() if kept is None else kept
        return kept

    return mask


def _attribute(_: Any, length: int) -> Tensor:
    return _in(vars(_attribute).setdefault("masks", {}), length)


KEPT: dict[str, Callable[[Any, int], Tensor]] = {
    "a function's cache": lambda _, n: _unbounded(n),
    "a bounded cache of tuples": lambda _, n: _bounded(n)[1],
    "a method's cache": lambda m, n: m.method(n),
    "a global dict": lambda _, n: _in(_MASKS, n),
    "the class": lambda m, n: _in(type(m).of_class, n),
    "a slot of an object": _slot,
    "a namespace": lambda m, n: _in(m.names.masks, n),
    "a dict in a list in a dict": lambda m, n: _in(m.nested["by length"][0], n),
    "a closure": _closure(),
    "an attribute of a function": _attribute,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("where", KEPT)
def test_a_mask_that_forward_keeps_is_no_fake_afterwards(where: str, training: bool) -> None:
    """The model computes as before."""
    model, x = _Keeping(KEPT[where]), torch.randn(3, 4)
    want = torch.ones(3, 3).tril() @ model.layer(x)
    capture(model, x, training=training)
    for _ in range(2):
        assert type(model(x)) is Tensor
        assert torch.equal(model(x), want)


def test_a_hook_that_keeps_activations_has_none_of_the_trace() -> None:
    """The list is as before."""
    model, seen = nn.Sequential(nn.Linear(4, 4)), list[Tensor]()
    model[0].register_forward_hook(lambda _m, _x, y: seen.append(y))
    capture(model, torch.ones(2, 4))
    assert seen == []


def test_a_place_that_cannot_be_taken_back_is_refused() -> None:
    """A fake in an iterator's frame, for one."""

    def forever() -> Any:
        held = None
        while True:
            held = yield held

    kept = forever()
    next(kept)

    class Sending(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return kept.send(x * 2)

    with pytest.raises(UnsupportedError, match="keeps a tensor of a trace"):
        capture(Sending(), torch.ones(2, 4))


def test_threads_take_turns() -> None:
    """All of them capture what one does."""
    found: list[Any] = []

    def work() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        found.append(len(capture(model, torch.ones(2, 4), training=True).operators))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_what_torch_export_itself_keeps_of_its_last_trace_is_forgotten() -> None:
    """Its table of nodes stays full until the next trace: no fault of the model."""
    with isolated_trace("Linear"):
        torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),), strict=False)
