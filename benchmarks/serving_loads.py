"""Compare served requests on heterogeneous servers with the simulation of the same requests.

python benchmarks/serving_loads.py                    # Poisson arrivals
python benchmarks/serving_loads.py --arrivals FILE    # times of a trace, e.g. Azure's of 2023

The family has convolutional networks of three sizes for images of 48 x 48 pixels with random
weights: their accuracy is declared, their time is real, and large enough that HTTP is not what is
measured. Speeds add up to one core: the other is left to the HTTP server and the client.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

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
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    constants: list[Any] = []
    nodes: list[Any] = []

    def constant(shape: tuple[int, ...]) -> str:
        value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        constants.append(numpy_helper.from_array(value.astype(np.float32), f"w{len(constants)}"))
        return str(constants[-1].name)

    value, before = "image", 3
    for k in range(layers):
        weights = constant((channels, before, 3, 3))
        nodes.append(
            helper.make_node(
                "Conv", [value, weights], [f"c{k}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        value, before = f"r{k}", channels
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    nodes.append(helper.make_node("Gemm", ["flat", constant((10, channels))], ["y"], transB=1))
    side = PIXELS
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 10])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def rows(results: list[LoadResult], arrivals: str, engine: str) -> str:
    """Rows of the Markdown table."""
    return "\n".join(row(result, arrivals, engine) for result in results)


def row(r: LoadResult, arrivals: str, engine: str) -> str:
    """A load; its policy is known, and so what is predicted."""
    predicted, replayed, effective = (
        each or 0.0
        for each in (r.predicted_success, r.replayed_success, r.predicted_effective_accuracy)
    )
    return (
        f"| {engine} | {arrivals} | {r.load:g} | {r.rate_per_s:.0f} | {100 * r.success:.2f} | "
        f"{100 * predicted:.2f} | {100 * (r.success - predicted):+.2f} | {100 * replayed:.2f} | "
        f"{r.effective_accuracy:.4f} | {effective:.4f} | "
        f"{r.overhead_p50_ms:.2f} | {r.overhead_p99_ms:.2f} | {r.sent_late_p99_ms:.2f} |"
    )


def main() -> None:
    """Print the rows of the table, and the machine's load before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--load", type=float, action="append")
    parser.add_argument("--duration", type=float, default=20.0)
    parser.add_argument("--deadlines", type=float, default=8.0, help="times 40 to 600 ms")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--json", type=Path, help="write all numbers")
    args = parser.parse_args()
    options = ServingOptions(
        port=0,
        engine=args.engine,
        policy=PlannedPolicy(named_policy(args.policy)),
        log=args.log,
    )
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.2f}")
    traffic = Traffic(args.arrivals, args.duration, args.deadlines, args.seed)
    loads = args.load or [0.5, 0.8, 1.1]
    results = run_loads([family()], SERVERS, options, loads, traffic, note=print)
    name = args.arrivals if args.arrivals in ("poisson", "mmpp") else "trace"
    print(rows(results, name, args.engine))
    print(f"load average after: {os.getloadavg()[0]:.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps([r.as_json() for r in results], indent=1))


if __name__ == "__main__":
    main()
