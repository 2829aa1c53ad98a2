"""The parameters of `opportunity`, found by simulation on generated arrivals.

`play`, the simulator with the policy compiled into it, says what parameters earn on streams of the
problem's rate and mix; CMA-ES (Hansen, arXiv:1604.00772) improves them. What is maximised is the
mean effective accuracy of the streams less what success falls short of what is asked for in each
kind of arrivals, which weighs more than accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.policies.opportunity import (
    Choice,
    Costs,
    Opportunity,
    choose,
    classify,
    costs_of,
    new_choice,
)
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.queue import StreamQueue
from placewright.requests.service import Service
from placewright.requests.simulation import (
    START,
    Clock,
    Run,
    advance,
    new_run,
    refuse,
    start_batch,
)

COARSE, FINE = 2, 0.3
"""Pairs of streams on which parameters are tried, and the share of trials that is made on all."""

SPREAD = 0.5
"""First standard deviation of parameters, which are logarithms."""

PRICE, CONVEXITY, WORTH, BONUS, CROWDING = 0.12, 0.006, 0.3, 0.2, 0.15
"""Where the search begins; `worth` is below accuracy + WORTH by a share."""


@njit_no_refcount
def play(run: Run, costs: Costs, x: Choice, members: IntArray, start: Clock) -> None:
    """Play a stream that nobody has played yet against the policy.

    `x`: its `class_of` is set. `members`: scratch of the largest batch.
    """
    state = run.state
    clock = advance(state, start, np.inf, False)
    while clock.now_s < np.inf:
        order = state.orders.by_deadline[: clock.waiting]
        found = choose(clock.now_s, order, state.requests, state.servers, costs, x)
        for q in range(found.looked_at):
            i = x.server_of[q]
            # Stays, or belongs to a batch that was started at its first member.
            if i >= 0 and not state.servers.busy[i]:
                size = _members_of(i, q, found.looked_at, x, members)
                clock = start_batch(run, clock, i, x.variant_of[q], members[:size])
        clock = refuse(run, clock, x.found[: found.refused])
        clock = advance(state, clock, found.wake_s, False)


@njit_inline
def _members_of(server: int, first: int, count: int, x: Choice, members: IntArray) -> int:
    """Write the slots of a server's batch, from its first position on; how many."""
    size = 0
    for q in range(first, count):
        if x.server_of[q] == server:
            members[size] = x.left[q]
            size += 1
    return size


class Player:
    """Plays generated streams of one problem with any parameters; memory and bytes are no limit.

    `service`: of all streams.
    """

    def __init__(self, streams: Sequence[RequestProblem]) -> None:
        s = streams[0].service
        free = {
            "server_memory_bytes": np.full(s.servers, np.inf),
            "seconds_per_byte": np.zeros(s.servers),
        }
        self.service = s.replace(**free)
        self.streams = [each.replace(service=self.service) for each in streams]
        self.noise = [noise_factors(each) for each in self.streams]
        costs = costs_of(self.service, Opportunity())
        self.kind = costs.tables.kind
        alone_s = (s.latency_s + s.round_trip_s[:, None, None])[:, :, 1]
        fastest_s = min(
            float(row[np.isfinite(row)].mean()) for row in alone_s if np.isfinite(row).any()
        )
        self.usual_s = 1.5 * fastest_s
        self.queues = [StreamQueue(each.stream) for each in self.streams]
        self.choices = [new_choice(self.service, len(each.stream)) for each in self.streams]
        for queue, choice in zip(self.queues, self.choices, strict=True):
            classify(np.arange(len(queue.id)), queue.requests, costs.tables, choice.class_of)
        self.members = np.zeros(self.service.max_batch, dtype=np.int64)

    def __call__(
        self, policy: Opportunity, streams: IntArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Success rate and effective accuracy by stream, of some or all."""
        costs, found = costs_of(self.service, policy), []
        for k in range(len(self.streams)) if streams is None else streams.tolist():
            problem = self.streams[k]
            run = new_run(problem, self.queues[k], self.noise[k])
            play(run, costs, self.choices[k], self.members, START)
            kept = run.answers.succeeded(problem)
            earned = np.where(kept, self.service.accuracy[run.answers.variant], 0.0)
            found.append((kept.mean(), earned.mean()))
        success, value = np.array(found).T
        return success, value


def fitted(
    pairs: Sequence[Sequence[RequestProblem]],
    least_success: FloatArray,
    shortfall: float,
    evaluations: int,
    seed: int = 0,
    deadline_s: float = np.inf,
    report: Callable[[float], None] = lambda share: None,
) -> Opportunity:
    """Parameters for these streams.

    Most parameters are tried on a few streams, which change with each generation; the last
    `FINE` are tried on all.

    Parameters
    ----------
    pairs
        Streams of one service; the same kinds of arrivals in each.
    least_success
        Shape (pairs, kinds of arrivals): success rate to keep in the mean of each kind.
    shortfall
        Accuracy that a success weighs that is missing in one kind.
    evaluations
        Parameters that are tried.
    deadline_s
        ``time.perf_counter()`` value after which the best so far is returned.
    report
        Called now and then with the share of the search that is over.
    """
    playing = Player([each for pair in pairs for each in pair])
    service, used, kinds = playing.service, _classes(playing), len(pairs[0])

    def loss(z: FloatArray, progress: float) -> float:
        some = np.arange(len(pairs))
        # Other streams in each generation, so that none of them is fitted.
        if progress < 1.0 - FINE:
            some = np.roll(some, int(progress * evaluations))[:COARSE]
        streams = (kinds * some[:, None] + np.arange(kinds)).reshape(-1)
        success, value = playing(_decoded(z, service, used, playing), streams)
        missing = (least_success[some] - success.reshape(-1, kinds)).mean(axis=0)
        return float(-value.mean() + shortfall * np.maximum(0.0, missing).sum())

    size = len(np.unique(playing.kind)) * 2 + 2 * len(used) + 2
    found = minimised(loss, size, evaluations, seed, deadline_s, report)
    return _decoded(found, service, used, playing)


def _classes(playing: Player) -> IntArray:
    """Classes that the streams have."""
    found = np.unique(np.concatenate([choice.class_of for choice in playing.choices]))
    return found[found >= 0]


def _decoded(z: FloatArray, service: Service, used: IntArray, playing: Player) -> Opportunity:
    """Parameters of a point of the search; 0 is usual."""
    kind, scale = playing.kind, np.exp(np.clip(z, -8.0, 8.0))
    kinds, classes = int(kind.max()) + 1, len(used)
    price, convexity = scale[:kinds], scale[kinds : 2 * kinds]
    rest = scale[2 * kinds :]
    worth, patience_s = np.zeros(service.variants), np.full(service.variants, playing.usual_s)
    worth[used] = (service.accuracy[used] + WORTH) * np.exp(-np.exp(-2.0) * rest[:classes])
    patience_s[used] *= rest[classes : 2 * classes]
    return Opportunity(
        price=_rounded(PRICE * price[kind]),
        convexity=_rounded(CONVEXITY * convexity[kind]),
        worth=_rounded(worth),
        patience_s=_rounded(np.maximum(patience_s, 1e-6)),
        bonus=round(BONUS * float(rest[-2]), 6),
        crowding=round(CROWDING * float(rest[-1]), 6),
    )


def _rounded(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(f"{x:.6g}") for x in values)


def minimised(
    loss: Callable[[FloatArray, float], float],
    size: int,
    evaluations: int,
    seed: int = 0,
    deadline_s: float = np.inf,
    report: Callable[[float], None] = lambda share: None,
) -> FloatArray:
    """Near the minimum of a noisy function of `size` numbers, by CMA-ES from 0.

    Rank-one and rank-mu updates and the usual constants of arXiv:1604.00772, table 1. The mean of
    the last generation is returned, which is less fitted to noise than its best point. The loss is
    also given the share of generations that are over, as is `report`, once in each.
    """
    rng, n = np.random.default_rng(seed), size
    many = 4 + int(3 * np.log(n))
    best = many // 2
    weights = np.log(best + 0.5) - np.log(np.arange(1, best + 1))
    weights /= weights.sum()
    mass = 1.0 / float((weights**2).sum())
    c_path = (4 + mass / n) / (n + 4 + 2 * mass / n)
    c_step = (mass + 2) / (n + mass + 5)
    c_one = 2 / ((n + 1.3) ** 2 + mass)
    c_many = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
    usual = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    mean, spread, covariance = np.zeros(n), SPREAD, np.eye(n)
    path, step = np.zeros(n), np.zeros(n)
    generations = max(1, evaluations // many)
    for generation in range(generations):
        if time.perf_counter() > deadline_s:
            break
        report(generation / generations)
        squares, axes = np.linalg.eigh(covariance)
        lengths = np.sqrt(np.maximum(squares, 1e-12))
        moves = (rng.standard_normal((many, n)) * lengths) @ axes.T
        losses = [loss(mean + spread * move, generation / generations) for move in moves]
        chosen = moves[np.argsort(losses, kind="stable")[:best]]
        move = weights @ chosen
        mean = mean + spread * move
        # The move in coordinates in which the covariance is one: its length says whether steps
        # agree.
        whitened = axes @ ((axes.T @ move) / lengths)
        step = (1 - c_step) * step + np.sqrt(c_step * (2 - c_step) * mass) * whitened
        length = float(np.linalg.norm(step))
        expected = np.sqrt(1 - (1 - c_step) ** (2 * (generation + 1)))
        # Hold the path back while steps are still too long (h_sigma).
        moving = length / expected < (1.4 + 2 / (n + 1)) * usual
        path = (1 - c_path) * path + moving * np.sqrt(c_path * (2 - c_path) * mass) * move
        covariance = (
            (1 - c_one - c_many) * covariance
            + c_one * np.outer(path, path)
            + c_many * (chosen.T * weights) @ chosen
        )
        spread *= float(np.exp(c_step / (1 + c_step) * (length / usual - 1)))
    return mean
