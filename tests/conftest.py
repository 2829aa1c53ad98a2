"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# First calls compile or load kernels: how long an example takes says nothing about it.
settings.register_profile(
    "placewright", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("placewright")
