"""Prices of machine time against the dual of the fluid program."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from placewright.requests.policies.prices import LEAST_FREE, Market, adjust_prices

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
