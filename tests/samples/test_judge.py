"""The judge against plain Python, and the transfers that it simulates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.samples.judge import judge
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import Batches, Duplex, Overlap, Ports, SampleProblem
from tests.samples.tiny import random_tiny, tiny


def plan(*moves: tuple[int, int, int]) -> SamplePlan:
    """Moves as (source, target, count)."""
    columns = np.array(moves, dtype=np.int64).reshape(-1, 3).T
    return SamplePlan(columns[0], columns[1], columns[2])


def reference(p: SampleProblem, moves: list[tuple[int, int, int]]) -> float:
    """The value, node by node and step by step."""
    held = [int(x) for x in p.held]
    out_s, in_s, price = [0.0] * p.n, [0.0] * p.n, 0.0
    for i, j, count in moves:
        held[i] -= count
        held[j] += count
        out_s[i] += count * p.send_s[i, j]
        in_s[j] += count * p.receive_s[i, j]
        price += count * p.price_s[i, j]
    full = p.duplex is Duplex.FULL
    moved = [max(a, b) if full else a + b for a, b in zip(out_s, in_s, strict=True)]
    own = [p.epochs * (p.seconds_per_sample[i] * held[i] + p.fixed_s[i]) for i in range(p.n)]
    if p.batches is Batches.EQUAL:
        slowest = (
            max(p.seconds_per_sample[i] for i in range(p.n) if held[i] > step)
            for step in range(max(held))
        )
        own = [p.epochs * (sum(slowest) + max(p.fixed_s))] * p.n
    if p.overlap is Overlap.HIDDEN:
        end = max(*moved, *own)
    elif p.overlap is Overlap.BARRIER or p.batches is Batches.EQUAL:
        end = max(moved) + max(own)
    else:
        end = max(a + b for a, b in zip(moved, own, strict=True))
    return end + p.epochs * p.sync_s + price


@pytest.mark.parametrize("seed", range(60))
def test_value_is_that_of_the_reference(seed: int) -> None:
    """Random moves over the links there are, in all modes."""
    problem, rng = random_tiny(seed), np.random.default_rng(seed)
    links = np.argwhere(np.isfinite(problem.send_s)).tolist()
    moves = [(i, j, 1) for i, j in links if rng.random() < 0.5 and problem.held[i] > 1]
    assert judge(problem, plan(*moves)).value == pytest.approx(reference(problem, moves), rel=1e-12)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), relay=st.booleans(), half=st.booleans())
def test_transfers_hold_their_ports_alone(seed: int, relay: bool, half: bool) -> None:
    """One at a time per port, everything arrives, never sooner than with ideal ports."""
    rng = np.random.default_rng(seed)
    duplex = Duplex.HALF if half else Duplex.FULL
    problem = tiny(rng.integers(2, 9, 5), relay=relay, duplex=duplex)
    moves = [
        (i, j, 1 + int(rng.random() < 0.3))
        for i, j in rng.permuted(np.argwhere(~np.eye(5, dtype=np.bool_)))[:6].tolist()
        if i != j
    ]
    judged = judge(problem, plan(*moves))
    played = judged.transfers()
    if not judged.feasible:
        return
    sent = np.zeros(len(moves), dtype=np.int64)
    np.add.at(sent, played.move, played.count)
    assert sent.tolist() == [count for _, _, count in moves]
    for node in range(5):
        for ends in (
            ((judged.plan.source, judged.plan.target),)
            if half
            else ((judged.plan.source,), (judged.plan.target,))
        ):
            mine = np.any([end[played.move] == node for end in ends], axis=0)
            order = np.argsort(played.start_s[mine])
            start, end = played.start_s[mine][order], played.end_s[mine][order]
            assert (start[1:] >= end[:-1] - 1e-12).all()
    assert judged.queued_value() >= judged.value - 1e-12
    queued = judge(problem.replace(ports=Ports.QUEUED), judged.plan)
    assert queued.value == judged.queued_value()


def test_a_relay_sends_what_has_arrived() -> None:
    """It holds nothing at first: two transfers, one after the other."""
    problem = tiny([10, 0, 0], relay=True)
    judged = judge(problem, plan((0, 1, 8), (1, 2, 4)))
    played = judged.transfers()
    assert judged.feasible
    assert played.start_s.tolist() == [0.0, pytest.approx(0.4)]
    assert judged.trace().duration_s == pytest.approx(0.6 + 0.4)


def test_samples_that_circle_without_a_source_are_refused() -> None:
    """Net flows alone would allow it."""
    problem = tiny([10, 0, 0], relay=True)
    judged = judge(problem, plan((1, 2, 4), (2, 1, 4)))
    assert not judged.feasible
    assert "never hold" in judged.violation


@pytest.mark.parametrize(
    ("fields", "moves", "message"),
    [
        ({}, [(1, 0, 1)], "n1 sends 1 samples more"),
        ({"keep": np.array([[8], [0], [0]])}, [(0, 1, 3)], "n0 sends 1 samples more"),
        ({"storage": np.array([20.0, 3.0, 20.0])}, [(0, 1, 5)], "n1 stores 2 samples too many"),
    ],
)
def test_broken_limits_are_named(
    fields: dict[str, object], moves: list[tuple[int, int, int]], message: str
) -> None:
    """Who, and by how many."""
    judged = judge(tiny([10, 0, 0], **fields), plan(*moves))
    assert message in judged.violation


def test_a_missed_mix_is_named() -> None:
    """The node, the class, and by how much."""
    problem = tiny([[10, 0], [0, 10]], label_mix=0.1)
    assert "n0 misses the mix of class c0 by 3.0" in judge(problem, nothing()).violation


@pytest.mark.parametrize("move", [(0, 0, 1), (0, 1, 0), (0, 7, 1)])
def test_impossible_moves_are_errors(move: tuple[int, int, int]) -> None:
    """To oneself, of nothing, to nobody."""
    with pytest.raises(InputError):
        judge(tiny([3, 3]), plan(move))


def test_the_trace_shows_epochs_transfers_and_exchange() -> None:
    """Tracks of nodes, then of links; the exchange comes last."""
    problem = tiny([10, 0], epochs=3, sync_s=0.5)
    trace = judge(problem, plan((0, 1, 4))).trace()
    assert trace.tracks == ("n0", "n1", "n0->n1")
    assert trace.devices == 2
    assert trace.duration_s == pytest.approx(0.2 + 6 * 0.3 + 1.5)
    assert len(trace.track) == 2 * 3 + 2 + 1
