"""Wing 3: training samples -> edge nodes."""

from __future__ import annotations

from placewright.planning.contract import Files, Planning, Wing
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem


def _planning() -> Planning:
    from placewright.samples import planning

    return planning


def _files() -> Files:
    from placewright.samples import files

    return files


WING = Wing(
    "samples", "training samples -> edge nodes", SampleProblem, SamplePlan, _planning, _files
)
