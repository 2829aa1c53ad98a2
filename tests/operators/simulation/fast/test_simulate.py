"""The fast path says what the general play says, to the last bit, or that it cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import lean
from placewright.operators.judge import Judge
from placewright.operators.plan import Dispatch
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.simulation.fast.memory import bytes_over
from placewright.operators.simulation.fast.simulate import UNSURE, play, seat_of
from placewright.operators.simulation.fast.state import FastState
from placewright.operators.simulation.full import kernels
from placewright.operators.simulation.modes import Mode
from placewright.testing.instances import (
    named_instances,
    random_placement,
    random_problem,
    tiny,
    with_random_views,
)


@dataclass
class Count:
    """How often the fast path could and could not tell."""

    sure: int = 0
    unsure: int = 0
    short: int = 0


def compare(problem: OperatorProblem, seed: int, count: Count) -> None:
    """Random placements in every dispatch, on the fast and on the general path."""
    judge, rng = Judge(problem), np.random.default_rng(seed)
    none = np.zeros(0, dtype=np.int64)
    for dispatch, order in (
        (Dispatch.READY, none),
        (Dispatch.READY, rng.permutation(problem.n)),
        (Dispatch.IN_ORDER, problem.topology.order),
        (Dispatch.IN_ORDER, rng.permutation(problem.n)),
    ):
        place = random_placement(problem, rng)
        agree(judge, judge.mode(dispatch), place, order, count)


@lean
def over(s: FastState, value: float) -> int:
    """Bytes over after a play."""
    return bytes_over(s, seat_of(s, 0), value)


def agree(judge: Judge, mode: Mode, place: IntArray, order: IntArray, count: Count) -> None:
    """One placement on both paths."""
    fast = play(judge.swift, mode, place, order)
    if fast == UNSURE:
        count.unsure += 1
        return
    count.sure += 1
    code = kernels.run(*judge.board, mode, place, order)
    told = kernels.makespan(judge.board.x, judge.board.o) if code == kernels.DONE else np.inf
    assert fast == told
    if told < np.inf:
        short = over(judge.swift, fast)
        assert short == kernels.over_bytes(judge.board.w, judge.board.o)
        count.short += short > 0


def tight(problem: OperatorProblem, seed: int) -> OperatorProblem:
    """Memories that are often too small; half of the tensors are views."""
    problem, rng = with_random_views(problem, seed), np.random.default_rng(seed)
    most = problem.tensor_bytes.sum() + problem.resident_bytes.sum() + 1.0
    return problem.replace(memory_bytes=rng.random(problem.m) * most)


@pytest.mark.parametrize("links", Links)
def test_equal_to_the_general_play_bit_for_bit(links: Links) -> None:
    """On small random problems; most have times that are equal or zero, and all can be told."""
    count = Count()
    for seed in range(600):
        compare(tight(random_problem(seed, links=links), seed), seed, count)
    assert count.sure > 800
    assert count.unsure > 0
    assert count.short > 300


@pytest.mark.parametrize("links", Links)
def test_large_problems_without_zeros_are_always_told(links: Links) -> None:
    """Where every time differs nothing is unsure, tensors of many readers included."""
    count = Count()
    for seed in range(40):
        problem = random_problem(seed, most_operators=120, most_devices=6, links=links)
        rng = np.random.default_rng(seed)
        off = ~np.eye(problem.m, dtype=np.bool_)
        channel = np.full((problem.m, problem.m), -1)
        channel[off] = np.arange(off.sum())
        own = problem.replace(
            compute_s=np.where(np.isfinite(problem.compute_s), 1, np.inf)
            * rng.random((problem.n, problem.m)),
            latency_s=off * (0.1 + rng.random((problem.m, problem.m))),
            channel=channel,
            channel_names=tuple(f"c{x}" for x in range(off.sum())),
        )
        compare(tight(own, seed), seed, count)
    assert count.unsure == 0
    assert count.short > 30


def test_long_queues_of_what_is_to_come() -> None:
    """Many operators whose inputs are on their way to one device, in any order of arrival."""
    rng, wide = np.random.default_rng(3), 150
    compute = [[0.01, 0.01, 0.01]] * wide + [[1.0, 1.0, 1.0]] * wide
    tensors = [(i, float(rng.integers(1, 9)), [wide + (7 * i) % wide]) for i in range(wide)]
    problem = tiny(compute, tensors, latency_s=0.5, seconds_per_byte=0.3)
    count = Count()
    for _ in range(20):
        place = np.concatenate([rng.integers(0, 2, wide), np.full(wide, 2)])
        judge = Judge(problem.replace(compute_s=rng.random((2 * wide, 3)) / 9))
        for order in (np.zeros(0, dtype=np.int64), rng.permutation(2 * wide)):
            agree(judge, judge.mode(memory=False), place, order, count)
    assert count.unsure == 0


def test_side_by_side_is_one_by_one() -> None:
    """Plays that take turns say what each says alone, whatever the number of rows."""
    for seed in range(40):
        problem = random_problem(seed, most_operators=60)
        judge, rng = Judge(problem), np.random.default_rng(seed)
        rows = np.array([random_placement(problem, rng) for _ in range(1 + seed % 7)])
        mode, none = judge.mode(memory=False), np.zeros(0, dtype=np.int64)
        alone = [play(judge.swift, mode, row, none) for row in rows]
        together = judge.many(rows)[0]
        for one, other in zip(alone, together, strict=True):
            assert one in (UNSURE, other)


def test_missing_links_are_left_to_the_general_play() -> None:
    """It knows what to say where a pair has none."""
    problem = named_instances()["unlinked"]
    judge = Judge(problem)
    place = np.zeros(problem.n, dtype=np.int64)
    assert play(judge.swift, judge.mode(), place, np.zeros(0, dtype=np.int64)) == UNSURE


def test_threads_do_not_change_a_batch() -> None:
    """A batch large enough to be split says what one placement at a time says."""
    problem = random_problem(5, most_operators=12)
    rng = np.random.default_rng(0)
    rows = np.array([random_placement(problem, rng) for _ in range(3000)])
    whole = Judge(problem).many(rows)
    for at in range(0, 3000, 500):
        part = Judge(problem).many(rows[at : at + 7])
        assert part[0].tolist() == whole[0][at : at + 7].tolist()
        assert part[1].tolist() == whole[1][at : at + 7].tolist()
