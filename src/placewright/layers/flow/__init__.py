"""Ranges of a language model's layers -> machines, for the most tokens per second.

The problem of Helix (Mei et al., ASPLOS 2025, doi:10.1145/3669940.3707215): every machine of a
mixed cluster holds a range of layers, every token passes all layers, and what is maximised is the
flow of tokens from the coordinator through the machines and back. A family of the layers wing.
"""

from __future__ import annotations

from placewright.planning.contract import Direction
from placewright.planning.wing import package_wing

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
