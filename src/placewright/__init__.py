"""Placewright decides where deep learning runs.

Public names are loaded when they are first used, so that ``import placewright`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.capturing.model import capture
    from placewright.cluster.cluster import Cluster, Device, Link, Node
    from placewright.errors import InfeasibleError, InputError, PlacewrightError
    from placewright.graph.graph import Graph
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import OperatorProblem
    from placewright.operators.run import run
    from placewright.placed_model import place
    from placewright.planning.result import Measurement, Result, Status
    from placewright.planning.solving import compare, solve
    from placewright.profiling.build import profile

__version__ = "0.1.0"

_HOME = {
    "Cluster": "placewright.cluster.cluster",
    "Device": "placewright.cluster.cluster",
    "Graph": "placewright.graph.graph",
    "InfeasibleError": "placewright.errors",
    "InputError": "placewright.errors",
    "Link": "placewright.cluster.cluster",
    "Measurement": "placewright.planning.result",
    "Node": "placewright.cluster.cluster",
    "OperatorPlan": "placewright.operators.plan",
    "OperatorProblem": "placewright.operators.problem",
    "PlacewrightError": "placewright.errors",
    "Result": "placewright.planning.result",
    "Status": "placewright.planning.result",
    "capture": "placewright.capturing.model",
    "compare": "placewright.planning.solving",
    "place": "placewright.placed_model",
    "profile": "placewright.profiling.build",
    "run": "placewright.operators.run",
    "solve": "placewright.planning.solving",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
