"""Compare served requests on heterogeneous servers with the simulation of the same requests.

python benchmarks/serving_loads.py                    # Poisson arrivals
python benchmarks/serving_loads.py --arrivals FILE    # times of a trace, e.g. Azure's of 2023

The family has convolutional networks of three sizes for images of 48 x 48 pixels with random
weights: their accuracy is declared, their time is real, and large enough that HTTP is not what is
measured. Speeds add up to one core: the other is left to the HTTP server and the client.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from harness import Table, onnx_model, run
from placewright.requests.planners import named_policy
from placewright.requests.serving.families import Family, Variant, make_family
from placewright.requests.serving.load import LoadResult, Traffic, run_loads
from placewright.requests.serving.server import PlannedPolicy, ServingOptions

SERVERS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
VARIANTS = {"small": (4, 48, 0.70), "medium": (6, 64, 0.76), "large": (9, 80, 0.80)}
"""Convolutions, channels, declared accuracy."""

PIXELS = 48


def family() -> Family:
    """The three variants."""
    variants = [Variant(name, a, _network(n, c)) for name, (n, c, a) in VARIANTS.items()]
    return make_family("images", variants)


def _network(layers: int, channels: int) -> bytes:
    """Convolutions, the mean over places, and ten numbers."""
    rng, before, lines = np.random.default_rng(0), 3, []
    weights: dict[str, np.ndarray] = {}

    def drawn(name: str, *shape: int) -> None:
        value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        weights[name] = value.astype(np.float32)

    for k in range(layers):
        drawn(f"w{k}", channels, before, 3, 3)
        value = f"r{k - 1}" if k else "image"
        lines.append(f"c{k} = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({value}, w{k})")
        lines.append(f"r{k} = Relu (c{k})")
        before = channels
    drawn("w", 10, channels)
    lines += [f"pooled = GlobalAveragePool (r{layers - 1})", "flat = Flatten (pooled)"]
    lines.append("y = Gemm <transB = 1> (flat, w)")
    ends = f"(float[rows, 3, {PIXELS}, {PIXELS}] image) => (float[rows, 10] y)"
    return onnx_model(ends, "; ".join(lines), **weights)


def cells_of(r: LoadResult) -> list[str]:
    """A load; its policy is known, and so what is predicted."""
    predicted, replayed, effective = (
        each or 0.0
        for each in (r.predicted_success, r.replayed_success, r.predicted_effective_accuracy)
    )
    shares = [f"{100 * x:.2f}" for x in (r.success, predicted)]
    shares += [f"{100 * (r.success - predicted):+.2f}", f"{100 * replayed:.2f}"]
    accuracy = [f"{x:.4f}" for x in (r.effective_accuracy, effective)]
    times = [f"{ms:.2f}" for ms in (r.overhead_p50_ms, r.overhead_p99_ms, r.sent_late_p99_ms)]
    return [f"{r.load:g}", f"{r.rate_per_s:.0f}", *shares, *accuracy, *times]


HEAD = (
    *("load", "req/s", "success %", "predicted", "difference", "replayed"),
    *("eff. accuracy", "predicted", "p50 ms", "p99 ms", "sent late, p99 ms"),
)


def main(  # noqa: PLR0913 - the options of the command line
    *,
    arrivals: str = "poisson",
    load: tuple[float, ...] = (0.5, 0.8, 1.1),
    duration: float = 20.0,
    deadlines: float = 8.0,
    engine: str = "local",
    policy: str = "auto",
    seed: int = 0,
    log: Path | None = None,
    json_: Path | None = None,
) -> None:
    """Print the table, and the machine's load before and after; `deadlines`: times 40 to 600 ms."""
    own = PlannedPolicy(named_policy(policy))
    options = ServingOptions(port=0, engine=engine, policy=own, log=log)
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.2f}")
    traffic = Traffic(arrivals, duration, deadlines, seed)
    results = run_loads([family()], SERVERS, options, list(load), traffic, note=print)
    table = Table("engine", "arrivals", *HEAD, left=2)
    for result in results:
        name = arrivals if arrivals in ("poisson", "mmpp") else "trace"
        table.row(engine, name, *cells_of(result))
    print(f"load average after: {os.getloadavg()[0]:.2f}")
    if json_ is not None:
        json_.write_text(json.dumps([r.as_json() for r in results], indent=1))


if __name__ == "__main__":
    run(main)
