"""Settings of the whole suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Hundreds of processes are started: each would compile the source again where nobody keeps it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several processes of the suite compile kernels already.
os.environ.setdefault("PLACEWRIGHT_COMPILERS", "0")

# Three tests run at a time on two cores: a second thread of PyTorch waits for the first in a loop,
# on the core that another test needs. Workers have the threads of their devices.
os.environ["OMP_NUM_THREADS"] = "1"

# First calls compile or load kernels: how long an example takes says nothing about it.
settings.register_profile(
    "placewright", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("placewright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests of whole programs: whatever comes last keeps one of three workers alone."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
