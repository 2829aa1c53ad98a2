"""Layers of a language model -> devices in a ring, for the least time per token.

The problem of Halda (Prima.cpp, Li et al., arXiv:2504.08791) in the form of distilp: one token at a
time, in rounds, on devices whose weights may not fit and then come from disk. A family of the
layers wing.
"""

from __future__ import annotations

from placewright.planning.wing import package_wing

HALDA = package_wing(
    __name__,
    "layers -> devices in a ring",
    "problem.RingProblem",
    "problem.RingPlan",
    planning="planners.PLANNING",
    views="files.VIEWS",
    conformance="..conformance.HALDA",
    command_line="",
    signed=True,
)
