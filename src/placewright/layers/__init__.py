"""Wing 2: layers -> parallelisation strategies over workers."""

from __future__ import annotations

from placewright.planning.wing import LanguageModels, package_wing


def _language() -> LanguageModels:
    from placewright.layers.devicemap import text

    return text


WING = package_wing(
    __name__,
    "layers -> parallelisation strategies",
    "problem.LayerProblem",
    "plan.LayerPlan",
    conformance="conformance.LAYERS",
    families=("flow.FLOW", "halda.HALDA", "devicemap.DEVICE_MAP"),
    language=_language,
)
