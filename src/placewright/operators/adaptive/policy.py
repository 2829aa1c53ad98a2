"""Migration policy: the gain over the remaining steps against the cost of the migration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.adapt.trials import WARM_UP_STEPS
from placewright.io.arguments import Count, Share, checked
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


@checked
@dataclass(frozen=True, slots=True)
class AdaptationPolicy:
    """When to sample and when to migrate.

    Attributes
    ----------
    sample_every
        Steps between two watched ones.
    margin
        The gain must exceed the cost by this share.
    least_gain
        Relative gain per step below which no plan is worth a migration: predictions are not finer.
    confirmations
        Times in a row that a migration must look worthwhile.
    tolerance
        Relative change of the step time that counts as drift.
    trial_steps
        Steps after which a migration is judged by what was measured.
    look_share
        Share of the time that probes of evacuated devices and links may take.
    """

    sample_every: Count = 50
    margin: float = 0.2
    least_gain: Share = 0.05
    confirmations: Count = 2
    tolerance: float = 0.1
    trial_steps: Count = 5
    look_share: Share = 0.005


@dataclass(frozen=True, slots=True)
class Offer:
    """A new plan compared with the one in force.

    `current_s`, `new_s`: predicted step times of both at the refreshed costs.
    `move_s`: seconds that the migration takes.
    """

    plan: OperatorPlan
    current_s: float
    new_s: float
    move_s: float
    moved_bytes: float

    @property
    def gain(self) -> float:
        """Relative gain per step."""
        return 1.0 - self.new_s / self.current_s

    def worthwhile(self, remaining_steps: float, policy: AdaptationPolicy) -> bool:
        """Whether the gain over the remaining steps pays for the move."""
        # Cold steps are counted as lost altogether, which errs on the side of staying.
        cost = self.move_s + WARM_UP_STEPS * self.new_s
        saved = (self.current_s - self.new_s) * remaining_steps
        return self.gain > policy.least_gain and saved > (1.0 + policy.margin) * cost


def move_cost(
    problem: OperatorProblem, before: OperatorPlan, after: OperatorPlan
) -> tuple[float, float]:
    """Seconds and bytes of moving the state of operators that change their device.

    Channels work in parallel, each one tensor after the other; resident bytes stand for the
    state, so what an operator shares with others of its group is counted once per group.
    """
    old, new = before.placement, after.placement
    moved = (old != new) & (problem.resident_bytes > 0)
    if not moved.any():
        return 0.0, 0.0
    per_channel: dict[int, float] = {}
    for i in np.flatnonzero(moved):
        source, target = int(old[i]), int(new[i])
        seconds = (
            problem.latency_s[source, target]
            + problem.resident_bytes[i] * problem.seconds_per_byte[source, target]
        )
        channel = int(problem.channel[source, target])
        per_channel[channel] = per_channel.get(channel, 0.0) + float(seconds)
    return max(per_channel.values()), float(problem.resident_bytes[moved].sum())
