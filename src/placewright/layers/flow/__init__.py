"""Ranges of a language model's layers -> machines, for the most tokens per second.

The problem of Helix (Mei et al., ASPLOS 2025, doi:10.1145/3669940.3707215): every machine of a
mixed cluster holds a range of layers, every token passes all layers, and what is maximised is the
flow of tokens from the coordinator through the machines and back. A family of the layers wing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.contract import Direction
from placewright.planning.wing import Conformance, Files, Planning, Views, package_wing

if TYPE_CHECKING:
    from placewright.layers import conformance
    from placewright.layers.flow import files, planners

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance] = (
        planners.PLANNING,
        files,
        files.VIEWS,
        conformance.FLOW,
    )

FLOW = package_wing(
    __name__,
    "ranges of layers -> machines",
    "problem.FlowProblem",
    "problem.LayerRanges",
    planning="planners.PLANNING",
    views="files.VIEWS",
    conformance="..conformance.FLOW",
    command_line="",
    direction=Direction.MAXIMISE,
    unit="tokens/s",
)
