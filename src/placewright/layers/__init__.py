"""Wing 2: layers -> parallelisation strategies over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.wing import (
    CommandLine,
    Conformance,
    Files,
    LanguageModels,
    Planning,
    Views,
    Wing,
    package_wing,
)

if TYPE_CHECKING:
    from placewright.layers import commands, conformance, files, planners, views

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance, CommandLine] = (
        planners,
        files,
        views,
        conformance.LAYERS,
        commands,
    )


def _flow() -> Wing:
    from placewright.layers.flow import FLOW

    return FLOW


def _halda() -> Wing:
    from placewright.layers.halda import HALDA

    return HALDA


def _device_map() -> Wing:
    from placewright.layers.devicemap import DEVICE_MAP

    return DEVICE_MAP


def _language() -> LanguageModels:
    from placewright.layers.devicemap import text

    return text


WING = package_wing(
    __name__,
    "layers -> parallelisation strategies",
    "problem.LayerProblem",
    "plan.LayerPlan",
    conformance="conformance.LAYERS",
    families=(_flow, _halda, _device_map),
    language=_language,
)
