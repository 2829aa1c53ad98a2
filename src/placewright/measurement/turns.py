"""Measure steps of several plans in turns, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.planning.contract import Progress

ROUNDS = 5
"""Blocks of steps of each plan, in turns."""

TimedSteps = Callable[[int, int], list[float]]
"""Executes steps that do not count, then measured ones; seconds of the latter."""


def in_turns(
    plans: Sequence[TimedSteps], steps: int, warmup: int, bound: float, progress: Progress
) -> list[list[list[float]]]:
    """Seconds of steps by plan and round: a b c, c b a, ...; blocks begin with a warm-up.

    `bound`: predicted seconds of the first plan, which `progress` shows beside its median.
    """
    times: list[list[list[float]]] = [[] for _ in plans]
    rounds, began = min(steps, ROUNDS), time.perf_counter()
    for turn in range(rounds):
        size = steps // rounds + (turn < steps % rounds)
        forth = range(len(plans))
        for k in forth if turn % 2 == 0 else reversed(forth):
            times[k].append(plans[k](warmup, size))
        progress(
            what=f"round {turn + 1} of {rounds}",
            value=median([s for block in times[0] for s in block]),
            bound=bound,
            elapsed_s=time.perf_counter() - began,
        )
    return times
