"""The best of placements as they come, brought within memory in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.placements.search import Start, improve, score_all
from placewright.operators.planners.pricing.priced import PricingContext
from placewright.planning.contract import Context


def best_finds(
    d: PricingContext, places: Iterable[IntArray], repair_moves: int, context: Context
) -> Iterator[Start]:
    """Each placement that is better than all before it, by the judge's word.

    If the best of all does not fit the memories, local moves repair it.
    """
    best: Start | None = None
    for place in places:
        found = score_all(d.judge, [place])[0]
        if best is None or found.score < best.score:
            best = found
            yield best
    if best is not None and best.score.over_bytes > 0:
        yield improve(
            d.judge,
            d.graph.groups,
            best,
            moves=repair_moves,
            heat=0.0,
            seed=context.seed,
            deadline_s=context.deadline_s,
        )
