"""List scheduling by insertion against plain Python, and memory budgets that shrink."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from placewright.numerics.arrays import FloatArray
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists import insertion
from placewright.operators.planners.lists.insertion import list_schedule, set_up, within_memory
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.lists.timelines import SLOTS, Timelines, timelines
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context


@pytest.mark.parametrize(("seconds", "builds"), [(0.0, 1), (math.inf, 9)])
def test_no_round_begins_after_the_deadline(seconds: float, builds: int) -> None:
    """The first plan is the answer where nothing fits anyway."""
    problem = tiny([[1.0, 1.0]], resident_bytes=[2.0], memory_bytes=[1.0, 1.0])
    budgets = list[FloatArray]()

    def build(budget_bytes: FloatArray) -> OperatorPlan:
        budgets.append(budget_bytes)
        return OperatorPlan(np.zeros(1, dtype=np.int64))

    plan = within_memory(problem, build, time.perf_counter() + seconds)
    assert plan.placement.tolist() == [0]
    assert len(budgets) == builds


def test_a_budget_that_leaves_no_linked_device_keeps_the_plan_before() -> None:
    """The plan that is over its memory by least, and not an error about links."""
    problem = tiny(
        [[1.0, np.inf], [1.0, 1.0]],
        [(0, 4.0, [1])],
        resident_bytes=[4.0, 4.0],
        memory_bytes=[8.0, np.inf],
    )
    apart = np.array([[0.0, np.inf], [np.inf, 0.0]])
    problem = problem.replace(latency_s=apart, seconds_per_byte=apart, channel=np.full((2, 2), -1))
    assert HEFT(problem, Context()).placement.tolist() == [0, 0]


Slots = list[tuple[float, float]]


def book(slots: Slots, ready_s: float, took_s: float) -> float:
    """Take the first gap from `ready_s` on; when it begins."""
    at, place = ready_s, 0
    for start_s, end_s in slots:
        if end_s > ready_s:
            if at + took_s <= start_s:
                break
            at = max(at, end_s)
        place += 1
    slots.insert(place, (at, at + took_s))
    return at


def by_hand(p: OperatorProblem, sequence: list[int], *, reserved: bool) -> list[tuple[int, float]]:
    """Device and end of every operator, as `list_schedule` says; all slots are tried."""
    devices, channels = [Slots() for _ in range(p.m)], [Slots() for _ in p.channel_names]
    done: dict[int, tuple[int, float]] = {}
    arrived: dict[tuple[int, int], float] = {}
    inputs = [np.flatnonzero(p.consumers == i) for i in range(p.n)]
    tensors = [np.searchsorted(p.consumer_offsets, at, "right") - 1 for at in inputs]
    for i in sequence:
        tried = []
        for d in np.flatnonzero(np.isfinite(p.compute_s[i])).tolist():
            ways, rows = dict(arrived), [list(row) for row in channels]
            sources = {k: int(p.tensor_producer[k]) for k in tensors[i].tolist()}
            ready_s = 0.0
            for k, made in sorted(
                sources.items(), key=lambda at: done[at[1]][1] if reserved else 0
            ):
                source, end_s = done[made]
                if source == d:
                    ready_s = max(ready_s, end_s)
                    continue
                took_s = p.latency_s[source, d] + p.tensor_bytes[k] * p.seconds_per_byte[source, d]
                if not reserved:
                    ready_s = max(ready_s, end_s + took_s)
                    continue
                if (k, d) not in ways:
                    row = rows[p.channel[source, d]]
                    ways[k, d] = book(row, end_s, took_s) + took_s
                ready_s = max(ready_s, ways[k, d])
            own = list(devices[d])
            start_s = book(own, ready_s, p.compute_s[i, d])
            tried.append((start_s + p.compute_s[i, d], d, start_s, own, ways, rows))
        end_s, d, start_s, devices[d], ways, rows = min(tried, key=lambda at: at[:2])
        if reserved:
            arrived, channels = ways, rows
        done[i] = d, end_s
    return [done[i] for i in range(p.n)]


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_gaps_are_those_of_plain_lists(seed: int, reserved: bool) -> None:
    """Rows of many pieces, filled in an order that leaves gaps: some times are zero, many equal."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, most_operators=700, most_devices=3)
    problem = problem.replace(
        compute_s=np.maximum(
            np.where(np.isfinite(problem.compute_s), problem.compute_s, 4.0), seed % 2
        ),
        colocation=np.arange(problem.n),
        pinned=np.full(problem.n, -1),
        memory_bytes=np.full(problem.m, np.inf),
    )
    level = np.zeros(problem.n, np.int64)
    for i in problem.topology.order.tolist():
        for k in np.flatnonzero(problem.tensor_producer == i).tolist():
            for j in problem.consumers[slice(*problem.consumer_offsets[k : k + 2])].tolist():
                level[j] = max(level[j], level[i] + 1)
    sequence = np.lexsort((rng.random(problem.n), level))
    setup = set_up(problem)
    place, _, end_s = list_schedule(
        setup.costs,
        setup.rules(np.array(problem.memory_bytes)),
        sequence,
        np.zeros((problem.n, problem.m)),
        len(problem.channel_names) if reserved else None,
    )
    expected = by_hand(problem, sequence.tolist(), reserved=reserved)
    assert list(zip(place.tolist(), end_s.tolist(), strict=True)) == expected


def test_many_inputs_over_one_channel_leave_no_pieces_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Booked for every device that is tried, and taken back: twice as many slots as a piece has."""
    made: list[Timelines] = []
    monkeypatch.setattr(insertion, "timelines", lambda *x: made.append(timelines(*x)) or made[-1])
    wide, few, m, rng = 260, 8, 3, np.random.default_rng(0)
    ends = [0, *np.cumsum([wide, few] * 3).tolist()]
    tensors = [
        (
            k,
            float(rng.integers(1, 5)),
            [j for j in range(b, c) if c - b == few or j % few == k % few],
        )
        for a, b, c in zip(ends, ends[1:], ends[2:], strict=False)
        for k in range(a, b)
    ]
    problem = tiny(np.ones((ends[-1], m)).tolist(), tensors, links="contended")
    one = np.where(np.eye(m) > 0, -1, 0)
    problem = problem.replace(channel=one, channel_names=("bus",))
    setup, order = set_up(problem), problem.topology.order
    rules = setup.rules(np.array(problem.memory_bytes))
    place, _, end_s = list_schedule(setup.costs, rules, order, np.zeros((problem.n, m)), 1)
    expected = by_hand(problem, order.tolist(), reserved=True)
    assert list(zip(place.tolist(), end_s.tolist(), strict=True)) == expected
    for each in made:
        spare, places = each.used
        assert spare + each.pieces.sum() == len(each.size)
        assert places <= len(each.piece)
        for first, count in zip(each.first, each.pieces, strict=True):
            size = each.size[each.piece[first : first + count]]
            assert (size[1:] + size[:-1] > SLOTS // 2).all()
