"""A Ray cluster of several machines, all of them this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

TRIES = 3
"""Of starting it: on a busy machine a raylet may end before it has registered."""


def ray_machines(
    head: Mapping[str, Any],
    node: Mapping[str, Any],
    ready: Callable[[Any], object] = lambda machines: None,
) -> Any:
    """A head and one more node; `ready` raises where the cluster cannot be used."""
    from ray.cluster_utils import Cluster

    for left in reversed(range(TRIES)):
        machines = Cluster()
        try:
            # The head's agent takes a fixed port otherwise, which another Ray here may hold.
            machines.add_node(dashboard_agent_listen_port=None, **head)
            machines.add_node(**node)
            ready(machines)
        except Exception:  # Ray raises this very class
            machines.shutdown()
            if not left:
                raise
            time.sleep(2.0)
        else:
            return machines
    raise AssertionError("unreachable")
