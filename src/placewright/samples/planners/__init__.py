"""Planners of wing 3. This dict is the list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.planning.contract import Planner
from placewright.planning.wings import with_plug_ins
from placewright.samples.planners.greedy import Greedy
from placewright.samples.planners.ilp import Ilp
from placewright.samples.planners.lp import Lp
from placewright.samples.planners.nic import Nic
from placewright.samples.planners.simple import NoMove, Proportional
from placewright.samples.problem import SampleProblem

FEW_NODES = 12
"""Nodes up to which ``auto`` runs the integer program as well: it ends in seconds."""


def planners(problem: SampleProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    own: list[Planner] = [NoMove(), Proportional(), Nic(), Greedy(), Lp(), Ilp()]
    return with_plug_ins("samples", own)


def portfolio(problem: SampleProblem) -> Sequence[str]:
    """What ``auto`` tries, in order; the integer program only where it ends."""
    known = [name for name in planners(problem) if name != "ilp"]
    return [*known, "ilp"] if problem.n <= FEW_NODES else known
