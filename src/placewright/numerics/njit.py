"""Numba decorators: nopython mode, cached on disk.

Five decorators, named after what they change of `numba.njit`. Hot functions that hand arrays to
each other should be `njit_no_refcount` or `njit_inline`: otherwise counting references to every
array at every call takes most of the time.
Numba's cache looks at a function's own file only. Here it looks at what that file imports, too: a
function that calls another, or reads a constant of another file, holds a copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import types

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parents[1]
_IMPORTED = re.compile(rb"^from placewright\.([\w.]+) import", re.MULTILINE)


def _compile(**options: Any) -> Callable[[F], F]:
    """`njit`, which would compile a function again for every number written in a call to it."""

    def compile_plain(function: F) -> F:
        dispatcher: Any = njit(**options)(function)
        _ignore_stale_cache(dispatcher, function.__code__.co_filename)
        template, plain = dispatcher.get_call_template, cast(Any, types).unliteral
        dispatcher.get_call_template = lambda args, kws: template(
            tuple(plain(x) for x in args), {name: plain(x) for name, x in kws.items()}
        )
        return dispatcher  # type: ignore[no-any-return]

    return compile_plain


def _ignore_stale_cache(dispatcher: Any, source: str) -> None:
    """Treat a cache as empty after an edit of its source or of what that imports.

    Also one that names types which an edit has renamed or moved: Numba unpickles a cache's index
    before it compares the source, and would raise.
    """
    file = getattr(dispatcher._cache, "_cache_file", None)
    if file is None:
        return
    file._source_stamp = (file._source_stamp, _digest(Path(source)))
    load_index = file._load_index

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    file._load_index = load


@cache
def _digest(source: Path) -> bytes:
    """SHA-256 of a file with compiled functions, of all that it imports, and so on from those."""
    found, left = {source: source.read_bytes()}, [source]
    while left:
        for name in _IMPORTED.findall(found[left.pop()]):
            path = _PACKAGE / (name.decode().replace(".", "/") + ".py")
            if path in found or not path.is_file():
                continue
            found[path] = path.read_bytes()
            # Others may hand over constants, but no compiled code.
            if b"njit" in found[path]:
                left.append(path)
    return sha256(b"".join(found[path] for path in sorted(found))).digest()


def njit_cached(function: F) -> F:
    """Compile a function that may allocate arrays; the machine code is cached on disk."""
    result: F = _compile(cache=True)(function)
    return result


def njit_nogil(function: F) -> F:
    """As `njit_cached`; releases the GIL, so that other threads run meanwhile."""
    result: F = _compile(cache=True, nogil=True)(function)
    return result


def njit_no_refcount(function: F) -> F:
    """Compile a function that allocates no array: without Numba's runtime and reference counts."""
    result: F = _compile(cache=True, _nrt=False)(function)
    return result


def njit_internal(function: F) -> F:
    """As `njit_no_refcount`, for functions that only compiled functions call.

    Without wrappers for Python and C there is half as much to compile.
    """
    result: F = _compile(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return result


def njit_inline(function: F) -> F:
    """Inline a small function into each compiled caller, on Numba's level."""
    result: F = _compile(inline="always")(function)
    return result


index: Any = np.uint32
"""The same number as an unsigned index, which needs no test for wrapping around."""
