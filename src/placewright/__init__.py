"""Placewright decides where deep learning runs.

The public names stand in ``__init__.pyi``, where type checkers read them. Python reads the same
list, and loads each name when it is first used, so that ``import placewright`` is light.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \2$", _STUB, re.M)}
"""The module of every public name."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    from placewright.errors import MissingDependencyError
    from placewright.numerics.collector import collector_paused

    with collector_paused():
        try:
            found = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            raise MissingDependencyError.of(error, f"placewright.{name}") or error from None
    return globals().setdefault(name, found)  # looked for here once


def __dir__() -> list[str]:
    return __all__
