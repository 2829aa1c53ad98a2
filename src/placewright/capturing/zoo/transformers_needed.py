"""The optional package transformers, or a clear word about how to get it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from placewright.errors import MissingDependencyError


def transformers_needed(purpose: str) -> ModuleType:
    """The package, imported.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    try:
        return import_module("transformers")
    except ImportError as error:
        raise MissingDependencyError("transformers", extra="torch", purpose=purpose) from error
