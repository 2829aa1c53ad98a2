"""The toy wing of one file, with a planner that searches until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from placewright.planning.contract import Context, Planner, Proposal
from tests.planning import test_toy_wing as toy


@dataclass(frozen=True, slots=True)
class Slow:
    name: str = "slow"

    def unsupported_reason(self, problem: toy.Packing) -> str | None:
        """Always supported."""
        return None

    def __call__(self, problem: toy.Packing, context: Context) -> Proposal[toy.Bins]:
        """Report the first plan again and again."""
        best = toy.pack(problem, range(len(problem.sizes)))
        try:
            for k in range(3000):
                context.progress(what=f"look {k}", value=4.0, bound=3.0, elapsed_s=0.0)
                time.sleep(0.02)
        except KeyboardInterrupt:
            return Proposal(best, interrupted=True)
        return Proposal(best)


class SlowPlanning(toy.PackingPlanning):
    def planners(self, problem: toy.Packing) -> Mapping[str, Planner]:
        """The toy's, and the slow one."""
        return {**super().planners(problem), "slow": Slow()}


WING = replace(toy.WING, planning=SlowPlanning)
