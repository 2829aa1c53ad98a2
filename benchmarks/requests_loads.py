"""Compare request policies with the bound on four heterogeneous servers at loads of 0.5 to 1.5.

Arrivals of three kinds. Servers of speed 1, 0.6, 0.35, 0.2; variants of 8, 20, 50 ms with accuracy
0.70, 0.76, 0.82; deadlines 35 % U(40, 90), 40 % U(90, 220), 25 % U(220, 600) ms; minimum accuracy
none, 0.75, 0.80 for 50, 30, 20 %; 5 % noise. Load 1 is the rate whose cheapest acceptable variants,
alone, use all servers.

    python benchmarks/requests_loads.py --seeds 5 --duration 30 [--load 0.8] [--kind poisson]

Rows are kept by arrivals, load and seed.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Literal

import numpy as np

from harness import DATA, KeptRows, run
from placewright.numerics.arrays import FloatArray
from placewright.report.text import plain_table
from placewright.requests.bounds import bounds, refined_bounds
from placewright.requests.capacity import plan_of
from placewright.requests.judge import judge
from placewright.requests.problem import RequestProblem
from placewright.requests.readers import read_arrivals
from placewright.requests.service import Service, service_of
from placewright.requests.stream import mmpp, poisson, scaled, stream_of

TRACE = DATA / "traces" / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv"
SPEED = np.array([1.0, 0.6, 0.35, 0.2])
FIXED = np.array([0.6, 0.6, 0.3, 0.1])
BATCH = (16, 16, 8, 4)
ALONE_S = np.array([0.008, 0.020, 0.050])
ACCURACY = (0.70, 0.76, 0.82)
FLOORS, SHARES = (0.0, 0.75, 0.80), (0.5, 0.3, 0.2)
LOADS = (0.5, 0.8, 1.1, 1.5)
FULL_RATE = float(SPEED.sum() / (np.array(SHARES) @ ALONE_S))
PLANNERS = (
    "round-robin(variant='largest')",
    "shortest-queue",
    "thesis",
    "least-completion",
    "edf-fastest",
    "edf-fastest-batch",
    "slack-fit",
    "rolling",
    "selected",
)


def service() -> Service:
    """Four servers, three variants."""
    size = np.arange(max(BATCH) + 1)
    factor = FIXED[:, None] + (1 - FIXED[:, None]) * size
    latency_s = ALONE_S[None, :, None] / SPEED[:, None, None] * factor[:, None, :]
    latency_s[np.broadcast_to(size > np.array(BATCH)[:, None, None], latency_s.shape)] = np.inf
    latency_s[:, :, 0] = 0.0
    return service_of(tuple("abcd"), ("small", "medium", "large"), ACCURACY, latency_s, noise=0.05)


def problem(kind: str, load: float, seed: int, duration_s: float) -> RequestProblem:
    """The set-up with arrivals of a kind."""
    rng, rate = np.random.default_rng([seed, 7]), load * FULL_RATE
    arrival_s = _arrivals(kind, rng, rate, duration_s, seed)
    n, u = len(arrival_s), rng.random(len(arrival_s))
    ranges = (rng.uniform(0.04, 0.09, n), rng.uniform(0.09, 0.22, n), rng.uniform(0.22, 0.6, n))
    deadline_s = np.where(u < 0.35, ranges[0], np.where(u < 0.75, ranges[1], ranges[2]))
    floor = rng.choice(FLOORS, n, p=SHARES)
    stream = stream_of(arrival_s, deadline_s, min_accuracy=floor)
    return RequestProblem(service(), stream, duration_s, seed, name=f"{kind} {load:g}")


def _arrivals(
    kind: str, rng: np.random.Generator, rate: float, duration_s: float, seed: int
) -> FloatArray:
    if kind == "poisson":
        return poisson(rng, rate, duration_s)
    if kind == "mmpp":
        return mmpp(rng, rate, duration_s)
    wanted = int(rate * duration_s)
    times = read_arrivals(TRACE)
    first = (seed * wanted) % max(1, len(times) - wanted)
    found, _ = scaled(times[first : first + wanted], rate)
    return found[found < duration_s]


def numbers(kind: str, load: float, seed: int, duration_s: float) -> dict[str, list[float]]:
    """Success rate and effective accuracy of each policy, and the tightest bound."""
    p, found = problem(kind, load, seed, duration_s), {}
    for name in PLANNERS:
        judged = judge(p, plan_of(p, name, 0)[1])
        found[name] = [judged.success_rate, judged.value]
    return found | {"bound": [1.0, min((bounds(p) | dict(refined_bounds(p))).values())]}


def main(
    *,
    seeds: int = 5,
    duration: float = 60.0,
    load: tuple[float, ...] = LOADS,
    kind: tuple[Literal["poisson", "mmpp", "azure"], ...] = (),
    kept: KeptRows,
) -> None:
    """Print success % / effective accuracy, means over seeds; `selected`'s share of the bound."""
    rows: list[tuple[str, ...]] = []
    kinds: tuple[str, ...] = kind or ("poisson", "mmpp", *["azure"] * TRACE.exists())
    found: dict[tuple[str, float], list[dict[str, list[float]]]] = {}
    for seed, name, own in product(range(seeds), kinds, load):
        work = partial(numbers, name, own, seed, duration)
        row = kept.get(f"{name} {own:g}, seed {seed}, {duration:g} s", work)
        if row is not None:
            found.setdefault((name, own), []).append(row)
    for (name, own), all_seeds in found.items():
        cells = [np.array([row[p] for row in all_seeds]).mean(axis=0) for p in PLANNERS]
        bound = float(np.mean([row["bound"][1] for row in all_seeds]))
        below = sum(row["selected"][0] < row["edf-fastest"][0] for row in all_seeds)
        values = [f"{100 * success:.1f} / {value:.3f}" for success, value in cells]
        shares = f"{bound:.3f}", f"{100 * cells[-1][1] / bound:.1f} %"
        rows.append((f"{name} {own:g}", *values, *shares, f"{below} of {len(all_seeds)}"))
    header = ("arrivals", *(name.split("(")[0] for name in PLANNERS), "bound", "selected / bound")
    print("success % / effective accuracy; seeds with less success than edf-fastest")
    print(plain_table((*header, "less"), rows, " " + "r" * len(header)))


if __name__ == "__main__":
    run(main)
