"""One trace at a time in a process, of which no fake tensor is left anywhere.

PyTorch's tracer patches classes and keeps modes in globals: two threads that trace at once end in
its assertions. And a model's code may keep what it computes where `PythonState` does not look: what
is alive behind a trace is found through the garbage collector, forgotten if it is in a cache of
`functools`, and refused by name anywhere else.

Which functions of Python a model's traces have executed is noted by `watch` and `executed_code`,
and by `note_constants` which tensors that are no inputs they have read.
What a model's code names reaches far: from a model of Transformers the code that reads its files,
with thousands of variables. A step depends on what ran alone, so guards watch that; and what later
traces execute, those of other shapes or modes, as soon as these are over.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from cProfile import Profile
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from placewright.capturing.containers import memory_of
from placewright.capturing.program_calls import global_hooks
from placewright.capturing.python_state import CACHE
from placewright.capturing.read_watch import plain_classes
from placewright.errors import UnsupportedError
from placewright.interpreter import inductor_cache
from placewright.numerics.collector import collector_paused

_ONE_AT_A_TIME = threading.RLock()

_YOUNG = (0, 1)
"""Generations in which survivors of a collection of the youngest one are."""


@contextmanager
def isolated_trace(model: str) -> Iterator[None]:
    """Trace alone; at the end nothing of it may be alive that the body has not let go.

    Raises `UnsupportedError`: a fake tensor is kept somewhere, or all modules have hooks; or it is
    inside a transform or a trace of the caller's.
    """
    refuse_transforms(f"model {model}", device=False)
    _refuse_global_hooks(model)
    os.environ.update(inductor_cache())
    plain_classes()
    modes: WeakSet[FakeTensorMode] = WeakSet()
    begin = FakeTensorMode.__init__

    def noted(mode: FakeTensorMode, *args: Any, **keywords: Any) -> None:
        begin(mode, *args, **keywords)
        modes.add(mode)

    with _ONE_AT_A_TIME, collector_paused(), patch.object(FakeTensorMode, "__init__", noted):
        yield
        # torch.export keeps the nodes of its last trace, with their fakes, until the next one.
        proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT.clear()
        # With the collector paused, whatever the trace has made is in the youngest generation.
        left = _fakes(modes, _young())
        if left:
            left.clear()
            _forget_cached(modes)
            gc.collect()  # cycles with objects that were there before the trace
            left = _fakes(modes, gc.get_objects())
        if left:
            raise _kept(left.pop(), model)
        tell_watchers()


def refuse_transforms(where: str, *, device: bool = True) -> None:
    """Raise where PyTorch makes something else of calls than their values, as workers do not.

    `device`: also where new tensors have no values, which a capture does not need.

    Raises `UnsupportedError`.
    """
    within, mode = "", torch._C._get_dispatch_mode
    if torch._C._functorch.peek_interpreter_stack() is not None:
        within = "torch.vmap, torch.func.grad or another transform of torch.func"
    elif torch._C._get_tracing_state() is not None:
        within = "torch.jit.trace"
    elif mode(_MODES.FAKE) is not None:
        within = "a FakeTensorMode"
    elif mode(_MODES.PROXY) is not None:
        within = "make_fx or another trace"
    elif device and torch.get_default_device().type == "meta":
        within = "torch.device('meta'), or after torch.set_default_device"
    if within:
        raise UnsupportedError(
            "workers compute values, and calls are something else here",
            where=where,
            by=f"inside {within}",
            hint="call it outside; transforms and traces take the model itself",
        )


_MODES = torch._C._TorchDispatchModeKey


def _refuse_global_hooks(model: str) -> None:
    """Raise for hooks on all modules: PyTorch calls them for those that tracing adds, too."""
    if hooks := global_hooks():
        raise UnsupportedError(
            "hooks on all modules of the process (register_module_forward_hook and the like)",
            where=f"model {model}",
            by=f"{len(hooks)} hooks",
            hint="remove them, or register hooks on the modules of this model",
        )


def _young() -> Iterator[Any]:
    """Objects that have survived a collection of the youngest generation, or come after it.

    One at a time: a list of all objects would hold itself.
    """
    gc.collect(0)
    for generation in _YOUNG:
        yield from gc.get_objects(generation)


def _fakes(modes: WeakSet[FakeTensorMode], among: Iterable[Any]) -> list[FakeTensor]:
    return [each for each in among if type(each) is FakeTensor and each.fake_mode in modes]


def _forget_cached(modes: WeakSet[FakeTensorMode]) -> None:
    """Clear every ``lru_cache`` with a fake of the trace in a result."""
    for function in [each for each in gc.get_objects() if type(each) is CACHE]:
        held = gc.get_referents(function)
        for _ in range(3):  # results are in links, in a dict, or in containers there
            held += [part for one in held for part in gc.get_referents(one) if _searched(one)]
        if any(type(each) is FakeTensor and each.fake_mode in modes for each in held):
            function.cache_clear()


def _searched(value: Any) -> bool:
    return isinstance(value, dict | tuple | list) or type(value).__module__ == "functools"


def _kept(fake: FakeTensor, model: str) -> UnsupportedError:
    holders = [each for each in gc.get_referrers(fake) if type(each).__name__ != "frame"]
    kinds = ", ".join(sorted({type(each).__qualname__ for each in holders[:5]})) or "C++"
    holders.clear()  # an error's frames must not hold what others are still filling, such as tuples
    return UnsupportedError(
        "the forward pass keeps a tensor of a trace, which is no real one, where it cannot be "
        "taken back",
        where=f"model {model}",
        by=f"shape {tuple(fake.shape)}, held by: {kinds}",
        hint="keep it in an attribute of a module or in a dict, or do not keep it; calls of the "
        "model may fail until it is removed there",
    )


class Watcher(Protocol):
    """Who watches what a model's code reads."""

    def extend(self) -> None:
        """Other code has run: watch what that reads, too."""


@dataclass(slots=True, eq=False)
class _Executed:
    """What traces of a model have executed.

    `code`: ``None`` where it is not known, and may be any.
    `constants`: what they have read beside inputs, parameters and buffers, by its storage.
    `grown`: whether watchers have not been told of the last trace.
    """

    model: weakref.ref[nn.Module]
    code: set[CodeType] | None = None
    constants: dict[int, Tensor] = field(default_factory=dict)
    traced: bool = False
    grown: bool = False
    watchers: weakref.WeakSet[Watcher] = field(default_factory=weakref.WeakSet)


_EXECUTED: dict[int, _Executed] = {}
"""By the model's `id`, as a module may have an ``__eq__`` and no hash."""


def executed_code(model: nn.Module) -> frozenset[CodeType] | None:
    """Code that ran in any trace of this model; ``None``: not known, it may be any."""
    entry = _EXECUTED.get(id(model))
    return None if entry is None or entry.code is None else frozenset(entry.code)


def note_constants(model: nn.Module, values: Iterable[Any]) -> None:
    """Note the tensors among what a trace of this model has taken in as constants."""
    plain = (x for x in values if isinstance(x, Tensor) and x.layout is torch.strided)
    found = {memory_of(x): x for x in plain if not isinstance(x, FakeTensor)}
    entry = _entry(model)
    entry.grown = entry.grown or not found.keys() <= entry.constants.keys()
    entry.constants |= found


def reads_memory_of(model: nn.Module, tensor: Tensor) -> bool:
    """Whether a trace of this model has taken it in as a constant: a teacher's weight, say."""
    entry = _EXECUTED.get(id(model))
    strided = tensor.layout is torch.strided and not tensor.is_meta
    return entry is not None and strided and memory_of(tensor) in entry.constants


def watch(model: nn.Module, watcher: Watcher) -> None:
    """Have a watcher told, as long as it lives, of code that later traces of the model execute."""
    _entry(model).watchers.add(watcher)


def tell_watchers() -> None:
    """Tell watchers what has run, where a trace is over and has put back what it changed."""
    for entry in [each for each in _EXECUTED.values() if each.grown]:
        entry.grown = False
        for watcher in list(entry.watchers):
            watcher.extend()


@contextmanager
def recorded_code(model: nn.Module) -> Iterator[None]:
    """Note what runs in a trace; where other tools leave no room for that, it may be any code."""
    code = set[CodeType]()
    with _recording(code) as recorded:
        yield
    _note(model, code if recorded else None)


if sys.version_info >= (3, 12):

    @contextmanager
    def _recording(code: set[CodeType]) -> Iterator[bool]:
        """Add code when it starts for the first time, after which nothing more is called for it."""
        monitoring, started = sys.monitoring, sys.monitoring.events.PY_START
        tool = next((k for k in _FREE_TOOLS if monitoring.get_tool(k) is None), None)
        if tool is None:
            yield False
            return

        def note(which: CodeType, _offset: int) -> Any:
            code.add(which)
            return monitoring.DISABLE

        monitoring.use_tool_id(tool, "placewright")
        try:
            monitoring.register_callback(tool, started, note)
            monitoring.set_events(tool, started)
            monitoring.restart_events()
            yield True
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, started, None)
            monitoring.free_tool_id(tool)

    _FREE_TOOLS = (3, 4)
    """Numbers that Python keeps for no particular tool."""

else:

    @contextmanager
    def _recording(code: set[CodeType]) -> Iterator[bool]:
        """Add code that CPython's profiler in C has seen.

        It rests in PyTorch's own work on each operator: nine tenths of all calls, none of them the
        model's.
        """
        if sys.getprofile() is not None:
            yield False
            return
        profile, depth = Profile(subcalls=False, builtins=False), 0
        dispatch = ProxyTorchDispatchMode.__torch_dispatch__

        def rests(mode: Any, *args: Any, **keywords: Any) -> Any:
            nonlocal depth
            depth += 1
            profile.disable()
            try:
                return dispatch(mode, *args, **keywords)
            finally:
                depth -= 1
                if depth == 0:
                    profile.enable()

        try:
            with patch.object(ProxyTorchDispatchMode, "__torch_dispatch__", rests):
                profile.enable()
                yield True
        finally:
            profile.disable()
            seen = (entry.code for entry in profile.getstats())
            code.update(each for each in seen if isinstance(each, CodeType))


def _note(model: nn.Module, code: set[CodeType] | None) -> None:
    """Add to what is known of a model; what is not known once stays so."""
    entry = _entry(model)
    known = entry.code if entry.traced else set()
    both = None if known is None or code is None else known | code
    entry.grown = entry.grown or both != entry.code
    entry.code, entry.traced = both, True


def _entry(model: nn.Module) -> _Executed:
    key = id(model)
    if key not in _EXECUTED:
        _EXECUTED[key] = _Executed(weakref.ref(model, lambda _: _EXECUTED.pop(key, None)))
    return _EXECUTED[key]
