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

import logging
import math
import sys
import warnings
from collections.abc import Mapping
from itertools import permutations
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from harness import Table, run
from placewright import (
    Cluster,
    Context,
    Device,
    InfeasibleError,
    Link,
    OperatorPlan,
    OperatorProblem,
    capture,
    judge,
    profile,
    solve,
)
from placewright.graph.graph import Graph
from placewright.numerics.arrays import IntArray
from placewright.operators.planners.baselines import AccelerateAuto, placement
from placewright.operators.planners.chain_dp import ChainDp
from placewright.planning.contract import proposal_of

GIB = 2.0**30
PCIE, NVLINK, ETHERNET = 25e9, 300e9, 0.125e9
"""Bytes per second."""

Size = Literal["8b", "70b"]
SIZES: dict[Size, dict[str, int]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    | {"num_attention_heads": 64},
}

KINDS: Mapping[str, tuple[float, float, float]] = {
    "h100": (80, 989e12, 3.35e12),
    "a100": (80, 312e12, 2.0e12),
    "a100-40": (40, 312e12, 1.55e12),
    "4090": (24, 165e12, 1.0e12),
    "l4": (24, 121e12, 0.3e12),
    "t4": (16, 65e12, 0.32e12),
    "cpu": (512, 3e12, 0.2e12),
    "laptop": (32, 0.4e12, 0.06e12),
    "workstation": (24, 82e12, 1.0e12),
    "desktop": (12, 51e12, 0.36e12),
    "board": (8, 17e12, 0.1e12),
    "a100-24": (24, 312e12, 2.0e12),
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

    `bandwidth`: between GPUs of one node; a CPU is always reached by PCIe. `far`: by position.
    """
    devices = [device(f"{k}-{i}", k, far.get(i, "a")) for i, k in enumerate(kinds.split())]
    links = []
    for a, b in permutations(devices, 2):
        speed = bandwidth if a.kind == b.kind == "gpu" else PCIE
        if a.node == b.node:
            links.append(Link(a.name, b.name, speed, 10e-6))
        else:
            links.append(Link(a.name, b.name, ETHERNET, 100e-6, f"{a.node}->{b.node}"))
    return Cluster(tuple(devices), tuple(links), name)


CLUSTERS = {
    c.name: c
    for c in (
        cluster("two 80 GiB", "a100 a100"),
        cluster("one 80 GiB, CPU", "a100 cpu"),
        cluster("80, 40, 24 GiB", "a100 a100-40 4090"),
        cluster("four 24 GiB, CPU", "4090 4090 4090 4090 cpu"),
        cluster("24 GiB, CPU, laptop behind 1 Gbit/s", "4090 cpu laptop", far={2: "b"}),
        cluster("eight 24 GiB", "4090 " * 8),
        cluster("slow before fast, 80 GiB each", "a100 h100"),
        cluster("four 40 GiB, NVLink", "a100-40 " * 4, NVLINK),
        cluster("2 x 2 80 GiB, 1 Gbit/s between", "a100 a100 a100 a100", far={2: "b", 3: "b"}),
        cluster("CPU, two 16 GiB, 24 GiB", "cpu t4 t4 l4"),
    )
}


def llama(size: Size, tokens: int) -> tuple[nn.Module, Graph]:
    """Llama of this size without weights, and one prefill of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SIZES[size],  # type: ignore[arg-type]
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(config)
        model.to(torch.bfloat16)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    return model, capture(model, {"input_ids": ids}, name=f"llama-{size}")


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


def row(model: nn.Module, problem: OperatorProblem, seconds: float) -> tuple[list[str], bool]:
    """Cells of the table, and whether `auto` is above accelerate's map."""
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
    own = f"{100 * result.gap:.0f} %", result.planner, f"{result.runtime_s:.1f}", note
    return [*cells, f"**{result.value:.4g}**", share, *own], result.value > theirs * (1 + 1e-12)


def main(
    *clusters: str,
    seconds: float = 20.0,
    tokens: int = 512,
    models: tuple[Size, ...] = ("8b", "70b"),
) -> int:
    """The table; 1 where `auto` is above accelerate's map."""
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    ours = ("`accelerate-auto`", "`chain-dp`", "**`auto`**")
    head = ("best single", "accelerate's map", "copied", *ours, "to accelerate", "gap to bound")
    table, bad = Table("cluster", "model", *head, "won", "s", "", left=2), 0
    for size in models:
        model, graph = llama(size, tokens)
        for name in clusters or CLUSTERS:
            cells, above = row(model, profile(graph, CLUSTERS[name], method="analytic"), seconds)
            bad += above
            table.row(name, size, *cells)
    if bad:
        print(f"auto is above accelerate's map in {bad} rows", file=sys.stderr)
    return int(bad > 0)


if __name__ == "__main__":
    run(main)
