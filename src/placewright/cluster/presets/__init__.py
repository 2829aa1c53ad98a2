"""Clusters that ship with Placewright, one YAML file each."""

from __future__ import annotations

from importlib.resources import files

from placewright.cluster.cluster import Cluster
from placewright.errors import UnknownNameError


def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml")))


def preset(name: str) -> Cluster:
    """The preset called `name`; `UnknownNameError` offers the nearest one."""
    from placewright.cluster.files import cluster_from_text

    if name not in preset_names():
        raise UnknownNameError("cluster preset", name, preset_names())
    text = files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return cluster_from_text(text, where=f"preset {name}", name=name)
