"""Layers of a language model -> devices in a ring, for the least time per token.

The problem of Halda (Prima.cpp, Li et al., arXiv:2504.08791) in the form of distilp: one token at a
time, in rounds, on devices whose weights may not fit and then come from disk. A family of the
layers wing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.wing import Conformance, Files, Planning, Views, package_wing

if TYPE_CHECKING:
    from placewright.layers import conformance
    from placewright.layers.halda import files, planners

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance] = (
        planners.PLANNING,
        files,
        files.VIEWS,
        conformance.HALDA,
    )

HALDA = package_wing(
    __name__,
    "layers -> devices in a ring",
    "problem.RingProblem",
    "problem.RingPlan",
    planning="planners.PLANNING",
    views="files.VIEWS",
    conformance="..conformance.HALDA",
    command_line="",
)
