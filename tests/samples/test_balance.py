"""The state of a plan under construction follows from its flows, within all limits.

The compiled balance against plain Python that recomputes everything at every move.

Times are multiples of 1/64, so that sums are exact whatever their order, and so are decisions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placewright.planning.solving import solve
from placewright.samples.balance import (
    LESS,
    FlowState,
    NodeClock,
    clock_of,
    exact_clock,
    share_out,
    spread,
    with_classes,
)
from placewright.samples.judge import judge
from placewright.samples.problem import Duplex, Overlap, SampleProblem
from tests.samples.clouds import cloud
from tests.samples.tiny import tiny

seeds = st.integers(0, 100_000)


def started(seed: int) -> tuple[SampleProblem, FlowState]:
    """A cloud in which a few samples have moved already, within the limits."""
    problem, rng = cloud(seed, "label_mix", "price_s"), np.random.default_rng(seed)
    flow = np.zeros((problem.n, problem.n), dtype=np.int64)
    room = np.maximum(problem.storage - problem.held, 0)
    left = problem.held - problem.keep.sum(axis=1)
    for i, j in rng.permutation(np.argwhere(np.isfinite(problem.send_s)))[:4].tolist():
        flow[i, j] = rng.integers(0, 1 + min(left[i], room[j], 9))
        left[i], room[j] = left[i] - flow[i, j], room[j] - flow[i, j]
    return problem, FlowState.of(problem, flow)


def ends_s(problem: SampleProblem, state: FlowState) -> np.ndarray:
    """When each node ends, from flows alone."""
    judged = judge(problem, state.plan())
    if problem.overlap is Overlap.HIDDEN:
        return np.maximum(judged.moved_s, own_s(problem, judged.held))
    return judged.moved_s + own_s(problem, judged.held)


def own_s(problem: SampleProblem, held: np.ndarray) -> np.ndarray:
    """Seconds of each node's own samples."""
    each: np.ndarray = problem.work_s * held.sum(axis=1) + problem.epochs * problem.fixed_s
    return each


@settings(max_examples=150)
@given(seed=seeds, quantum=st.integers(1, 9), part=st.floats(0.3, 1.0) | st.just(math.inf))
@example(seed=1333, quantum=5, part=math.inf)
def test_what_runs_along_is_what_follows(seed: int, quantum: int, part: float) -> None:
    """Held, sent, ports and ends; nobody ends later than at the start, or than the level."""
    problem, state = started(seed)
    clock = clock_of(problem)
    before, begun = (
        FlowState.of(problem, state.flow),
        ends_s(problem, FlowState.of(problem, state.flow)),
    )
    level_s = part * state.last_s(clock)
    state.balance(clock, quantum, level_s)
    anew = FlowState.of(problem, state.flow)
    assert (state.flow >= 0).all()
    assert state.held.tolist() == anew.held.tolist()
    assert state.sent.tolist() == anew.sent.tolist()
    np.testing.assert_allclose(state.out_s, anew.out_s, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.in_s, anew.in_s, rtol=1e-9, atol=1e-12)
    assert state.last_s(clock) <= before.last_s(clock) * (1 + 1e-12)
    kept_s = np.maximum(begun, min(level_s, before.last_s(clock)))
    assert (ends_s(problem, anew) <= kept_s * (1 + 1e-9)).all()
    assert state.held.sum() == problem.samples.sum()
    assert (state.held <= np.maximum(problem.storage, before.held)).all()
    left = state.held if problem.relay else problem.held - state.sent
    assert (left >= np.minimum(problem.keep.sum(axis=1), before.held)).all()


@settings(max_examples=60)
@given(seed=seeds)
def test_spreading_is_never_worse_than_staying(seed: int) -> None:
    """Where the clock is exact the judge agrees, to the last bits; no time leaves all in place."""
    problem = cloud(seed, "label_mix", "price_s")
    clock, still = clock_of(problem), FlowState.of(problem)
    made = spread(problem, clock, 8, math.inf)
    assert made.last_s(clock) <= still.last_s(clock)
    assert not spread(problem, clock, 8, 0.0).flow.any()
    if exact_clock(problem) and not problem.relay:
        judged = judge(problem, made.plan())
        end_s = judged.value - problem.epochs * problem.sync_s
        assert abs(end_s - made.last_s(clock)) <= 1e-9 * end_s


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.data())
def test_shares_add_up_and_fit(left: list[int], data: st.DataObject) -> None:
    """As many as asked for, of no class more than there are, in proportion to less than one."""
    total = sum(left)
    if total == 0:
        return
    count = data.draw(st.integers(0, total))
    share = share_out(count, np.array(left))
    assert share.sum() == count
    assert (share >= 0).all()
    assert (share <= left).all()
    assert (np.abs(share - count * np.array(left) / total) < 1 + 1e-6).all()


def test_classes_go_in_proportion_to_what_may_go() -> None:
    """Nine of thirty and ten, five of which stay: two to one, over both neighbours."""
    problem = tiny([[30, 10], [0, 4], [1, 0]], keep=np.array([[10, 0], [0, 0], [0, 0]]))
    flow = np.zeros((3, 3), dtype=np.int64)
    flow[0, 1], flow[0, 2] = 9, 6
    split = with_classes(problem, flow)
    assert split.sum(axis=2).tolist() == flow.tolist()
    assert split[0, 1].tolist() == [6, 3]
    assert split[0, 2].tolist() == [4, 2]


def test_a_relay_passes_on_the_classes_that_reach_it() -> None:
    """It holds nothing itself and its turn comes first: it waits, and keeps what it must."""
    pair = np.full((3, 3), np.inf)
    pair[1, 0] = pair[2, 1] = pair[0, 1] = 0.05
    problem = tiny([[0, 0], [0, 3], [30, 10]], send_s=pair, relay=True)
    problem = problem.replace(keep=np.array([[0, 0], [0, 3], [0, 0]]))
    flow = np.zeros((3, 3), dtype=np.int64)
    flow[1, 0], flow[2, 1] = 8, 20
    made = with_classes(problem, flow)
    assert made.sum(axis=2).tolist() == flow.tolist()
    assert made[2, 1].tolist() == [15, 5]
    assert judge(problem, FlowState.of(problem, flow).plan()).feasible
    best = solve(problem, "lp")
    assert best.judgement.feasible
    assert best.judgement.held[0].sum() > 0


def test_a_balance_looks_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One move at a time ends as all at once; after the deadline it stays as it is, half done."""
    problem = tiny([40, 0, 0])
    whole, steps, cut = FlowState.of(problem), FlowState.of(problem), FlowState.of(problem)
    made = whole.balance(clock_of(problem), 1)
    monkeypatch.setattr("placewright.samples.balance.AT_ONCE", 1)
    assert steps.balance(clock_of(problem), 1) == made > 1
    assert steps.flow.tolist() == whole.flow.tolist()
    assert cut.balance(clock_of(problem), 1, deadline_s=0.0) == 1


class Plain:
    """Flows, and what follows from them."""

    def __init__(self, p: SampleProblem, clock: NodeClock) -> None:
        self.p, self.clock = p, clock
        self.flow = [[0] * p.n for _ in range(p.n)]

    def held(self, i: int) -> int:
        """Samples on node i."""
        return int(self.p.held[i]) - sum(self.flow[i]) + sum(row[i] for row in self.flow)

    def end_s(self, i: int) -> float:
        """When node i ends."""
        out_s = sum(c * self.p.send_s[i, j] for j, c in enumerate(self.flow[i]) if c)
        in_s = sum(row[i] * self.p.receive_s[j, i] for j, row in enumerate(self.flow) if row[i])
        port_s = out_s + in_s if self.p.duplex is Duplex.HALF else max(out_s, in_s)
        work_s = self.p.work_s[i] * self.held(i) + self.clock.fixed[i]
        offset = self.clock.offset
        return float(port_s + work_s if self.clock.joined else max(port_s + offset, work_s))

    def move(self, a: int, b: int, count: int) -> None:
        """A hands samples to b; what b has sent goes back first."""
        if self.flow[b][a]:
            self.flow[b][a] -= count
        else:
            self.flow[a][b] += count

    def undo(self, a: int, b: int, count: int, back: bool) -> None:
        """As if `move` had not been."""
        if back:
            self.flow[b][a] += count
        else:
            self.flow[a][b] -= count

    def movable(self, a: int, b: int, quantum: int, level_s: float) -> int:
        """How many samples may go."""
        back, keep = self.flow[b][a], int(self.p.keep[a].sum())
        if not back and not math.isfinite(self.p.send_s[a, b]):
            return 0
        left = self.held(a) - keep if self.p.relay else int(self.p.held[a]) - keep
        left -= 0 if self.p.relay else sum(self.flow[a])
        count = min(quantum, back or left, self.held(a))
        if math.isfinite(self.p.storage[b]):
            count = min(count, int(self.p.storage[b]) - self.held(b))
        if not back and math.isfinite(level_s):
            spare_s = level_s - self.end_s(b)
            each_s = float(self.p.receive_s[a, b] + self.p.work_s[b])
            if count * each_s > spare_s:
                count = int(spare_s / each_s) if spare_s > 0 else 0
        return count

    def balance(self, quantum: int, level_s: float) -> int:
        """Until nobody can help the last node."""
        moves, nodes = 0, range(self.p.n)
        while True:
            a = max(nodes, key=self.end_s)  # the first of equals
            last_s = self.end_s(a)
            if last_s <= level_s < math.inf:
                return moves
            best = (last_s * (1.0 - LESS), -1, 0)
            for b in nodes:
                count = self.movable(a, b, quantum, level_s) if a != b else 0
                if count < 1:
                    continue
                back = self.flow[b][a] > 0
                self.move(a, b, count)
                later_s, own_s = max(self.end_s(a), self.end_s(b)), self.end_s(b)
                self.undo(a, b, count, back)
                if later_s < best[0] and own_s <= level_s:
                    best = (later_s, b, count)
            if best[1] < 0:
                return moves
            self.move(a, *best[1:])
            moves += 1


def exact(seed: int) -> tuple[SampleProblem, NodeClock]:
    """Nodes, links and a clock whose times are multiples of 1/64."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    held = rng.integers(1, 25, n)
    pair = rng.integers(1, 12, (n, n)) / 64
    far = np.abs(np.subtract.outer(range(n), range(n))) > 1
    pair[(far & (rng.random((n, n)) < 0.3)) | np.eye(n, dtype=np.bool_)] = np.inf
    problem = tiny(
        held,
        send_s=pair,
        receive_s=np.where(np.isfinite(pair), rng.integers(1, 12, (n, n)) / 64, np.inf),
        seconds_per_sample=rng.integers(1, 40, n) / 64,
        storage=np.where(rng.random(n) < 0.3, held + rng.integers(0, 6, n), np.inf),
        keep=np.minimum(held, rng.integers(0, 4, n))[:, None],
        duplex=rng.choice(list(Duplex)),
        relay=bool(rng.random() < 0.5),
    )
    fixed = rng.integers(0, 64, n) / 64
    return problem, NodeClock(bool(rng.random() < 0.6), fixed, float(rng.integers(0, 3)))


@pytest.mark.parametrize("seed", range(150))
def test_every_move_is_that_of_the_reference(seed: int) -> None:
    """Large steps under a level, then single samples without one: the same flows, move by move."""
    problem, clock = exact(seed)
    state, plain = FlowState.of(problem), Plain(problem, clock)
    level_s = round(state.last_s(clock) * 48) / 64
    for quantum, level in ((4, level_s), (1, math.inf)):
        assert state.balance(clock, quantum, level) == plain.balance(quantum, level)
        assert state.flow.tolist() == plain.flow
        assert state.held.tolist() == [plain.held(i) for i in range(problem.n)]
        assert state.last_s(clock) == max(plain.end_s(i) for i in range(problem.n))
