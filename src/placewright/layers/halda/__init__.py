"""Layers of a language model -> devices in a ring, for the least time per token.

The problem of Halda (Prima.cpp, Li et al., arXiv:2504.08791) in the form of distilp: one token at a
time, in rounds, on devices whose weights may not fit and then come from disk. A family of the
layers wing.
"""

from __future__ import annotations

from placewright.planning.wing import Conformance, Files, Planning, Views, Wing


def _problem_type() -> type:
    from placewright.layers.halda.problem import RingProblem

    return RingProblem


def _plan_type() -> type:
    from placewright.layers.halda.problem import RingPlan

    return RingPlan


def _planning() -> Planning:
    from placewright.layers.halda import planning

    return planning


def _files() -> Files:
    from placewright.layers.halda import files

    return files


def _views() -> Views:
    from placewright.layers.halda import views

    return views


def _conformance() -> Conformance:
    from placewright.layers.halda import conformance

    return conformance


HALDA = Wing(
    "layers.halda",
    "layers -> devices in a ring",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    views=_views,
    conformance=_conformance,
)
