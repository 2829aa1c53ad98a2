"""Placewright decides where deep learning runs.

Public names are loaded when they are first used, so that ``import placewright`` is light.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from placewright._version import __version__

if TYPE_CHECKING:
    from placewright.capture.model import capture
    from placewright.cluster.cluster import Cluster, Device, Link, Node
    from placewright.errors import InfeasibleError, InputError, PlacewrightError
    from placewright.graph.graph import Graph
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import OperatorProblem
    from placewright.operators.run import run
    from placewright.place import place
    from placewright.profile.build import profile
    from placewright.result import Measurement, Result, Status
    from placewright.solve import compare, solve

_HOME = {
    "Cluster": "placewright.cluster.cluster",
    "Device": "placewright.cluster.cluster",
    "Graph": "placewright.graph.graph",
    "InfeasibleError": "placewright.errors",
    "InputError": "placewright.errors",
    "Link": "placewright.cluster.cluster",
    "Measurement": "placewright.result",
    "Node": "placewright.cluster.cluster",
    "OperatorPlan": "placewright.operators.plan",
    "OperatorProblem": "placewright.operators.problem",
    "PlacewrightError": "placewright.errors",
    "Result": "placewright.result",
    "Status": "placewright.result",
    "capture": "placewright.capture.model",
    "compare": "placewright.solve",
    "place": "placewright.place",
    "profile": "placewright.profile.build",
    "run": "placewright.operators.run",
    "solve": "placewright.solve",
}

__all__ = [
    "Cluster",
    "Device",
    "Graph",
    "InfeasibleError",
    "InputError",
    "Link",
    "Measurement",
    "Node",
    "OperatorPlan",
    "OperatorProblem",
    "PlacewrightError",
    "Result",
    "Status",
    "__version__",
    "capture",
    "compare",
    "place",
    "profile",
    "run",
    "solve",
]


class _House(ModuleType):
    """Keeps the verbs that share their name with a file or folder.

    Python binds ``placewright.solve`` to the module as soon as anything imports it, and the
    function of that name would be gone.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _House


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
