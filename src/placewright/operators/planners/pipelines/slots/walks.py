"""Better placements around host memory: walks of annealing, and three devices at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots.moves import anneal_slots
from placewright.operators.planners.pipelines.slots.program import best_cuts, plan_of
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import star_loads

HEATS = (0.01, 0.02, 0.01, 0.005, 0.02, 0.01)
"""First temperatures, in turn; a device at the largest load has energy 1."""
MOVES = 100
"""Moves of each walk, per pair of nodes; at most `MOST_MOVES`."""
MOST_MOVES = 4_000_000
PATIENCE = 2
"""Walks without a better plan after which no more are made, where no solver runs beside them."""


def annealed(
    c: Contraction,
    slot: IntArray,
    value: Callable[[IntArray], float],
    *,
    seed: int,
    deadline_s: float,
    walks: int = len(HEATS),
    patience: int = PATIENCE,
    halt: IntArray | None = None,
) -> tuple[IntArray, bool]:
    """Slots of the best placement that some walks find, and whether Ctrl-C came.

    Each walk begins at the best placement so far or at `slot`.

    `value`: objective of slots of the nodes.
    `halt`: shape (1,); another thread ends the walk by writing a one.
    """
    first, best, least, idle = slot, slot, value(slot), 0
    moves, stop = min(MOVES * c.nodes**2, MOST_MOVES), np.zeros(1, dtype=np.int64)
    stop = stop if halt is None else halt
    try:
        for walk in range(walks):
            if time.perf_counter() >= deadline_s or idle == patience or stop[0]:
                break
            found = anneal_slots(
                c,
                best if walk % 2 else first,
                moves=moves,
                heat=HEATS[walk % len(HEATS)],
                seed=seed + walk,
                halt=stop,
            )
            reached = value(found)
            idle = 0 if reached < least else idle + 1
            if reached < least:
                best, least = found, reached
    except KeyboardInterrupt:
        return best, True
    return best, False


@contextmanager
def beside(
    c: Contraction, slot: IntArray, value: Callable[[IntArray], float], *, seed: int
) -> Iterator[Callable[[], IntArray]]:
    """Walks in another thread until the block ends, or until what is yielded is called.

    That ends the walks and returns the best slots found.
    """
    halt = np.zeros(1, dtype=np.int64)
    # The kernel releases the GIL and looks at `halt`. It is set before the pool's own exit waits
    # for the thread, also where the block raises.
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(
            annealed,
            c,
            slot,
            value,
            seed=seed,
            deadline_s=np.inf,
            walks=2**31,
            patience=2**31,
            halt=halt,
        )

        def best() -> IntArray:
            halt[0] = 1
            return task.result()[0]

        try:
            yield best
        finally:
            halt[0] = 1


_SHARE_S = 5.0
"""Seconds that one trio may take."""


def by_trios(
    problem: OperatorProblem,
    c: Contraction,
    slot: IntArray,
    *,
    seed: int,
    deadline_s: float,
) -> tuple[IntArray, bool]:
    """Slots of the nodes, no worse than `slot`, which fits; whether Ctrl-C came.

    Slots are devices here.

    The most loaded device is in every trio: without it nothing gets better. The first trio that
    helps is taken and the search begins again; it ends where none does, or at the deadline.
    """
    best, better = slot, True
    try:
        while better:
            better = False
            load_s = _loads(problem, c, best)
            worst = int(load_s.argmax())
            others = sorted((d for d in range(problem.m) if d != worst), key=lambda d: load_s[d])
            for pair in combinations(others, min(2, len(others))):
                until = min(deadline_s, time.perf_counter() + _SHARE_S)
                if time.perf_counter() >= deadline_s:
                    break
                value = float(load_s.max())
                among = (worst, *pair)
                found, _, interrupted = best_cuts(
                    c, best, value, seed=seed, deadline_s=until, among=among
                )
                if found is not None and _loads(problem, c, found).max() < value * (1 - 1e-9):
                    best, better = found, True
                if interrupted:
                    return best, True
                if better:
                    break
    except KeyboardInterrupt:
        return best, True
    return best, False


def _loads(problem: OperatorProblem, c: Contraction, slot: IntArray) -> FloatArray:
    """Shape (slots,), the load of every slot."""
    devices = np.concatenate([np.array(devices) for devices in c.pools])
    load_s: FloatArray = star_loads(problem, plan_of(c, slot)).load_s[devices]
    return load_s
