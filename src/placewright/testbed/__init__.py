"""A cluster.yaml made real on one Linux machine: namespaces, shaped links, CPU quotas.

The names are loaded when they are first used: the emulator and the seats need nothing of NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.testbed.seat import NodeSeat
    from placewright.testbed.testbed import Testbed

_HOME = {
    "NodeSeat": "placewright.testbed.seat",
    "Testbed": "placewright.testbed.testbed",
}

__all__ = ["NodeSeat", "Testbed"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright.testbed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
