"""Compare `auto` with accelerate's device map on Llama 8B and 70B over ten clusters.

``python benchmarks/accelerate_maps.py [--seconds S] [--tokens N] [--models 8b 70b] [CLUSTER ...]``
prints a markdown table and ends with 1 where `auto` is above accelerate's map. Models are built
from their configurations on the meta device (bfloat16, one prefill, no weights), profiles are
analytic. Every value is seconds by the judge. The map is the library's own, from
``infer_auto_device_map`` under ``get_balanced_memory``, where accelerate is installed, else ours.

*copied* is what accelerate does with modules that its map has on the CPU: their weights are copied
to the first GPU in every step, and computed with there. No plan of ours can say that.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from placewright import (
    Cluster,
    Context,
    Device,
    InfeasibleError,
    Link,
    OperatorPlan,
    OperatorProblem,
    Result,
    capture,
    judge,
    profile,
    solve,
)
from placewright.numerics.arrays import IntArray
from placewright.operators.planners.baselines import AccelerateAuto, placement
from placewright.operators.planners.chain_dp import ChainDp
from placewright.planning.contract import proposal_of

GIB = 2.0**30
PCIE, NVLINK, ETHERNET = 25e9, 300e9, 1.25e9
"""Bytes per second."""

SIZES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80},
}
HEADS = {"8b": 32, "70b": 64}

KINDS: Mapping[str, tuple[float, float, float]] = {
    "h100": (80, 989e12, 3.35e12),
    "a100": (80, 312e12, 2.0e12),
    "a100-40": (40, 312e12, 1.55e12),
    "4090": (24, 165e12, 1.0e12),
    "l4": (24, 121e12, 0.3e12),
    "t4": (16, 65e12, 0.32e12),
    "cpu": (512, 3e12, 0.2e12),
    "laptop": (32, 0.4e12, 0.06e12),
}
"""GiB, FLOP/s of bfloat16 (float16 on a T4), bytes/s."""


def device(name: str, kind: str, node: str = "a") -> Device:
    """A device of one of the `KINDS`."""
    memory, flops, bandwidth = KINDS[kind]
    return Device(
        name,
        kind="cpu" if kind in ("cpu", "laptop") else "gpu",
        node=node,
        memory_bytes=memory * GIB,
        peak_flops=flops,
        memory_bandwidth=bandwidth,
    )


def cluster(name: str, kinds: str, bandwidth: float = PCIE, far: Mapping[int, str] = {}) -> Cluster:
    """Devices by their kinds; those in `far` are on another node, behind Ethernet.

    Parameters
    ----------
    bandwidth
        Between GPUs of one node; a CPU is always reached by PCIe.
    far
        Position -> node.
    """
    devices = [device(f"{k}-{i}", k, far.get(i, "a")) for i, k in enumerate(kinds.split())]
    links = []
    for a in devices:
        for b in devices:
            if a is b:
                continue
            speed = bandwidth if a.kind == b.kind == "gpu" else PCIE
            if a.node == b.node:
                links.append(Link(a.name, b.name, speed, 10e-6))
            else:
                links.append(Link(a.name, b.name, ETHERNET / 10, 100e-6, f"{a.node}->{b.node}"))
    return Cluster(tuple(devices), tuple(links), name)


CLUSTERS = {
    c.name: c
    for c in (
        cluster("two 80 GiB", "a100 a100"),
        cluster("one 80 GiB, CPU", "a100 cpu"),
        cluster("80, 40, 24 GiB", "a100 a100-40 4090"),
        cluster("four 24 GiB, CPU", "4090 4090 4090 4090 cpu"),
        cluster("24 GiB, CPU, laptop behind 1 Gbit/s", "4090 cpu laptop", far={2: "b"}),
        cluster("eight 24 GiB", "4090 4090 4090 4090 4090 4090 4090 4090"),
        cluster("slow before fast, 80 GiB each", "a100 h100"),
        cluster("four 40 GiB, NVLink", "a100-40 a100-40 a100-40 a100-40", NVLINK),
        cluster("2 x 2 80 GiB, 1 Gbit/s between", "a100 a100 a100 a100", far={2: "b", 3: "b"}),
        cluster("CPU, two 16 GiB, 24 GiB", "cpu t4 t4 l4"),
    )
}


def llama(size: str) -> nn.Module:
    """Llama of this size, without weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SIZES[size],  # type: ignore[arg-type]
        num_attention_heads=HEADS[size],
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(config)
        return model.to(torch.bfloat16)


def library_map(model: Any, problem: OperatorProblem) -> dict[str, int | str] | None:
    """The device map of accelerate itself, ``None`` where it is not installed."""
    try:
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_balanced_memory
    except ImportError:
        return None
    gpus = [d for d, kind in enumerate(problem.device_kinds) if kind != "cpu"]
    memory: dict[Any, int] = {k: int(problem.memory_bytes[d]) for k, d in enumerate(gpus)}
    names: dict[int | str, int | str] = dict(enumerate(gpus))
    if "cpu" in problem.device_kinds:
        cpu = names["cpu"] = problem.device_kinds.index("cpu")
        memory["cpu"] = int(problem.memory_bytes[cpu])
    whole = sorted(model._no_split_modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = infer_auto_device_map(model, get_balanced_memory(model, memory, whole), whole)
    return {name: names.get(d, "disk") for name, d in found.items()}


def copied(problem: OperatorProblem, place: IntArray) -> float:
    """Seconds where weights on the CPU are copied to the first GPU before they are used."""
    gpu = problem.device_kinds.index("gpu")
    moved = np.array([problem.device_kinds[d] == "cpu" for d in place])
    if not moved.any():
        return math.nan
    cpu = int(place[moved][0])
    held = problem.resident_bytes * (moved & (problem.resident_bytes > 0))
    copies = held * problem.seconds_per_byte[cpu, gpu] + (held > 0) * problem.latency_s[cpu, gpu]
    seconds = problem.compute_s.copy()
    seconds[:, gpu] += copies
    there = problem.replace(
        compute_s=seconds,
        resident_bytes=np.where(moved, 0.0, problem.resident_bytes),
        memory_bytes=np.full(problem.m, np.inf),
    )
    return judge(there, OperatorPlan(np.where(moved, gpu, place))).value


def planned(problem: OperatorProblem, planner: Any) -> float:
    """A planner's value, NaN where it has no plan that fits."""
    try:
        judgement = judge(problem, proposal_of(planner(problem, Context())).plan)
    except InfeasibleError:
        return math.nan
    return judgement.value if judgement.feasible else math.nan


def row(size: str, model: nn.Module, problem: OperatorProblem, seconds: float) -> tuple[str, bool]:
    """A line of the table, and whether `auto` is above accelerate's map."""
    ours, theirs, way, note = planned(problem, AccelerateAuto()), math.nan, math.nan, ""
    known = library_map(model, problem)
    if known is None:
        theirs, note = ours, "our map"
    elif "disk" in known.values():
        note = f"{sum(d == 'disk' for d in known.values())} modules on disk"
    else:
        assert problem.modules is not None
        found = {name: int(d) for name, d in known.items()}
        place = placement(problem, problem.modules, found)
        judgement = judge(problem, OperatorPlan(place))
        theirs, way = judgement.value, copied(problem, place)
        note = "" if judgement.feasible else "does not fit beside activations"
    result = solve(problem, time_limit_s=seconds)
    single = [c.value for c in result.candidates if c.planner.startswith("only:") and c.fits]
    values = [min(single, default=math.nan), theirs, way, ours, planned(problem, ChainDp())]
    cells = [f"{v:.4g}" if math.isfinite(v) else "-" for v in values]
    share = f"{result.value / theirs:.3f}" if math.isfinite(theirs) else "-"
    line = [size, *cells, f"**{result.value:.4g}**", share, *winner(result), note]
    return " | ".join(line), result.value > theirs * (1 + 1e-12)


def winner(result: Result) -> list[str]:
    """Gap, planner and time of `auto`."""
    return [f"{100 * result.gap:.0f} %", result.planner, f"{result.runtime_s:.1f}"]


def main() -> int:
    """The table; 1 where `auto` is above accelerate's map."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("clusters", nargs="*", default=list(CLUSTERS))
    args = parser.parse_args()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    print(
        "| cluster | model | best single | accelerate's map | copied | `accelerate-auto` | "
        "`chain-dp` | **`auto`** | to accelerate | gap to bound | won | s | |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---|"
    )
    bad = 0
    for size in args.models:
        model = llama(size)
        ids = torch.zeros(1, args.tokens, dtype=torch.long)
        graph = capture(model, {"input_ids": ids}, name=f"llama-{size}")
        for name in args.clusters:
            problem = profile(graph, CLUSTERS[name], method="analytic")
            line, above = row(size, model, problem, args.seconds)
            bad += above
            print(f"| {name} | {line} |", flush=True)
    if bad:
        print(f"auto is above accelerate's map in {bad} rows", file=sys.stderr)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
