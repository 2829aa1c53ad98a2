"""What `solve` needs of device maps: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from placewright.errors import InfeasibleError
from placewright.io.units import BYTES, show
from placewright.layers.devicemap.baselines import RULES, Rule
from placewright.layers.devicemap.bounds import lower_bound_s
from placewright.layers.devicemap.judge import MapJudgement, judge
from placewright.layers.devicemap.plan import MapPlan
from placewright.layers.devicemap.planner import plan_map
from placewright.layers.devicemap.problem import MapProblem, check_each_layer
from placewright.planning.contract import Context, Planner, Proposal
from placewright.planning.wing import Planning
from placewright.planning.wings import with_plug_ins

ROUNDING = 2e-9
"""Share by which the value of the best plan is lowered to be a bound: see `plan_map`."""


@final
@dataclass(frozen=True, slots=True)
class Exact:
    """The best of all plans with consecutive ranges; see `placewright.layers.devicemap.planner`."""

    name: str = "exact"

    def unsupported_reason(self, problem: MapProblem) -> str | None:
        """Always supported."""
        return None

    def __call__(self, problem: MapProblem, context: Context) -> Proposal[MapPlan]:
        """The best plan, with its value as the bound where all devices were looked at.

        Raises `InfeasibleError`: no plan fits.
        """
        check_each_layer(problem)
        found = plan_map(problem)
        if found.best is None:
            need = float((problem.weights - problem.shared + problem.cache).sum())
            room = float(problem.capacity.sum())
            by = f"{show(need, BYTES)} of weights and caches, {show(room, BYTES)} usable"
            hint = "give a shorter context, fewer users, a smaller dtype, or more devices"
            raise InfeasibleError("no plan fits", where=problem.name, by=by, hint=hint)
        proved = found.best.value * (1 - ROUNDING) if found.proved else None
        note = "" if found.proved else "searched over the fastest devices"
        return Proposal(found.best.plan, bound=proved, note=note)


class MapPlanning(Planning):
    """What `solve` needs of device maps."""

    def planners(self, problem: MapProblem) -> Mapping[str, Planner]:
        """Every planner by name; ``auto`` tries the exact one, and what others do."""
        own: list[Planner] = [Exact(), *(Rule(name) for name in RULES)]
        return with_plug_ins("layers.devicemap", own)

    def judge(self, problem: MapProblem, plan: MapPlan) -> MapJudgement:
        """By the times of layers and hops."""
        return judge(problem, plan)

    def bounds(self, problem: MapProblem) -> Mapping[str, float]:
        """With free transfers and layers in any order."""
        return {"free transfers": lower_bound_s(problem)}

    def objective(self, problem: MapProblem) -> str:
        """Of one stream, or of all users together."""
        alone = problem.objective == "latency"
        return "time per token" if alone else "time per token of all users together"

    def baselines(self, problem: MapProblem) -> Sequence[str]:
        """What one would do without planning."""
        return tuple(RULES)


PLANNING = MapPlanning()
