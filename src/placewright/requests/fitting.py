"""The parameters of `opportunity`, found by simulation on generated arrivals.

A compiled simulation (`play`) says what parameters earn on streams of the problem's rate and mix;
CMA-ES (Hansen, arXiv:1604.00772) improves them. What is maximised is the mean effective accuracy of
the streams less what success falls short of what is asked for in each kind of arrivals, which
weighs more than accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.requests.policies.opportunity import (
    LOOKED_AT,
    Opportunity,
    Tables,
    choose,
    classify,
)
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.service import Service

COARSE, FINE = 2, 0.3
"""Pairs of streams on which parameters are tried, and the share of trials that is made on all."""

SPREAD = 0.5
"""First standard deviation of parameters, which are logarithms."""

PRICE, CONVEXITY, WORTH, BONUS, CROWDING = 0.12, 0.006, 0.3, 0.2, 0.15
"""Where the search begins; `worth` is below accuracy + WORTH by a share."""

WAITING = 1 << 12
"""Requests that wait at most in `play`; more are lost."""


@njit_no_refcount
def play(
    arrival_s: FloatArray,
    due_s: FloatArray,
    class_of: IntArray,
    noise: FloatArray,
    latency_s: FloatArray,
    quick_s: FloatArray,
    kind: IntArray,
    resident: BoolArray,
    planned_s: FloatArray,
    load_s: FloatArray,
    least_s: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    linear: FloatArray,
    square: FloatArray,
    worth: FloatArray,
    patience_s: FloatArray,
    bonus: float,
    crowding: float,
    order: IntArray,
    idle: BoolArray,
    open_s: FloatArray,
    end_s: FloatArray,
    expected_s: FloatArray,
    gain: FloatArray,
    value: FloatArray,
    server_of: IntArray,
    variant_of: IntArray,
    earned: FloatArray,
) -> None:
    """Simulate the policy; write the accuracy of each request, 0 where it fails.

    The same events as `placewright.requests.simulation`, with all variants loaded.

    Parameters
    ----------
    latency_s
        The link included; `planned_s` is what the policy plans with.
    quick_s
        Shape (variants,): least seconds of any server for each class.
    end_s, expected_s
        Scratch by server: when its batch ends, and is expected to.
    """
    n, total = len(kind), len(arrival_s)
    for i in range(n):
        end_s[i] = expected_s[i] = -1.0
    for k in range(total):
        earned[k] = 0.0
    count, following, now_s, wake_s = 0, 0, 0.0, np.inf
    while True:
        now_s = min(arrival_s[following] if following < total else np.inf, wake_s)
        busy = 0
        for i in range(n):
            if end_s[i] >= 0.0:
                now_s = min(now_s, end_s[i])
        if now_s == np.inf:
            return
        if wake_s <= now_s:
            wake_s = np.inf
        for i in range(n):
            if end_s[i] >= 0.0:
                if end_s[i] <= now_s:
                    end_s[i] = -1.0
                else:
                    busy += 1
        while following < total and arrival_s[following] <= now_s:
            if class_of[following] >= 0 and count < len(order):
                k = count
                # `order` is kept sorted by deadline; equal ones by arrival.
                while k > 0 and due_s[order[k - 1]] > due_s[following]:
                    order[k] = order[k - 1]
                    k -= 1
                order[k] = following
                count += 1
            following += 1
        if count == 0 or busy == n:
            continue
        for i in range(n):
            idle[i] = end_s[i] < 0.0
            open_s[i] = now_s if idle[i] else max(expected_s[i], now_s)
        kept = 0
        for q in range(count):
            slot = order[q]
            if now_s + quick_s[class_of[slot]] <= due_s[slot]:
                order[kept] = slot
                kept += 1
        count = kept
        looked = min(count, LOOKED_AT)
        wake_s = choose(
            now_s,
            order,
            looked,
            count,
            class_of,
            due_s,
            idle,
            open_s,
            kind,
            resident,
            False,
            planned_s,
            load_s,
            least_s,
            family,
            accuracy,
            linear,
            square,
            worth,
            patience_s,
            bonus,
            crowding,
            gain,
            value,
            server_of,
            variant_of,
        )
        for q in range(looked):
            i, v = server_of[q], variant_of[q]
            # Stays, or belongs to a batch that was started at its first member.
            if i < 0 or end_s[i] >= 0.0:
                continue
            size = 0
            for j in range(q, looked):
                size += server_of[j] == i
            end_s[i] = now_s + latency_s[i, v, size] * noise[order[q]]
            expected_s[i] = now_s + latency_s[i, v, size]
            for j in range(q, looked):
                if server_of[j] == i and end_s[i] <= due_s[order[j]]:
                    earned[order[j]] = accuracy[v]
        kept = 0
        for q in range(count):
            if q >= looked or server_of[q] < 0:
                order[kept] = order[q]
                kept += 1
        count = kept


class Player:
    """Plays generated streams of one problem with any parameters.

    `service`: of all streams.
    """

    def __init__(self, streams: Sequence[RequestProblem]) -> None:
        self.service = s = streams[0].service
        tables = Tables(s, Opportunity())
        self.streams: list[tuple[Any, ...]] = []
        for each in streams:
            class_of = np.zeros(len(each.stream), dtype=np.int64)
            every = np.arange(len(each.stream))
            stream = each.stream
            classify(every, stream.family, stream.min_accuracy, s.family, s.accuracy, class_of)
            self.streams.append(
                (stream.arrival_s.copy(), stream.due_s.copy(), class_of, noise_factors(each))
            )
        self.fixed: tuple[Any, ...] = (
            s.latency_s + s.round_trip_s[:, None, None],
            tables.least_s.min(axis=0),
            tables.kind,
            np.ones((s.servers, s.variants), dtype=np.bool_),
        )
        alone_s = self.fixed[0][:, :, 1]
        fastest_s = min(
            float(row[np.isfinite(row)].mean()) for row in alone_s if np.isfinite(row).any()
        )
        self.usual_s = 1.5 * fastest_s
        longest = max(len(each.stream) for each in streams)
        self.scratch: tuple[Any, ...] = (
            np.zeros(WAITING, dtype=np.int64),
            np.zeros(s.servers, dtype=np.bool_),
            *np.zeros((3, s.servers)),
            np.zeros(max(s.max_batch, 1)),
            np.zeros(LOOKED_AT),
            *np.zeros((2, LOOKED_AT), dtype=np.int64),
            np.zeros(longest),
        )

    def __call__(
        self, policy: Opportunity, streams: IntArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Success rate and effective accuracy by stream, of some or all."""
        t = Tables(self.service, policy)
        found = []
        for k in range(len(self.streams)) if streams is None else streams.tolist():
            stream = self.streams[k]
            earned = self.scratch[-1][: len(stream[0])]
            arguments: list[Any] = [
                *stream,
                *self.fixed,
                t.planned_s,
                t.load_s,
                t.least_s,
                t.family,
                t.accuracy,
                t.linear,
                t.square,
                t.worth,
                t.patience_s,
                policy.bonus,
                policy.crowding,
                *self.scratch[:-1],
                earned,
            ]
            play(*arguments)
            found.append(((earned > 0).mean(), earned.mean()))
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

    size = len(np.unique(playing.fixed[2])) * 2 + 2 * len(used) + 2
    found = minimised(loss, size, evaluations, seed, deadline_s, report)
    return _decoded(found, service, used, playing)


def _classes(playing: Player) -> IntArray:
    """Classes that the streams have."""
    found = np.unique(np.concatenate([class_of for _, _, class_of, _ in playing.streams]))
    return found[found >= 0]


def _decoded(z: FloatArray, service: Service, used: IntArray, playing: Player) -> Opportunity:
    """Parameters of a point of the search; 0 is usual."""
    kind, scale = playing.fixed[2], np.exp(np.clip(z, -8.0, 8.0))
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
