"""Tiny problems of wing 2 and its families, for the conformance kit and for tests."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.cluster import devices
from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.model import LanguageModel, Layer
from placewright.layers.devicemap.problem import MapProblem
from placewright.layers.flow import problem as flow
from placewright.layers.flow.problem import FlowProblem
from placewright.layers.halda import problem as halda
from placewright.layers.halda.problem import Gpu, RingDevice, RingModel, RingProblem
from placewright.layers.plan import Strategy, check_plan
from placewright.layers.problem import LayerProblem, Refusal, Training
from placewright.layers.workers import Link

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class TinyProblems:
    """What the conformance kit asks of a family (`placewright.planning.wing.Conformance`).

    Attributes
    ----------
    random
        A problem by its seed.
    named, check
        `tiny_instances` and `check_plan`.
    """

    random: Callable[[int], Any]
    named: Callable[[], Mapping[str, Any]]
    check: Callable[[Any, Any], object]

    def tiny_instances(self) -> Mapping[str, Any]:
        """The cases that planners get wrong, each as small as it can be."""
        return self.named()

    def random_problems(self) -> SearchStrategy[Any]:
        """Problems with every option."""
        from hypothesis import strategies

        return strategies.builds(self.random, strategies.integers(0, 2**32 - 1))

    def check_plan(self, problem: Any, plan: Any) -> None:
        """Raise where the plan is none of this problem."""
        self.check(problem, plan)

    def same_plan(self, plan: Any, other: Any) -> bool:
        """Whether two plans are equal."""
        return bool(plan == other)


def tiny(times: Any, workers: int = 2, nodes: int | None = None, **changes: Any) -> LayerProblem:
    """Layers that take these seconds per sample forward, twice that backward, on equal workers.

    Each worker is a node of its own unless `nodes` says how many there are; half the time at
    tensor degree 2; a transfer takes a tenth of a second per sample.
    """
    one = np.array(times, dtype=np.float64)
    n, nodes = len(one), workers if nodes is None else nodes
    forward = np.stack([one, one / 2])[None, :, None, :]
    node = np.arange(workers) * nodes // workers
    index = np.zeros((nodes, nodes), dtype=np.int64)
    usual: dict[str, Any] = {
        "layer_names": tuple(f"l{i}" for i in range(n)),
        "layer_kinds": ("linear",) * n,
        "degrees": (1, 2),
        "parameters": np.stack([np.full(n, 8.0), np.full(n, 4.0)], axis=1),
        "output_bytes": np.full((n, 2), 10.0),
        "activation_bytes": np.stack([np.full(n, 20.0), np.full(n, 10.0)], axis=1),
        "sizes": np.ones(1),
        "forward_s": forward,
        "backward_s": 2 * forward,
        "tensor_bytes": np.full((n, 2), 10.0),
        "worker_names": tuple(f"w{i}" for i in range(workers)),
        "worker_node": node,
        "node_names": tuple(f"n{i}" for i in range(nodes)),
        "links": (Link.linear(100.0, 0.01),),
        "link_index": index,
        "global_batch": 4,
        "name": "tiny",
    }
    return LayerProblem(**usual | changes)


def random_tiny(seed: int, **changes: Any) -> LayerProblem:
    """Up to five layers and four workers of two kinds, every option at random."""
    rng = np.random.default_rng(seed)
    n, w = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    one = rng.uniform(0.01, 1.0, n)
    kinds = rng.uniform(0.3, 1.0, 2)
    sizes = np.array([1.0, 4.0])
    grow = np.array([1.0, rng.uniform(1.5, 4.0)])
    split = np.array([1.0, rng.uniform(0.5, 0.9)])
    forward = kinds[:, None, None, None] * split[None, :, None, None]
    forward = forward * grow[None, None, :, None] * one
    nodes = int(rng.integers(1, w + 1))
    memory = np.where(rng.random(w) < 0.3, rng.uniform(200, 900, w), np.inf)
    usual: dict[str, Any] = {
        "parameters": np.stack([p := rng.uniform(0, 20, n), p / 2], axis=1),
        "output_bytes": np.repeat(rng.uniform(1, 30, (n, 1)), 2, axis=1),
        "activation_bytes": np.stack([a := rng.uniform(1, 60, n), a / 2], axis=1),
        "sizes": sizes,
        "forward_s": forward,
        "backward_s": forward * rng.uniform(1.0, 2.5),
        "tensor_bytes": rng.uniform(0, 20, (n, 2)),
        "worker_kind": rng.integers(0, 2, w),
        "kind_names": ("fast", "slow"),
        "memory_bytes": memory,
        "links": (Link.linear(float(rng.uniform(20, 500)), float(rng.uniform(0, 0.05))),),
        "global_batch": int(rng.choice([2, 4, 6])),
        "optimizer_s": rng.uniform(0, 1e-3, 2),
        "zero_stages": (0, 1, 3) if rng.random() < 0.4 else (0,),
        "recompute": bool(rng.random() < 0.4),
        "tied": ((0, n - 1),) if n > 2 and rng.random() < 0.3 else (),
        "refusals": (Refusal(0, Strategy.TENSOR, "odd heads"),) if rng.random() < 0.3 else (),
        "training": Training(
            overlap_sync=bool(rng.random() < 0.5), blocking_transfers=bool(rng.random() < 0.3)
        ),
    }
    return tiny(one, w, nodes, **usual | changes)


def tiny_instances() -> Mapping[str, LayerProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    slow = np.array([[[[1.0, 1.0]]], [[[5.0, 5.0]]]])
    both = np.concatenate([slow, slow / 2], axis=1)
    found = {
        "one-layer": tiny([1.0], 1),
        "one-heavy-layer": tiny([0.1, 3.0, 0.1], 2),
        "more-workers-than-layers": tiny([1.0, 1.0], 4, 2),
        "slow-worker": tiny(
            [1.0, 1.0],
            2,
            forward_s=both,
            backward_s=both,
            kind_names=("fast", "slow"),
            worker_kind=[0, 1],
        ),
        "no-room-on-one": tiny([1.0] * 4, 2, memory_bytes=[300.0, 300.0]),
        "no-room": tiny([1.0] * 2, 2, memory_bytes=[10.0, 10.0]),
        "no-memory-on-one": tiny([1.0] * 2, 2, 1, memory_bytes=[1000.0, 0.0]),
        "slow-link": tiny([1.0, 1.0], 2, links=(Link.linear(0.5, 1.0),)),
        "no-link": tiny([1.0, 1.0], 2, link_index=[[0, -1], [-1, 0]]),
        "tied": tiny([1.0] * 3, 2, tied=((0, 2),)),
        "unknown-memory": tiny([1.0] * 3, 2, activation_bytes=np.full((3, 2), math.nan)),
    }
    return {name: problem.replace(name=name) for name, problem in found.items()}


def tiny_flow(layers: int, tables: Any, links: Any = None, **changes: Any) -> FlowProblem:
    """Machines with these tokens/s of 1, 2, ... layers; all linked at 100 tokens/s."""
    n = len(tables)
    rates = np.zeros((n, 1 + max(len(table) for table in tables)))
    for i, table in enumerate(tables):
        rates[i, 1 : 1 + len(table)] = table
    usual: dict[str, Any] = {
        "layers": layers,
        "node_names": tuple(f"m{i}" for i in range(n)),
        "node_types": ("gpu",) * n,
        "rates": rates,
        "links": all_linked(n, 100.0) if links is None else links,
        "latency_s": np.zeros((n + 2, n + 2)),
        "name": "tiny",
    }
    return FlowProblem(**usual | changes)


def all_linked(n: int, rate: float) -> Any:
    """Links between all machines, and between them and the coordinator."""
    links = np.full((n + 2, n + 2), rate)
    np.fill_diagonal(links, 0.0)
    links[n + 1, :] = links[:, n] = links[n, n + 1] = 0.0
    return links


def random_flow(seed: int) -> FlowProblem:
    """Up to four machines of two types and five layers, some links missing or slow."""
    rng = np.random.default_rng(seed)
    n, layers = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    kinds = [rng.integers(1, 20, int(rng.integers(1, layers + 1))).tolist() for _ in range(2)]
    links = all_linked(n, 1.0) * rng.choice([0.0, 3.0, 10.0, 50.0], (n + 2, n + 2))
    tables = [kinds[k] for k in rng.integers(0, 2, n)]
    return tiny_flow(layers, tables, links, partial_inference=bool(rng.random() < 0.4))


def flow_instances() -> Mapping[str, FlowProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    broken = all_linked(2, 100.0)
    broken[0, 1] = broken[1, 0] = 0.0
    return {
        "one-machine": tiny_flow(2, [[9, 5]]),
        "a-chain": tiny_flow(4, [[9, 5], [9, 5]]),
        "side-by-side": tiny_flow(1, [[5], [7]]),
        "more-layers-are-faster": tiny_flow(4, [[9, 2, 6], [4]]),
        "too-few": tiny_flow(5, [[9, 5], [9, 5]]),
        "no-link-between": tiny_flow(4, [[9, 5], [9, 5]], broken),
        "a-slow-link": tiny_flow(4, [[9, 5], [9, 5]], all_linked(2, 3.0)),
        "partial": tiny_flow(3, [[9, 8], [9, 7]], partial_inference=True),
        "no-memory": tiny_flow(1, [[], [4]]),
    }


def ring_model(layers: int, **changes: Any) -> RingModel:
    """Layers of 100 bytes and 50 FLOPs."""
    usual: dict[str, Any] = {
        "name": "model",
        "num_layers": layers,
        "layer_bytes": 100.0,
        "input_bytes": 40.0,
        "output_bytes": 20.0,
        "vocabulary": 10,
        "kv_heads": 2,
        "kv_head_dim": 2,
        "kv_tokens": 4,
        "layer_flops": 50.0,
        "output_flops": 10.0,
    }
    return RingModel(**usual | changes)


def ring_device(name: str, os: str = "linux", gpu_bytes: float = 0.0, **changes: Any) -> RingDevice:
    """A device with 400 bytes of RAM; with a GPU if that has memory."""
    api = "metal" if os.startswith("mac") else "cuda"
    gpu = None
    if gpu_bytes:
        gpu = Gpu(api=api, flops_per_s=500.0, bytes_per_s=2000.0, memory_bytes=gpu_bytes)  # type: ignore[arg-type]
    usual: dict[str, Any] = {
        "name": name,
        "os": os,
        "is_head": name == "d0",
        "unified_memory": os.startswith("mac"),
        "cpu_flops_per_s": 100.0,
        "cpu_bytes_per_s": 1000.0,
        "ram_bytes": 400.0,
        "disk_bytes_per_s": 200.0,
        "gpu": gpu,
        "hop_s": 0.05,
        "swappable_bytes": 150.0,
        "swap_free_bytes": 120.0,
    }
    return RingDevice(**usual | changes)


def tiny_ring(layers: int, *devices: RingDevice, **changes: Any) -> RingProblem:
    """A ring of these devices, the first one, ``d0``, its head."""
    usual: dict[str, Any] = {"model": ring_model(layers), "devices": devices, "name": "tiny"}
    return RingProblem(**usual | changes)


def random_ring(seed: int) -> RingProblem:
    """Up to three devices of all kinds, and up to eight layers that need not fit."""
    rng = np.random.default_rng(seed)
    kinds = ("mac_metal", "mac_no_metal", "linux", "android", "windows")
    found = []
    for k in range(int(rng.integers(1, 4))):
        kind = str(rng.choice(kinds))
        gpu = float(rng.choice([0.0, 150.0, 400.0, 900.0])) if kind != "mac_no_metal" else 0.0
        found.append(
            ring_device(
                f"d{k}",
                kind,
                gpu,
                ram_bytes=float(rng.choice([0.0, 200.0, 700.0])),
                disk_bytes_per_s=float(rng.choice([50.0, 500.0])),
                cpu_bytes_per_s=float(rng.choice([300.0, 3000.0])),
                hop_s=float(rng.choice([0.0, 0.3])),
                ram_to_vram_s=0.02,
                gpu_buffer_bytes=float(rng.choice([0.0, 30.0])),
            )
        )
    caches = ("4bit", "8bit", "fp16")
    return tiny_ring(int(rng.integers(1, 9)), *found, kv_cache=str(rng.choice(caches)))


def ring_instances() -> Mapping[str, RingProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    return {
        "one-device": tiny_ring(4, ring_device("d0")),
        "one-layer": tiny_ring(1, ring_device("d0")),
        "too-large": tiny_ring(8, ring_device("d0", "mac_metal", 300.0)),
        "two-macs": tiny_ring(
            8, ring_device("d0", "mac_metal", 300.0), ring_device("d1", "mac_metal", 900.0)
        ),
        "more-devices-than-layers": tiny_ring(2, *(ring_device(f"d{k}") for k in range(3))),
        "a-gpu-beside-ram": tiny_ring(6, ring_device("d0", "linux", 250.0)),
        "all-kinds": tiny_ring(
            8,
            ring_device("d0", "mac_no_metal"),
            ring_device("d1", "android"),
            ring_device("d2", "linux", 400.0),
            ring_device("d3", "mac_metal", 400.0),
        ),
    }


def random_map(seed: int) -> MapProblem:
    """Up to five layers, tied or not, on up to four devices, alike or not, some with disks."""
    r = random.Random(seed)
    first = r.randint(30, 100)
    layers = [Layer("embed", ("e",), first, workspace=2)]
    for k in range(r.randint(1, 3)):
        size = r.randint(20, 100)
        block: dict[str, Any] = {"matrices": size, "multiplied": size}
        block |= {"cache_width": r.randint(0, 8), "window": r.choice([0, 5])}
        block |= {"state_width": 12 * (seed % 4 == 2)}
        block |= {"workspace": r.randint(1, 9), "attention_width": 8}
        layers.append(Layer(f"block {k}", (f"b{k}",), size, **block))
    tied = r.choice(["", "embed"])
    layers.append(
        Layer("head", ("h",), first, multiplied=first, workspace=9, prompt_share=0.0, tied=tied)
    )
    m, alike = r.randint(2, 4), r.random() < 0.4
    return MapProblem(
        LanguageModel("m", "none", tuple(layers), 8),
        _map_cluster(r, m, alike=alike),
        context=10,
        users=r.randint(1, 5),
        prompt=5,
        memory_share=1.0,
        objective="latency" if r.random() < 0.5 else "throughput",
    )


def _map_cluster(r: random.Random, m: int, *, alike: bool) -> Cluster:
    most, some = (450, (50.0, 90.0)) if r.random() < 0.5 else (900, (None,))

    def device(name: str) -> Device:
        return Device(
            name,
            node=f"node-{name}",
            launch_overhead_s=0.0,
            memory_bytes=r.randint(most // 2, most),
            peak_flops=r.uniform(1e3, 1e4),
            memory_bandwidth=r.uniform(1e2, 1e3),
            disk_bandwidth=r.choice(some),
        )

    names = [f"d{d}" for d in range(m)]
    one = device("one")
    made = tuple(replace(one, name=n, node=n) if alike else device(n) for n in names)
    links = tuple(
        devices.Link(a, b, 30.0, 0.1)
        if alike
        else devices.Link(a, b, r.uniform(10, 100), r.uniform(0, 0.5))
        for a, b in itertools.permutations(names, 2)
        if alike or r.random() < 0.9
    )
    return Cluster(made, links)


def map_instances() -> Mapping[str, MapProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    found = {f"random-{seed}": random_map(seed) for seed in (0, 2, 5, 8, 9, 10)}
    one = random_map(0)
    alone = Cluster((Device("d0", memory_bandwidth=1e3, peak_flops=1e4),))
    return found | {
        "one-device": one.replace(cluster=alone),
        "too-large": one.replace(context=100_000, memory_share=0.01),
    }


LAYERS: TinyProblems = TinyProblems(random_tiny, tiny_instances, check_plan)
FLOW: TinyProblems = TinyProblems(random_flow, flow_instances, flow.check_plan)
HALDA: TinyProblems = TinyProblems(random_ring, ring_instances, halda.check_plan)
DEVICE_MAP: TinyProblems = TinyProblems(random_map, map_instances, judge)
