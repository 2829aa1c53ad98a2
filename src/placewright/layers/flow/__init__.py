"""Ranges of a language model's layers -> machines, for the most tokens per second.

The problem of Helix (Mei et al., ASPLOS 2025, doi:10.1145/3669940.3707215): every machine of a
mixed cluster holds a range of layers, every token passes all layers, and what is maximised is the
flow of tokens from the coordinator through the machines and back. A family of the layers wing.
"""

from __future__ import annotations

from placewright.planning.contract import Direction
from placewright.planning.wing import Conformance, Files, Planning, Views, Wing


def _problem_type() -> type:
    from placewright.layers.flow.problem import FlowProblem

    return FlowProblem


def _plan_type() -> type:
    from placewright.layers.flow.problem import LayerRanges

    return LayerRanges


def _planning() -> Planning:
    from placewright.layers.flow import planning

    return planning


def _files() -> Files:
    from placewright.layers.flow import files

    return files


def _views() -> Views:
    from placewright.layers.flow import views

    return views


def _conformance() -> Conformance:
    from placewright.layers.flow import conformance

    return conformance


FLOW = Wing(
    "layers.flow",
    "ranges of layers -> machines",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    direction=Direction.MAXIMISE,
    unit="tokens/s",
    views=_views,
    conformance=_conformance,
)
