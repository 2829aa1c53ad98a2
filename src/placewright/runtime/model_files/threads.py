"""Threads that a device of a cluster has on this machine."""

from __future__ import annotations

import os

from placewright.cluster.cluster import Device


def threads_of(device: Device) -> int:
    """Threads that a device computes with: its cores, at most those that are here."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(device.cores, here))
