"""The load that the rolling horizon observes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from placewright.requests.policies.rolling import (
    LEAST_FREE,
    QUANTILES,
    Load,
    Market,
    Rolling,
    adjust_prices,
    quantiles,
    seconds_per_request,
)
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue
from placewright.requests.service import service_of
from placewright.requests.simulation import simulate
from placewright.requests.stream import stream_of


def load_of(arrival_s: np.ndarray, memory_s: float = Rolling().memory_s) -> Load:
    """After requests with deadlines of 0.2 s."""
    load, queue = Load(1.2, memory_s), Queue()
    tables_s = np.array([[[0.0, 0.02, 0.03], [0.0, 0.05, 0.08]]])
    family, accuracy = np.zeros(2, dtype=np.int64), np.array([0.6, 0.8])
    load.revise(tables_s, np.array([60.0]), family, accuracy)
    for k, now_s in enumerate(arrival_s.tolist()):
        slot = queue.add(k, 0, now_s, now_s + 0.2)
        load.observe(now_s, queue)
        queue.take(np.array([slot]))
    return load


def load_at(rate_per_s: float) -> Load:
    """After a second of even arrivals."""
    return load_of(np.arange(1, int(rate_per_s) + 1) / rate_per_s)


def test_the_first_second_counts_alike() -> None:
    """A burst at the start does not stay in the estimate: it is requests by seconds."""
    assert load_at(400.0).rate_per_s == pytest.approx(400.0, rel=0.05)


def test_the_rate_follows_a_burst_within_two_deadlines() -> None:
    """A queue grows as fast as that; three times the rate for 0.4 s, after ten seconds."""
    calm, burst = np.arange(4000) / 400.0, 10.0 + np.arange(480) / 1200.0
    arrival_s = np.concatenate([calm, burst])
    assert load_of(arrival_s).rate_per_s > 1000.0
    assert load_of(arrival_s, memory_s=1.0).rate_per_s < 800.0


def test_the_rate_of_few_requests_is_not_of_the_last_ones() -> None:
    """Of 5 a second a deadline of 0.2 s knows nothing: the rate is that of the last 32 or more."""
    rng = np.random.default_rng(0)
    rates = [load_of(np.cumsum(rng.exponential(0.2, 320))).rate_per_s for _ in range(20)]
    assert np.std(rates) < 0.25 * 5.0


def test_prices_rise_with_the_share_of_deadlines_that_is_waited() -> None:
    """As usual up to 6 / servers of the deadline, e-fold with each tenth beyond, then limited."""
    load = load_at(400.0)
    per_share = load.rate_per_s * 0.2  # requests that wait one deadline long
    assert load.pressure(int(0.09 * per_share)) == 1.0
    assert load.pressure(int(0.3 * per_share)) == pytest.approx(np.exp(2.0), rel=0.1)
    assert load.pressure(100 * int(per_share)) == pytest.approx(np.exp(4.0))


def test_a_burst_costs_few_requests() -> None:
    """11,700 a second for 0.3 s where 1,600 are usual: without pressure 18 % are lost, not 6 %."""
    rng = np.random.default_rng(0)
    size = np.arange(9)
    small_s, large_s = 0.004 + 0.004 * size, 0.02 + 0.02 * size
    latency_s = np.broadcast_to(np.stack([small_s, large_s]), (40, 2, 9)).copy()
    latency_s[:, :, 0] = 0.0
    names = tuple(f"s{k}" for k in range(40))
    service = service_of(names, ("small", "large"), (0.6, 0.8), latency_s)
    steady, burst = rng.uniform(0, 4, 6400), rng.uniform(1.0, 1.3, 3500)
    stream = stream_of(np.sort(np.concatenate([steady, burst])), 0.2)
    answers = simulate(RequestProblem(service, stream, 4.0), Rolling().start(service))
    in_time = answers.end_s <= stream.due_s
    assert in_time.mean() > 0.9
    assert in_time[stream.arrival_s > 2].all()


def test_seconds_per_request_as_by_definition() -> None:
    """Beside array expressions, with batches that a server cannot run."""
    rng = np.random.default_rng(0)
    tables_s = rng.uniform(0.001, 0.3, (3, 5, 9))
    tables_s[rng.random(tables_s.shape) < 0.1] = np.inf
    deadlines_s = np.sort(rng.uniform(0.01, 0.4, 12))
    per = tables_s[:, :, 1:] / np.arange(1, 9)
    cost = seconds_per_request(tables_s, deadlines_s, 0.8)
    for found, limit_s in zip(cost, deadlines_s, strict=True):
        batched = np.where(tables_s[:, :, 1:] <= limit_s * 0.8, per, np.inf).min(axis=2)
        alone = np.where(tables_s[:, :, 1] <= limit_s, tables_s[:, :, 1], np.inf)
        assert np.array_equal(found, np.minimum(batched, alone))


def test_quantiles_are_numpys() -> None:
    """To the last bit, for one value, ties and random ones."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 17, 128):
        for values in (rng.uniform(0.04, 0.6, n), rng.integers(1, 4, n) * 0.1):
            expected = np.quantile(values, QUANTILES)
            assert quantiles(values, QUANTILES).tolist() == expected.tolist()


SPEED = np.array([1.0, 0.6, 0.35, 0.2])
ACCURACY = np.array([0.7, 0.76, 0.82])
ALONE_S = np.array([0.008, 0.02, 0.05])
COST_S = np.ascontiguousarray((ALONE_S / SPEED[:, None])[None])
"""Of heterogeneous servers: one of each kind."""


def found(
    rate_per_s: float, kept_free: float = 0.0, dear: float = 1e9
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prices after many rounds, utilisation, and the minimum accuracies of the samples."""
    rng, prices, utilisation = np.random.default_rng(0), np.ones(4), np.ones(4)
    floor, none = rng.choice([0.0, 0.75, 0.8], 128), np.zeros(128, dtype=np.int64)
    families = np.zeros(3, dtype=np.int64)
    market = Market(
        prices=prices,
        servers=np.ones(4),
        dear=np.full(4, dear),
        utilisation=utilisation,
        bought_s=np.zeros(4),
        family=families,
        accuracy=ACCURACY,
        cost_s=COST_S,
        request_family=none,
        request_floor=floor,
        request_bucket=none,
        rate_per_s=rate_per_s,
        kept_free=kept_free,
    )
    adjust_prices(market, 2000, 0.02)
    return prices, utilisation, floor


@pytest.mark.parametrize("rate_per_s", [40.0, 70.0, 150.0])
def test_prices_of_unlike_servers_solve_the_dual(rate_per_s: float) -> None:
    """Their dual value is the fluid program's optimum; they do not fall to nothing in turn."""
    prices, _, floor = found(rate_per_s)
    good = floor[:, None] <= ACCURACY
    earned, seconds = np.tile(ACCURACY, 4), COST_S[0].reshape(-1)
    allowed = np.tile(good, 4)
    gain = np.where(allowed, earned - np.repeat(prices, 3) * seconds, 0.0)
    dual = gain.max(axis=1).clip(0).sum() + prices.sum() * len(floor) / rate_per_s
    n = len(floor)
    use = np.kron(np.ones((1, n)), np.kron(np.eye(4), np.ones(3)) * seconds)
    best = linprog(
        -np.tile(earned, n),
        np.vstack([np.kron(np.eye(n), np.ones(12)), use]),
        np.concatenate([np.ones(n), np.full(4, n / rate_per_s)]),
        bounds=[(0, float(ok)) for ok in allowed.reshape(-1)],
    )
    assert -best.fun <= dual * (1 + 1e-9)
    assert dual == pytest.approx(-best.fun, rel=0.01)


def test_dear_time_is_not_kept_free() -> None:
    """All that is asked for while it buys accuracy only, the least where it costs requests."""
    assert found(150.0, kept_free=0.3)[1] == pytest.approx(0.7)
    assert found(150.0, kept_free=0.3, dear=1e-3)[1] == pytest.approx(1 - LEAST_FREE)
    assert found(150.0, kept_free=0.01, dear=1e-3)[1] == pytest.approx(0.99)
