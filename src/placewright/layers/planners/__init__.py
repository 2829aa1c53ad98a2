"""Planners of wing 2. This dict is the list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.layers.planners.dp import Dp
from placewright.layers.planners.exhaustive import Exhaustive
from placewright.layers.planners.mixing import PbqpLayers
from placewright.layers.planners.swarm import Mutation, Pso
from placewright.layers.planners.uniform import OneWeirdTrick, Uniform
from placewright.layers.problem import LayerProblem
from placewright.planning.contract import Planner
from placewright.planning.wings import with_plug_ins

UNIFORM = ("single", "data", "tensor", "pipeline", "sharded")


def planners(problem: LayerProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    own: list[Planner] = [
        *(Uniform(name) for name in UNIFORM),
        OneWeirdTrick(),
        Dp(),
        PbqpLayers(),
        Mutation(),
        Pso(),
        Exhaustive(),
    ]
    return with_plug_ins("layers", own)


def portfolio(problem: LayerProblem) -> Sequence[str]:
    """What ``auto`` tries, in order; enumeration is what `dp` does on small problems."""
    return [name for name in planners(problem) if name != "exhaustive"]
