"""Edge clouds at random, in four regimes: how uneven the nodes are, how slow the links.

Samples per node are log-normal; seconds per sample and bandwidths are log-uniform over their
spread. Each node has an access bandwidth; the link of two nodes is as fast as the slower of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import UnknownNameError
from placewright.io.arguments import checked
from placewright.samples.problem import SampleProblem, check_size

MEDIAN_SAMPLES = 1000.0
FASTEST_S_PER_SAMPLE = 0.005
SLOWEST_BYTES_PER_S = 4e6
LATENCY_S = 1e-3


@dataclass(frozen=True, slots=True)
class Regime:
    """One kind of edge cloud.

    `data_sigma`: of the logarithm of the samples per node.
    `compute_spread`, `bandwidth_spread`: largest divided by smallest.
    """

    name: str
    data_sigma: float
    compute_spread: float
    bandwidth_spread: float
    sample_bytes: int
    epochs: int


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("mild", 0.5, 2.0, 4.0, 20_000, 10),
        Regime("moderate", 0.8, 4.0, 10.0, 60_000, 10),
        Regime("heavy", 1.2, 8.0, 20.0, 150_000, 20),
        Regime("network-bound", 1.0, 4.0, 20.0, 150_000, 1),
    )
}


@checked
def generate(regime: str, nodes: int, seed: int = 0) -> SampleProblem:
    """A problem of the regime; the same seed gives the same problem.

    Raises `UnknownNameError`: no regime of this name.
    Raises `InputError`: more nodes than fit in memory, pair by pair.
    """
    check_size(nodes, where=f"{regime} cloud")
    if regime not in REGIMES:
        raise UnknownNameError("regime", regime, REGIMES)
    chosen = REGIMES[regime]
    rng = np.random.default_rng(seed)
    samples = np.maximum(1, rng.lognormal(np.log(MEDIAN_SAMPLES), chosen.data_sigma, nodes))
    seconds = FASTEST_S_PER_SAMPLE * chosen.compute_spread ** rng.random(nodes)
    access = np.rint(SLOWEST_BYTES_PER_S * chosen.bandwidth_spread ** rng.random(nodes))
    sample_s = chosen.sample_bytes / np.minimum(access[:, None], access[None, :])
    np.fill_diagonal(sample_s, np.inf)
    whole = samples.round().astype(np.int64)[:, None]
    return SampleProblem(
        node_names=tuple(f"n{i}" for i in range(nodes)),
        samples=whole,
        seconds_per_sample=seconds,
        send_s=sample_s,
        receive_s=sample_s,
        latency_s=np.full((nodes, nodes), LATENCY_S),
        storage=np.full(nodes, np.inf),
        keep=np.zeros_like(whole),
        price_s=np.zeros((nodes, nodes)),
        fixed_s=np.zeros(nodes),
        epochs=chosen.epochs,
        sample_bytes=float(chosen.sample_bytes),
        name=f"{regime}-{nodes}-{seed}",
    )
