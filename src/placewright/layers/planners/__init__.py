"""What `solve` needs of wing 2: planners, judge and bounds. `planners` is the list of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placewright.layers.bounds import bounds, refined_bounds
from placewright.layers.judge import judge
from placewright.layers.planners.dp import Dp, PbqpLayers
from placewright.layers.planners.space import Exhaustive
from placewright.layers.planners.swarm import Mutation, Pso
from placewright.layers.planners.uniform import OneWeirdTrick, Uniform
from placewright.layers.problem import LayerProblem
from placewright.planning.contract import Planner
from placewright.planning.wings import with_plug_ins

__all__ = [
    "baselines",
    "bounds",
    "judge",
    "objective",
    "planners",
    "portfolio",
    "refined_bounds",
    "refined_s",
    "rehearsals",
]

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


def refined_s(problem: LayerProblem, limit_s: float) -> float:
    """None: planners prove the rest."""
    return 0.0


def objective(problem: LayerProblem) -> str:
    """Step time, or seconds per sample."""
    return str(problem.objective)


def baselines(problem: LayerProblem) -> Sequence[str]:
    """What one would do without planning: the fastest worker, or all of them with shares."""
    return [] if problem.variants is not None else ["single", "data"]


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
