"""Walks of annealing around host memory, one after another, alone or beside a solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots.moves import anneal_slots

HEATS = (0.01, 0.02, 0.01, 0.005, 0.02, 0.01)
"""First temperatures, in turn; a device at the largest load has energy 1."""
MOVES = 100
"""Of each walk, per pair of nodes; at most `MOST_MOVES`."""
MOST_MOVES = 4_000_000
PATIENCE = 2
"""Walks without a better plan after which no more are made, where nobody else is at work."""


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
    """The best of some walks from there, each from the best so far or from the start.

    Beside it, whether Ctrl-C came.

    Parameters
    ----------
    value
        What slots of the nodes are worth.
    halt
        Shape (1,); another thread ends the walk by writing a one.
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

    That ends the walks and answers with the best slots met.
    """
    halt = np.zeros(1, dtype=np.int64)
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
