"""Of a trace nothing stays in the user's model, its classes, closures, globals and caches."""

from __future__ import annotations

import cProfile
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from placewright.capturing import isolation as registry
from placewright.capturing.guards import Guards
from placewright.capturing.isolation import executed_code, isolated_trace
from placewright.capturing.model import capture
from placewright.capturing.source import ModelSource, default_loss
from placewright.errors import UnsupportedError
from placewright.layers.tracing import trace_step

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


_READ, _BACKWARD, _HOOKED, _MAPPED, _UNREAD = 2.0, 3.0, 4.0, 5.0, 6.0
_WIDE, _TRAINED, _TABLE = 2.0, 3.0, torch.ones(4)


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar of its own, as Hugging Face's hub has one."""


_SHOWN = True


class _Scaled(torch.autograd.Function):
    """Reads a global variable in its backward pass only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * _BACKWARD


class _Model(nn.Module):
    """Code that runs in forward, in backward, in a hook, within `vmap`; and code that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(lambda _module, _args, made: made * _HOOKED)

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(self._inner, x, use_reentrant=False)
        made: Tensor = _Scaled.apply(inner)  # type: ignore[no-untyped-call]
        for _ in range(0) if _SHOWN else _Bar(range(0)):
            pass
        return torch.as_tensor(torch.vmap(lambda row: row * _MAPPED)(made))

    def _inner(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x)) * _READ

    def save(self) -> float:
        """Not called."""
        return _UNREAD


@pytest.fixture(autouse=True)
def _globals_kept() -> Iterator[None]:
    before, table = dict(globals()), _TABLE.clone()
    yield
    globals().update(before)
    _TABLE.copy_(table)


def _captured() -> Guards:
    model = _Model()
    capture(model, torch.ones(2, 4), training=True)
    return Guards(model, training=True)


@pytest.mark.parametrize("name", ["_READ", "_BACKWARD", "_HOOKED", "_MAPPED"])
def test_what_ran_is_watched(name: str) -> None:
    """In a checkpoint, a backward pass of its own, a hook and a function that is mapped."""
    guards = _captured()
    assert guards.unchanged()
    globals()[name] = 7.0
    assert name in str(guards.changes())


def test_what_did_not_run_is_not_watched() -> None:
    """But by guards of a model that nobody has traced, as any of it may run."""
    guards, untraced = _captured(), Guards(_Model(), training=True)
    globals()["_UNREAD"] = 7.0
    assert guards.unchanged()
    assert "_UNREAD" in str(untraced.changes())


class _Branches(nn.Module):
    """Other code for many rows, and in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        made = self._trained(made) if self.training else made
        return self._wide(made) if x.shape[0] > 2 else made

    def _wide(self, x: Tensor) -> Tensor:
        return x * _WIDE + _TABLE

    def _trained(self, x: Tensor) -> Tensor:
        return x * _TRAINED


def _set_wide() -> None:
    globals()["_WIDE"] = 7.0


def _fill_table() -> None:
    _TABLE.mul_(2.0)


@pytest.mark.parametrize("change", [_set_wide, _fill_table])
def test_what_a_later_trace_executes_is_watched_from_then_on(change: Callable[[], None]) -> None:
    """Of another shape, for guards that are there; without forgetting what they had not seen."""
    model = _Branches()
    capture(model, torch.ones(2, 4))
    guards, other = Guards(model, training=False), Guards(model, training=False)
    with torch.no_grad():
        model.layer.weight.add_(1.0)
    guards.follow()
    capture(model, torch.ones(3, 4))
    assert guards.unchanged()
    assert other.changes().weights == ("layer.weight",)
    change()
    assert guards.changes().attributes
    assert other.changes().attributes


def test_layers_note_what_their_own_trace_executes() -> None:
    """Also where the model has been captured for calls before, in another mode."""
    model, batch = _Branches(), torch.ones(2, 4)
    capture(model, batch)
    trace_step(ModelSource(model, (batch,), default_loss, name="branches"), 2)
    guards = Guards(model, training=True)
    globals()["_TRAINED"] = 7.0
    assert "_TRAINED" in str(guards.changes())


def test_progress_bars_are_no_change() -> None:
    """Around the calls, with the thread that looks after them, also of a class in reached code."""
    for guards in (_captured(), Guards(_Model(), training=True)):
        for bar in (tqdm, _Bar):
            for _ in bar(range(2), mininterval=1e-6, disable=False):
                time.sleep(1e-3)
            assert guards.unchanged(), str(guards.changes())


def test_everything_may_have_run_beside_another_profiler() -> None:
    """Which goes on; and what is not known stays unknown."""
    model, profile = _Model(), cProfile.Profile()
    profile.enable()
    if sys.version_info >= (3, 12):
        _use_all_tools()
    try:
        capture(model, torch.ones(2, 4))
    finally:
        profile.disable()
        if sys.version_info >= (3, 12):
            _free_all_tools()
    assert executed_code(model) is None
    assert any("_inner" in str(entry.code) for entry in profile.getstats())
    capture(model, torch.ones(2, 4))
    assert executed_code(model) is None
    guards = Guards(model, training=False)
    globals()["_UNREAD"] = 7.0
    assert "_UNREAD" in str(guards.changes())


if sys.version_info >= (3, 12):

    def _use_all_tools() -> None:
        for tool in registry._FREE_TOOLS:
            sys.monitoring.use_tool_id(tool, "a debugger")

    def _free_all_tools() -> None:
        for tool in registry._FREE_TOOLS:
            sys.monitoring.free_tool_id(tool)


def test_a_model_that_is_gone_is_forgotten() -> None:
    """So another object at the same address is another model."""
    model = _Model()
    capture(model, torch.ones(2, 4))
    key = id(model)
    assert key in registry._EXECUTED
    del model
    gc.collect()
    assert key not in registry._EXECUTED
