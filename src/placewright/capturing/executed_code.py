"""Which functions of Python the traces of a model have executed.

What a model's code names reaches far: from a model of Transformers the code that reads its files,
with thousands of variables. A step depends on what ran alone, so guards watch that; and what later
traces execute, those of other shapes or modes, as soon as these are over.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from cProfile import Profile
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol
from unittest.mock import patch

from torch import nn
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode


class Watcher(Protocol):
    """Who watches what a model's code reads."""

    def extend(self) -> None:
        """Other code has run: watch what that reads, too."""


@dataclass(slots=True, eq=False)
class _Executed:
    """What traces of a model have executed.

    `code`: ``None`` where it is not known, and may be any.
    `grown`: whether watchers have not been told of the last trace.
    """

    model: weakref.ref[nn.Module]
    code: set[CodeType] | None = None
    traced: bool = False
    grown: bool = False
    watchers: weakref.WeakSet[Watcher] = field(default_factory=weakref.WeakSet)


_EXECUTED: dict[int, _Executed] = {}
"""By the model's `id`, as a module may have an ``__eq__`` and no hash."""


def executed_code(model: nn.Module) -> frozenset[CodeType] | None:
    """Code that ran in any trace of this model; ``None``: not known, it may be any."""
    entry = _EXECUTED.get(id(model))
    return None if entry is None or entry.code is None else frozenset(entry.code)


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
