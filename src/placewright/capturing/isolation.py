"""One trace at a time in a process, of which no fake tensor is left anywhere.

PyTorch's tracer patches classes and keeps modes in globals: two threads that trace at once end in
its assertions. And a model's code may keep what it computes where `PythonState` does not look: what
is alive behind a trace is found through the garbage collector, forgotten if it is in a cache of
`functools`, and refused by name anywhere else.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor

from placewright.capturing.executed_code import tell_watchers
from placewright.capturing.python_state import CACHE
from placewright.errors import UnsupportedError
from placewright.interpreter import inductor_cache
from placewright.numerics.collector import collector_paused

_ONE_AT_A_TIME = threading.RLock()

_YOUNG = (0, 1)
"""Generations in which survivors of a collection of the youngest one are."""


@contextmanager
def isolated_trace(model: str) -> Iterator[None]:
    """Trace alone; at the end nothing of it may be alive that the body has not let go.

    Raises `UnsupportedError`: a fake tensor is kept somewhere.
    """
    os.environ.update(inductor_cache())
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
