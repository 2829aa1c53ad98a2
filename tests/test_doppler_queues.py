"""`benchmarks/doppler_queues.py`: equal to a slow reference of DOPPLER's rules, to the tick."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks.doppler_queues import (
    Found,
    Queues,
    QueueValues,
    make_queues,
    read_queues,
    simulate,
    walk,
)

from placewright import Context, bounds
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.task_graphs import read_dag
from tests.published import published


class _Reference:
    """The rules as they are written there, with one heap of all events."""

    def __init__(self, b: Queues, place: Sequence[int]) -> None:
        self.b, self.place, self.counter = b, list(place), 0
        self.heap: list[tuple[float, int, str, int]] = []
        self.queue: list[deque[int]] = [deque() for _ in b.busy]
        self.busy = [False] * len(b.busy)
        self.start, self.end = [-1.0] * len(place), [-1.0] * len(place)
        self.missing = np.bincount(b.edge_target, minlength=len(place)).tolist()

    def due(self, at: float, kind: str, what: int) -> None:
        heapq.heappush(self.heap, (at, self.counter, kind, what))
        self.counter += 1

    def give(self, now: float, d: int) -> None:
        """An idle device starts the head of its queue."""
        if not self.busy[d] and self.queue[d]:
            self.busy[d] = True
            self.due(now, "granted", self.queue[d].popleft())

    def run(self) -> float:
        for i, missing in enumerate(self.missing):
            if missing == 0:
                self.due(0.0, "ready", i)
        while self.heap:
            now, _, kind, what = heapq.heappop(self.heap)
            getattr(self, kind)(now, what)
        return max(self.end)

    def ready(self, now: float, i: int) -> None:
        self.queue[self.place[i]].append(i)
        self.give(now, self.place[i])

    def granted(self, now: float, i: int) -> None:
        self.start[i] = now
        self.due(now + float(self.b.cost[i]), "ended", i)

    def ended(self, now: float, i: int) -> None:
        self.end[i] = now
        self.busy[self.place[i]] = False
        self.due(now, "released", self.place[i])
        self.due(now, "finished", i)

    def released(self, now: float, d: int) -> None:
        self.give(now, d)

    def finished(self, now: float, i: int) -> None:
        for e in np.flatnonzero(self.b.edge_source == i).tolist():
            apart = self.place[i] != self.place[self.b.edge_target[e]]
            self.due(now + float(self.b.size[e]) * apart, "arrived", e)

    def arrived(self, now: float, e: int) -> None:
        self.due(now, "handed", e)

    def handed(self, now: float, e: int) -> None:
        j = int(self.b.edge_target[e])
        self.missing[j] -= 1
        if self.missing[j] == 0:
            self.due(now, "ready", j)


def drawn(seed: int, n: int, devices: int) -> Queues:
    """A graph with many ties, some costs and sizes zero, and operators without edges."""
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 2 / n]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    sizes = rng.integers(0, 4, len(edges)).astype(np.float64)
    return make_queues(rng.integers(0, 4, n).astype(np.float64), edges, sizes, devices)


def test_the_simulator_equals_the_reference() -> None:
    """Every start, every end and every value."""
    for seed in range(60):
        b = drawn(seed, 14, 4)
        rows = np.random.default_rng(seed).integers(0, 4, (5, 14))
        for place in [np.zeros(14, dtype=np.int64), *rows]:
            expected = _Reference(b, place.tolist())
            assert simulate(b, place) == expected.run()
            assert b.start.tolist() == expected.start
            assert b.end.tolist() == expected.end


def test_a_walk_finds_the_optimum_of_small_graphs_and_its_seed_fixes_it() -> None:
    """Brute force over all placements; the value is that of the placement."""
    for seed in range(4):
        b = drawn(seed, 7, 3)
        rows = np.array(list(itertools.product(range(3), repeat=7)))
        start = Found(simulate(b, rows[0]), rows[0])
        found, again = (walk(b, start, 0.2, seed) for _ in range(2))
        assert found.value == min(simulate(b, place) for place in rows)
        assert found.value == simulate(b, found.place)
        assert found.place.tolist() == again.place.tolist()


@pytest.mark.parametrize(
    ("column", "graph"),
    list(enumerate(("chain_mm_112nodes", "transformer_block_215nodes", "8gpu_transformer_block"))),
)
def test_documented_values_are_those_of_the_planners(column: int, graph: str) -> None:
    """Rows of docs/results/doppler.md that need no search: lower bound, best device, HEFT."""
    path = published(f"doppler/{graph}.json")
    problem, values = read_dag(path), QueueValues(*read_queues(path))
    heft = HEFT(problem, Context()).placement
    alone = np.repeat(np.arange(problem.m)[:, None], problem.n, axis=1)
    found = {
        "lower bound": max(bounds(problem).values()),
        "best single device": values(alone).min(),
        "`heft`, placement judged": values(heft[None])[0],
    }
    page = (Path(__file__).parents[1] / "docs" / "results" / "doppler.md").read_text("utf-8")
    for row, value in found.items():
        cells = page.split(f"| {row} |", 1)[1].split("\n", 1)[0].split("|")
        assert float(cells[column]) == pytest.approx(value, abs=0.006), row
