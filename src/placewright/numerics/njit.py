"""Numba decorators: nopython mode, cached on disk.

Five kinds, by what they may do. Hot functions that hand arrays to each other should be `lean`
or `inlined`: counting references to every array at every call takes most of the time otherwise.
Numba's cache looks at a function's own file only: after an edit in a file whose functions others
call, remove ``__pycache__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import types

F = TypeVar("F", bound=Callable[..., Any])


def _compile(**options: Any) -> Callable[[F], F]:
    """`njit`, which would compile a function again for every number written in a call to it."""

    def compile_plain(function: F) -> F:
        dispatcher: Any = njit(**options)(function)
        _forget_what_is_gone(dispatcher)
        template, plain = dispatcher.get_call_template, cast(Any, types).unliteral
        dispatcher.get_call_template = lambda args, kws: template(
            tuple(plain(x) for x in args), {name: plain(x) for name, x in kws.items()}
        )
        return dispatcher  # type: ignore[no-any-return]

    return compile_plain


def _forget_what_is_gone(dispatcher: Any) -> None:
    """A cache that names types which an edit has renamed or moved counts as empty.

    Numba unpickles a cache's index before it compares the file's time, and would raise.
    """
    file = getattr(dispatcher._cache, "_cache_file", None)
    if file is None:
        return
    load_index = file._load_index

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    file._load_index = load


def compiled(function: F) -> F:
    """For functions that make arrays."""
    result: F = _compile(cache=True)(function)
    return result


def released(function: F) -> F:
    """As `compiled`, and other threads run meanwhile."""
    result: F = _compile(cache=True, nogil=True)(function)
    return result


def lean(function: F) -> F:
    """For functions that make no array; no references are counted."""
    result: F = _compile(cache=True, _nrt=False)(function)
    return result


def inner(function: F) -> F:
    """As `lean`, to be called by compiled functions only: half as much to compile."""
    result: F = _compile(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return result


def inlined(function: F) -> F:
    """For small parts of a `lean` function; they become part of each caller."""
    result: F = _compile(inline="always")(function)
    return result


index: Any = np.uint32
"""The same number as an unsigned index, which needs no test for wrapping around."""
