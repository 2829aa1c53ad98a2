"""Settings of the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Hundreds of processes are started: each would compile the source again where nobody keeps it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several processes of the suite compile kernels already.
os.environ.setdefault("PLACEWRIGHT_COMPILERS", "0")

# First calls compile or load kernels: how long an example takes says nothing about it.
settings.register_profile(
    "placewright", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("placewright")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with as many threads in this process as on a device of one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
