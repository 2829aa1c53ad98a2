"""Guards notice whatever a trace reads, name it, and are silent where nothing has changed."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from placewright.capturing.guards import Guards
from placewright.capturing.model import capture
from placewright.errors import InputError

Reader: TypeAlias = Callable[[], Any]

_FACTOR = 2.0
_CONTEXT = ContextVar("scale", default=1.0)
_LOCAL = threading.local()
_VARIABLE = "PLACEWRIGHT_TEST_SCALE"


def _ACTIVATION(x: Tensor) -> Tensor:  # noqa: N802  a variable, which may hold another function
    return x


_FUNCTION = _ACTIVATION


class _Making(OrderedDict[str, Any]):
    """As Transformers' table of activations: what is read is made anew, from an argument or not."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


_TABLE = _Making(relu=nn.ReLU, one=nn.Linear)


class _Tabled(nn.Module):
    """Reads the table."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(_TABLE["relu"](x))


class _Configuration:
    def __init__(self) -> None:
        self.width, self.extra = 4, {"eps": 1e-5}


class _Reading(nn.Module):
    """Reads attributes of all kinds."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(4, 4), nn.Dropout(0.1), nn.BatchNorm1d(4)
        self.configuration, self.table = _Configuration(), torch.ones(4)
        self.rows, self.names = np.ones(4), {"a"}
        self.large, self.wide = np.ones(1 << 18), nn.Linear(4, 4096)

    def forward(self, x: Tensor) -> Tensor:
        scale = float(os.environ.get("PLACEWRIGHT_TEST_SCALE", "1")) * _CONTEXT.get()
        scale *= getattr(_LOCAL, "scale", 1.0)
        return self.norm(self.drop(_ACTIVATION(self.layer(x)))) * self.scale * _FACTOR * scale


def _replace(model: _Reading) -> None:
    model.layer.weight = nn.Parameter(torch.zeros(4, 4))


def _in_place(model: _Reading) -> None:
    with torch.no_grad():
        model.layer.weight.clamp_(-0.01, 0.01)


def _global(_: _Reading) -> None:
    globals()["_FACTOR"] = 3.0


def _of_class(_: _Reading) -> None:
    _Reading.scale = 2.0


CHANGES: dict[str, tuple[Callable[[_Reading], Any], str]] = {
    "a mode": (lambda m: m.drop.eval(), "the mode of a module"),
    "a probability": (lambda m: setattr(m.drop, "p", 0.5), "module 'drop'.p"),
    "a number of a configuration": (
        lambda m: setattr(m.configuration, "width", 8),
        "the model.configuration.width",
    ),
    "a number in its dict": (
        lambda m: m.configuration.extra.update(eps=1e-3),
        "the model.configuration.extra.eps",
    ),
    "a set": (lambda m: m.names.add("b"), "the model.names"),
    "a new attribute": (lambda m: setattr(m, "other", 1), "the model.other"),
    "a plain tensor": (lambda m: m.table.mul_(2), "a tensor of shape (4,)"),
    "a plain tensor's data": (lambda m: m.table.data.mul_(2), "a tensor of shape (4,)"),
    "an array": (lambda m: m.rows.fill(2), "the array the model.rows"),
    "a hook": (lambda m: m.layer.register_forward_hook(print), "_forward_hooks"),
    "a class": (
        lambda m: setattr(m.drop, "__class__", nn.AlphaDropout),
        "the class of a module, Dropout",
    ),
    "a module": (lambda m: setattr(m, "layer", nn.Linear(4, 4)), "the model._modules.layer"),
    "a frozen layer": (lambda m: m.layer.requires_grad_(False), "requires_grad of 'layer.weight'"),
    "a weight": (_in_place, "the values of 'layer.weight'"),
    "a weight's data": (lambda m: m.layer.weight.data.add_(1), "the values of 'layer.weight'"),
    "a replaced weight": (_replace, "the values of 'layer.weight'"),
    "loaded weights": (lambda m: m.load_state_dict(m.state_dict()), "the values of"),
    "a buffer": (lambda m: m.norm.running_mean.add_(1), "the values of 'norm.running_mean'"),
    "a new parameter": (
        lambda m: m.register_parameter("more", nn.Parameter(torch.ones(1))),
        "parameter or buffer 'more'",
    ),
    "a global variable": (_global, "_FACTOR"),
    "an attribute of the class": (_of_class, "_Reading.scale"),
    "an environment variable": (lambda _: os.environ.update({_VARIABLE: "2"}), _VARIABLE),
    "a context variable": (lambda _: _CONTEXT.set(2.0), "context variable 'scale'"),
    "a variable of the thread": (lambda _: setattr(_LOCAL, "scale", 2.0), "_LOCAL"),
    "a function": (lambda _: globals().update(_ACTIVATION=torch.tanh), "_ACTIVATION"),
    "a large array": (lambda m: m.large.fill(2), "the array the model.large"),
    "one element of an array": (lambda m: m.rows.__setitem__(0, 5.0), "the array the model.rows"),
    "one element of a weight's data": (
        lambda m: m.layer.weight.data[0, :1].fill_(9.0),
        "the values of 'layer.weight'",
    ),
    "a hook on a weight": (
        lambda m: m.layer.weight.register_hook(lambda g: g),
        "a hook on 'layer.weight'",
    ),
    "a hook behind a gradient": (
        lambda m: m.layer.weight.register_post_accumulate_grad_hook(lambda _: None),
        "a hook on 'layer.weight'",
    ),
    "the default dtype": (lambda _: torch.set_default_dtype(torch.float64), "a setting of PyTorch"),
}


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    globals().update(_FACTOR=2.0, _ACTIVATION=_FUNCTION)
    _Reading.scale = 1.0
    os.environ.pop(_VARIABLE, None)
    _CONTEXT.set(1.0)
    vars(_LOCAL).clear()
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_is_named(name: str) -> None:
    """Once; then it is what is compared with."""
    change, says = CHANGES[name]
    model = _Reading()
    guards = Guards(model, training=True)
    assert guards.unchanged()
    change(model)
    assert not guards.unchanged()
    assert says in str(guards.changes())
    guards.follow()
    assert guards.unchanged() is (name not in HOOKS)


def test_every_byte_of_a_weight_is_compared_where_that_is_asked_for() -> None:
    """A change through ``data`` outside of the sample of a large weight."""
    model = _Reading()
    guards = Guards(model, training=True)
    guards.note_bytes()
    assert guards.same_bytes()
    model.wide.weight.data[0].zero_()
    assert guards.unchanged()
    assert not guards.same_bytes()
    assert guards.changes().weights == ("wide.weight",)
    guards.take_weights()
    assert guards.same_bytes()


def test_what_stays_is_no_change() -> None:
    """Calls in evaluation, equal numbers, gradients, and modes that a step would switch anyway."""
    model = _Reading().eval()
    guards = Guards(model, training=False)
    model(torch.ones(2, 4)).sum().backward()
    assert guards.unchanged()
    model.drop.p = float("0.1")
    model.train()
    assert not str(guards.follow())
    model.layer.requires_grad_(False)
    assert not str(guards.follow()), "inference does not depend on it"
    guards.demand_as_captured("here", "place it again")


def test_a_table_that_makes_its_items_is_only_looked_at() -> None:
    """An item that cannot be made so is no error, and a new one is a change."""
    guards = Guards(_Tabled(), training=False)
    assert guards.unchanged()
    assert not str(guards.changes())
    try:
        _TABLE["other"] = nn.Identity
        assert "_TABLE" in str(guards.changes())
    finally:
        del _TABLE["other"]


def test_autocast_is_a_setting() -> None:
    """Around a call."""
    guards = Guards(nn.Linear(2, 2), training=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert guards.changes().settings
    assert guards.unchanged()


def test_a_step_that_is_another_one_is_demanded_back() -> None:
    """Until a mode is as it was; an attribute does not come back."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    guards = Guards(model, training=False)
    model[1].train()
    with pytest.raises(InputError, match="a mode"):
        guards.demand_as_captured("here", "place it again")
    model[1].eval()
    guards.demand_as_captured("here", "place it again")
    model[1].p = 0.1
    with pytest.raises(InputError, match=r"module '1'\.p"):
        guards.demand_as_captured("here", "place it again")


HOOKS = {"a hook on a weight", "a hook behind a gradient"}
"""They stay a change: capturing again refuses them."""


@given(st.lists(st.sampled_from(sorted(CHANGES.keys() - HOOKS)), max_size=4))
def test_any_series_of_changes_is_followed(names: list[str]) -> None:
    """Each change is seen, whatever came before."""
    model = _Reading()
    guards = Guards(model, training=True)
    for name in dict.fromkeys(names):
        CHANGES[name][0](model)
        if name not in ("a mode", "the default dtype"):
            assert not guards.unchanged()
        guards.follow()
        assert guards.unchanged()
    globals().update(_FACTOR=2.0, _ACTIVATION=_FUNCTION)
    _Reading.scale = 1.0
    os.environ.pop(_VARIABLE, None)
    _CONTEXT.set(1.0)
    vars(_LOCAL).clear()
    torch.set_default_dtype(torch.float32)


class _OfClasses(type):
    factor = 1.0


class _Classed(metaclass=_OfClasses):
    """Has an attribute of its class's class."""


class _Worker:
    """Has a method."""

    def factor(self) -> float:
        return 1.0


def _setting() -> tuple[Reader, Callable[[], object]]:
    held = {"factor": 1.0}
    view = MappingProxyType(held)
    return lambda: view["factor"], lambda: held.update(factor=2.0)


def _of_metaclass() -> tuple[Reader, Callable[[], object]]:
    return lambda: _Classed.factor, lambda: setattr(_OfClasses, "factor", 2.0)


def _method() -> tuple[Reader, Callable[[], object]]:
    worker = _Worker()
    return lambda: worker.factor(), lambda: setattr(_Worker, "factor", lambda _: 2.0)


def _in_a_tuple() -> tuple[Reader, Callable[[], object]]:
    rows = (np.ones(3), bytearray(3))
    return lambda: rows[0][0] + rows[1][0], lambda: rows[0].fill(2.0)


def _of_bytes() -> tuple[Reader, Callable[[], object]]:
    rows = (np.ones(3), bytearray(3))
    return lambda: rows[0][0] + rows[1][0], lambda: rows[1].__setitem__(0, 1)


def _in_a_closure() -> tuple[Reader, Callable[[], object]]:
    def chosen() -> float:
        return 1.0

    def choose() -> None:
        nonlocal chosen
        chosen = lambda: 2.0  # noqa: E731

    return lambda: chosen(), choose


def _cached() -> tuple[Reader, Callable[[], object]]:
    held = {"factor": 1.0}

    @functools.lru_cache
    def read() -> float:
        return held["factor"]

    return lambda: read(), lambda: (held.update(factor=2.0), read.cache_clear())


def _imported() -> tuple[Reader, Callable[[], object]]:
    outer, inner = (ModuleType(name) for name in ("settings_of_a_test", "inner"))
    inner.factor, outer.inner = 1.0, inner  # type: ignore[attr-defined]
    sys.modules["settings_of_a_test"] = outer

    def read() -> Any:
        import settings_of_a_test  # type: ignore[import-not-found]

        return settings_of_a_test.inner.factor

    return read, lambda: setattr(inner, "factor", 2.0)


def _by_name() -> tuple[Reader, Callable[[], object]]:
    return lambda: globals()["_FACTOR"] / 2, lambda: globals().update(_FACTOR=4.0)


def _by_text() -> tuple[Reader, Callable[[], object]]:
    named = ModuleType("settings_by_text")
    named.factor = 1.0  # type: ignore[attr-defined]
    sys.modules["settings_by_text"] = named

    def read() -> Any:
        return getattr(sys.modules["settings_by_text"], "factor")  # noqa: B009

    return read, lambda: setattr(named, "factor", 2.0)


def _of_a_function() -> tuple[Reader, Callable[[], object]]:
    def kept() -> None:
        """Not called."""

    kept.factor = 1.0  # type: ignore[attr-defined]
    return lambda: kept.factor, lambda: setattr(kept, "factor", 2.0)  # type: ignore[attr-defined]


READS = (_setting, _of_metaclass, _method, _in_a_tuple, _of_bytes, _in_a_closure, _cached)
READS += (_imported, _by_name, _by_text, _of_a_function)


@pytest.mark.parametrize("make", READS)
def test_what_a_captured_step_has_read_is_watched_wherever_it_is(
    make: Callable[[], tuple[Reader, Callable[[], object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what ran in the trace is looked into."""
    monkeypatch.setattr(_OfClasses, "factor", 1.0)
    monkeypatch.setattr(_Worker, "factor", _Worker.factor)
    read, change = make()
    model = _Scaled(read)
    capture(model, torch.ones(2, 4))
    guards = Guards(model, training=False)
    assert guards.unchanged()
    change()
    assert read() == 2.0
    assert not guards.unchanged()
    assert guards.changes().attributes
    guards.follow()
    assert guards.unchanged()


class _Scaled(nn.Module):
    """Computes with what it reads."""

    def __init__(self, read: Reader) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(4, 4), read

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.read()


def test_an_array_that_a_trace_has_changed_is_put_back() -> None:
    """As tensors and containers are."""
    counts = np.zeros(3)

    def read() -> float:
        counts[:] += 1
        return 1.0

    capture(_Scaled(read), torch.ones(2, 4))
    assert not counts.any()
