"""Types of calls of Numba's own functions, resolved once per process.

For every ``a[i]`` and every sum, Numba asks its implementations (of lists, dicts, text, arrays and
more) one after another which of them takes these types, and builds a message for each that does
not: a quarter of what compiling takes. The answer follows from the types and the compiler's flags.

Only while our kernels are compiled: a user's own may add implementations at any time.
"""

# Numba has no annotations.
# mypy: disable-error-code="attr-defined,no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numba.core import types
from numba.core.targetconfig import ConfigStack
from numba.core.types.functions import BaseFunction

_PLAIN = (types.Number, types.Boolean, types.Literal, types.Array, types.Record, types.NoneType)
"""Of arguments whose types change no more: those of tuples, functions or lists may."""

resolve = BaseFunction.get_call_type
"""Numba's own."""


_compiling = threading.local()


@contextmanager
def remembered_call_types() -> Iterator[None]:
    """Let Numba resolve a call with arguments of plain types once, for each set of flags."""
    BaseFunction.get_call_type = _get_call_type  # type: ignore[method-assign]
    outer = getattr(_compiling, "ours", False)
    _compiling.ours = True
    try:
        yield
    finally:
        _compiling.ours = outer


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A call; function and context are kept, so that no other one gets their `id`."""

    function: Any
    context: Any
    flags: Any
    signature: Any
    implementation: Any


_resolved: dict[tuple[int, int, tuple[Any, ...]], _Resolved] = {}


def _get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    if not getattr(_compiling, "ours", False):
        return resolve(self, context, args, kws)
    if kws or type(self) is not types.Function or not all(isinstance(x, _PLAIN) for x in args):
        return resolve(self, context, args, kws)
    key, flags = (id(self), id(context), tuple(args)), ConfigStack.top_or_none()
    known = _resolved.get(key)
    if known is None or (known.flags is not flags and known.flags != flags):
        signature: Any = resolve(self, context, args, kws)
        implementation = self._impl_keys[signature.args]
        known = _resolved[key] = _Resolved(self, context, flags, signature, implementation)
    # Other flags may have put their own implementation there since.
    self._impl_keys[known.signature.args] = known.implementation
    return known.signature
