"""Prices of memory: the Lagrangian dual of a core, by subgradient steps.

With a price per row, the core is a plain PBQP whose bound, less the price of all room, no
assignment that fits can beat. What the priced PBQP chooses is nearly feasible where prices are
good, and starts the local search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers._memory_core import Core, loaded, priced, rent
from placewright.solvers._pbqp_bound import sweep, tighten
from placewright.solvers._pbqp_search import Limits, Search, reduce_greedily
from placewright.solvers._pbqp_work import Arrays, evaluate, prepare

SMALLEST_STEP = 1e-3
BRANCHES = 0
"""Branches that one priced problem may take: steps are worth more."""

FINAL_SWEEPS = 100

NOISE, SEARCHED = 1e-12, 2e-9
"""Relative error of a bound by rounding, and by the tolerance of branching."""


SWEEPS = 4
"""Passes of message passing for every change of prices, where messages are kept."""

DRIFT = 1e-8
"""Relative error of a bound by rounding while messages are kept."""

DOUBLINGS, HALVINGS = 20, 6
"""Steps to a uniform price at which the choice fits, and how often the last two are halved."""


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A priced problem solved: its choice, what that costs unpriced, and the dual bound."""

    price: FloatArray
    choice: IntArray
    load: IntArray
    value: float
    bound: float


def solve_priced(core: Core, price: FloatArray, deadline_s: float) -> Priced:
    """The priced PBQP by reductions and a few branches."""
    arrays = core.arrays._replace(cost=priced(core.arrays, core.loads, price))
    greedy = reduce_greedily(arrays)
    choice, value, lower = greedy.choice, greedy.value, greedy.value
    # Without RN the greedy answer is the optimum, and the bound.
    if greedy.fired:
        found = Search(Limits(BRANCHES, deadline_s), abs(value)).descend(arrays, value)
        lower = min(found.lower, value)
        if found.choice is not None and found.value < value:
            choice = found.choice
    load = loaded(core.arrays, core.loads, choice)
    room = rent(core.loads, price)
    noise = (SEARCHED if greedy.fired else NOISE) * (abs(lower) + room)
    dual = lower - room - noise
    return Priced(price, choice, load, float(evaluate(core.arrays, choice)), dual)


class Messages:
    """Priced problems of a large core, one after the other: messages carry over to new prices.

    Prices change costs of nodes only, so what edges have handed over stays valid, and a few
    passes do what a hundred do from the beginning.
    """

    def __init__(self, core: Core) -> None:
        self.core, self.own = core, core.arrays.cost
        self.work = prepare(core.arrays, 0)

    def solve(self, price: FloatArray) -> Priced:
        """Choices by reductions of the costs as messages have shifted them."""
        core, work = self.core, self.work
        own = priced(core.arrays, core.loads, price)
        # `work.cost` differs from the costs by what messages have moved, so only the change is
        # added.
        fine = own < np.inf
        work.cost[fine] += own[fine] - self.own[fine]
        self.own = own
        lower = float(sweep(work, SWEEPS))
        a = core.arrays
        choice = reduce_greedily(Arrays(a.start, work.cost, a.ends, a.matrix, work.pool)).choice
        room = rent(core.loads, price)
        dual = lower - room - DRIFT * (abs(lower) + room)
        load = loaded(a, core.loads, choice)
        return Priced(price, choice, load, float(evaluate(a, choice)), dual)


@dataclass(slots=True)
class Prices:
    """The ascent, resumable.

    `best`: prices of the highest bound so far.
    """

    price: FloatArray
    best: FloatArray
    direction: FloatArray
    bound: float = -math.inf
    step: float = 1.0
    stalled: int = 0

    @staticmethod
    def of(core: Core) -> Prices:
        """No price yet."""
        m = len(core.moment)
        return Prices(np.zeros(m), np.zeros(m), np.zeros(m))

    def note(self, found: Priced) -> None:
        """Keep prices of a higher bound."""
        if found.bound > self.bound:
            self.bound, self.best = found.bound, found.price.copy()


Solve = Callable[[FloatArray], Priced]


def level(
    core: Core,
    at: Prices,
    solve: Solve,
    consider: Callable[[Priced], None],
    running: Callable[[], bool],
) -> None:
    """Find the lowest price, the same on every row, at which what is chosen fits."""
    room, rows = core.loads.room, len(core.loads.room)
    found = solve(np.zeros(rows))
    at.note(found)
    consider(found)
    if (found.load <= room).all():
        return
    # reductions with RN may end in a forbidden pair; prices must be finite all the same
    size = found.value if math.isfinite(found.value) else found.bound
    unit = max(abs(size), 1.0) / float(found.load.max()) / rows
    # Exponents of 4: outwards until one price is too low and one high enough, then halving.
    low, high, exponent, left = -math.inf, math.inf, -1.0, HALVINGS
    for _ in range(DOUBLINGS):
        if left == 0 or not running():
            break
        found = solve(np.full(rows, unit * 4.0**exponent))
        at.note(found)
        consider(found)
        if (found.load <= room).all():
            high = exponent
        else:
            low = exponent
        if math.isfinite(high - low):
            exponent, left = (low + high) / 2, left - 1
        else:
            exponent += 1 if high == math.inf else -1
    at.price = at.best.copy()


def ascend(
    core: Core,
    at: Prices,
    rounds: int,
    upper: Callable[[], float],
    consider: Callable[[Priced], None],
    solve: Solve,
    running: Callable[[], bool],
) -> None:
    """At most `rounds` deflected subgradient steps towards `upper`, halved where they stall."""
    scale = np.maximum(core.loads.room, 1).astype(np.float64)
    for _ in range(rounds):
        if at.step < SMALLEST_STEP or not running():
            return
        found = solve(at.price)
        better = found.bound > at.bound + 1e-7 * abs(at.bound)
        at.note(found)
        consider(found)
        at.stalled = 0 if better else at.stalled + 1
        # Back to the best prices with half the step, without the old direction.
        if at.stalled >= 6:
            at.step, at.stalled, at.price = at.step / 2, 0, at.best.copy()
            at.direction = np.zeros(len(scale))
            continue
        excess = (found.load - core.loads.room) / scale
        # A price cannot fall below zero: such rows must not make the direction longer.
        excess[(excess < 0) & (at.price <= 0)] = 0.0
        at.direction = excess + 0.4 * at.direction
        length = float(at.direction @ at.direction)
        goal = upper()
        if not math.isfinite(goal):
            goal = found.bound + 0.05 * abs(found.bound) + 1.0
        distance = max(goal - found.bound, 1e-6 * abs(goal))
        if length == 0.0:
            return
        # Polyak step in prices per full row (price times scale), in which `excess` is the gradient.
        at.price = np.maximum(at.price + at.step * distance / length * at.direction / scale, 0.0)


def fixed(core: Core, price: FloatArray, upper: float) -> Core:
    """The core without options and pairs that nothing cheaper than `upper` has."""
    room = rent(core.loads, price)
    tolerance = NOISE * (abs(upper) + 2 * room)
    own = core.arrays._replace(cost=priced(core.arrays, core.loads, price))
    # A reduced cost that exceeds the gap rules an option out, whatever the others do.
    work = prepare(own, 0)
    tighten(work, FINAL_SWEEPS, upper + room + 2 * tolerance, tolerance)
    cost = np.where(work.cost == np.inf, np.inf, core.arrays.cost)
    pool = np.where(work.pool[: len(own.pool)] == np.inf, np.inf, core.arrays.pool)
    arrays: Arrays = core.arrays._replace(cost=cost, pool=pool)
    return Core(arrays, core.loads, core.nodes, core.moment, core.constant)
