"""A cluster and its problem restricted to the devices that are left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError
from placewright.operators.problem import OperatorProblem


def cluster_of(cluster: Cluster, names: Collection[str]) -> Cluster:
    """The devices called `names`, in the cluster's order, and the links between them."""
    return replace(
        cluster,
        devices=tuple(d for d in cluster.devices if d.name in names),
        links=tuple(k for k in cluster.links if k.source in names and k.target in names),
    )


def problem_of(problem: OperatorProblem, names: Collection[str]) -> OperatorProblem:
    """The same problem on the devices called `names`.

    Raises `InfeasibleError`: an operator is pinned to a device that is gone.
    """
    keep = [i for i, name in enumerate(problem.device_names) if name in names]
    position = np.full(problem.m, -1, dtype=np.int64)
    position[keep] = np.arange(len(keep))
    pinned = np.where(problem.pinned >= 0, position[problem.pinned], -1)
    lost = np.flatnonzero((problem.pinned >= 0) & (pinned < 0))
    if len(lost):
        operator = problem.operator_names[int(lost[0])]
        device = problem.device_names[int(problem.pinned[lost[0]])]
        raise InfeasibleError(
            f"{operator!r} is pinned to {device!r}, which is gone", where=problem.name
        )
    pairs = np.ix_(keep, keep)
    return replace(
        problem,
        device_names=tuple(problem.device_names[i] for i in keep),
        device_kinds=tuple(kind for i, kind in enumerate(problem.device_kinds) if i in keep),
        compute_s=problem.compute_s[:, keep],
        latency_s=problem.latency_s[pairs],
        seconds_per_byte=problem.seconds_per_byte[pairs],
        channel=problem.channel[pairs],
        memory_bytes=problem.memory_bytes[keep],
        host_seconds_per_byte=problem.host_seconds_per_byte[keep],
        pinned=pinned,
    )
