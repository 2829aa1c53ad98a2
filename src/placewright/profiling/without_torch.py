"""Costs where PyTorch is not installed: nothing is measured, so what is not kept is computed."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace

from placewright.cluster.cluster import Cluster
from placewright.errors import MissingDependencyError
from placewright.profiling.caveats import ProfileWarning
from placewright.profiling.profiler import Profiler


class NotMeasuredWarning(ProfileWarning):
    """Costs were computed because PyTorch, which measures them, is not installed."""


def torch_installed() -> bool:
    """Whether PyTorch is there; it is not loaded."""
    return importlib.util.find_spec("torch") is not None


def without_torch(profiler: Profiler, cluster: Cluster, asked: str) -> Profiler:
    """The profiler where a kept profile has all it would measure, else one that computes.

    Parameters
    ----------
    asked
        The method that was asked for.

    Raises
    ------
    MissingDependencyError
        It is one that measures.

    Warns
    -----
    NotMeasuredWarning
        Nobody said how, and costs are computed.
    """
    if not any(profiler.must_measure(device) for device in cluster.devices):
        return profiler
    if asked != "auto":
        purpose = f"profiling by the method {asked}"
        raise MissingDependencyError("torch", extra="torch", purpose=purpose)
    warnings.warn(
        f"costs of {profiler.graph.name} are computed from FLOPs and bytes: PyTorch, which "
        "measures them, is not installed\n"
        "  next: pip install 'placewright[torch]', or profile with --table where it is installed",
        NotMeasuredWarning,
        stacklevel=3,
    )
    return replace(profiler, way="analytic")
