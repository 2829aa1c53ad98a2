"""The compiled balance against plain Python that recomputes everything at every move.

Times are multiples of 1/64, so that sums are exact whatever their order, and so are decisions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.samples.balance.kernel import LESS
from placewright.samples.balance.state import Clock, State
from placewright.samples.problem import Duplex, SampleProblem
from tests.samples.tiny import tiny


class Plain:
    """Flows, and what follows from them."""

    def __init__(self, p: SampleProblem, clock: Clock) -> None:
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


def exact(seed: int) -> tuple[SampleProblem, Clock]:
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
    return problem, Clock(bool(rng.random() < 0.6), fixed, float(rng.integers(0, 3)))


@pytest.mark.parametrize("seed", range(150))
def test_every_move_is_that_of_the_reference(seed: int) -> None:
    """Large steps under a level, then single samples without one: the same flows, move by move."""
    problem, clock = exact(seed)
    state, plain = State.of(problem), Plain(problem, clock)
    level_s = round(state.last_s(clock) * 48) / 64
    for quantum, level in ((4, level_s), (1, math.inf)):
        assert state.balance(clock, quantum, level) == plain.balance(quantum, level)
        assert state.flow.tolist() == plain.flow
        assert state.held.tolist() == [plain.held(i) for i in range(problem.n)]
        assert state.last_s(clock) == max(plain.end_s(i) for i in range(problem.n))
