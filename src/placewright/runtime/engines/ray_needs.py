"""What each device's actor asks of Ray, held against what Ray has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError

JOIN = "ray start --address HEAD:6379"

_SHARE = 0.001
"""Of a node's resource: enough to be placed there, and any number of devices may be."""


def needed(cluster: Cluster, offered: Mapping[str, float]) -> list[dict[str, Any]]:
    """What each device's actor asks of Ray, as ``options``.

    Parameters
    ----------
    offered
        Ray's resources; where one is named as a node of the cluster, all nodes must have one.

    Raises
    ------
    InputError
        Some nodes have a machine of their name and others have none, or there are fewer CPUs
        than cores.
    """
    nodes = [node.name for node in cluster.nodes]
    cores, cpus = sum(device.cores for device in cluster.devices), offered.get("CPU", 0)
    if cores > cpus:
        raise InputError(
            "Ray's machines have too few CPUs",
            where=cluster.name,
            by=f"its devices ask for {cores} cores and Ray has {cpus:g}",
            hint=f"start another machine: `{JOIN} --num-cpus {cores - int(cpus)}`",
        )
    named = any(node in offered for node in nodes)
    absent = [node for node in nodes if named and node not in offered]
    if absent:
        raise InputError(
            f"Ray has no machine for node {absent[0]!r}",
            where=cluster.name,
            by=f"resources are {told(offered)}",
            hint=f"start it with `{JOIN} --resources '{{\"{absent[0]}\": 1}}'`",
        )
    return [_need(device, named) for device in cluster.devices]


def served(cluster: Cluster, offered: Mapping[str, float]) -> frozenset[str]:
    """Devices whose node's machine is there, by name.

    All of them where no machine is named as a node: which one is whose, Ray decides.
    """
    nodes = {node.name for node in cluster.nodes}
    there = nodes & offered.keys() or nodes
    return frozenset(device.name for device in cluster.devices if device.node in there)


def _need(device: Device, named: bool) -> dict[str, Any]:
    need: dict[str, Any] = {"num_cpus": device.cores}
    if device.kind == "gpu":
        need["num_gpus"] = 1
    return need | (
        {"resources": {device.node: _SHARE}} if named else {"scheduling_strategy": "SPREAD"}
    )


def told(resources: Mapping[str, Any]) -> str:
    """Resources in words, without those that every Ray machine has."""
    shown = {k: v for k, v in resources.items() if not k.startswith("node:") and "memory" not in k}
    return ", ".join(f"{key} {value}" for key, value in sorted(shown.items(), key=str))
