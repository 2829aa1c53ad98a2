"""Placements by PBQP within memory: a price per byte for each device that is short, by bisection.

The Lagrangian of the PBQP under memory limits: each byte on device d costs ``price[d]``. A price
that is high enough makes the plan fit, the least such price keeps most on the fast device; the
judge decides what fits, since what tensors hold at the peak depends on the schedule. One price
moves a uniform chain as a whole, all or nothing; tilted prices cut it: bytes cost more towards the
end of the graph, or towards its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.chains import first_places
from placewright.operators.planners.pricing.priced import PricingContext

CHEAP = 1.0 / 64
"""The first price: all bytes together cost this share of all time."""

RAISES = 8
"""How often prices are raised at most until the plan fits, four times as high each time."""

TILTS = (1.0, -1.0, 0.0)
"""Bytes weigh ``1 + tilt * (place - 1/2)``, place from 0 at the beginning of the graph to 1."""


def within_memories(
    d: PricingContext, costs_s: FloatArray, halvings: int, deadline_s: float = np.inf
) -> list[IntArray]:
    """Placements on the way to the least prices at which all fits; none where none are needed.

    `costs_s`: shape (groups, m).
    `halvings`: of the interval in which the least price lies, for each tilt.
    Raises `InfeasibleError`: no placement has a link for every tensor.
    """
    none = np.zeros(d.problem.m)
    over = _tried(d, costs_s, none, deadline_s)[1]
    if not over.any():
        return []
    found: list[IntArray] = []
    for tilted in _tilted(d):
        low, high, places = _bracketed(tilted, costs_s, over, deadline_s)
        found += places
        if time.perf_counter() >= deadline_s:
            break
        # No price is high enough, or only the last one: what tensors hold is too much, whatever
        # bytes cost.
        if len(places) == RAISES:
            break
        found += _bisected(tilted, costs_s, low, high, halvings, deadline_s)
    return found


def _tilted(d: PricingContext) -> Iterator[PricingContext]:
    """The context with each tilt of bytes."""
    # `group_bytes` has the rising weight in it already (`pricing_context`): take it out first.
    rising = 0.5 + first_places(d.problem, d.graph.groups) / d.problem.n
    for tilt in TILTS:
        yield replace(d, group_bytes=d.group_bytes / rising * (1.0 + tilt * (rising - 1.0)))


def _bracketed(
    d: PricingContext, costs_s: FloatArray, over: BoolArray, deadline_s: float
) -> tuple[FloatArray, FloatArray, list[IntArray]]:
    """Prices of devices that are over are raised until all fits: the last two, and placements."""
    unit = CHEAP * costs_s.min(axis=1).sum() / max(1.0, d.group_bytes.sum())
    low, places = np.zeros(d.problem.m), []
    high = low
    for _ in range(RAISES):
        low, high = high, np.where(over, np.maximum(4 * high, unit), high)
        place, over = _tried(d, costs_s, high, deadline_s)
        places.append(place)
        if not over.any() or time.perf_counter() >= deadline_s:
            break
    return low, high, places


def _bisected(
    d: PricingContext,
    costs_s: FloatArray,
    low: FloatArray,
    high: FloatArray,
    halvings: int,
    deadline_s: float,
) -> list[IntArray]:
    """Placements at the middles of the interval that still has a price at which all fits."""
    places: list[IntArray] = []
    for _ in range(halvings):
        if time.perf_counter() >= deadline_s:
            break
        middle = (low + high) / 2
        place, over = _tried(d, costs_s, middle, deadline_s)
        places.append(place)
        low, high = (middle, high) if over.any() else (low, middle)
    return places


def _tried(
    d: PricingContext, costs_s: FloatArray, prices_s: FloatArray, deadline_s: float
) -> tuple[IntArray, BoolArray]:
    """The placement at these prices, and which devices have too little memory for it."""
    place = d.place(d.solve(costs_s, prices_s, None, deadline_s).choice)
    judgement = d.judge(OperatorPlan(place))
    return place, judgement.peak_bytes > d.problem.memory_bytes
