"""A cluster.yaml emulated on one Linux machine: namespaces, shaped links, CPU quotas.

Names are loaded when they are first used: the emulator and the node handles need no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.testbed.record import NodeHandle
    from placewright.testbed.testbed import Testbed

_HOME = {
    "NodeHandle": "placewright.testbed.record",
    "Testbed": "placewright.testbed.testbed",
}

__all__ = ["NodeHandle", "Testbed"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright.testbed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
