"""Tiny problems of wing 2, named and random ones, for the conformance kit and for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.layers.plan import LayerPlan, Strategy, check_plan
from placewright.layers.problem import LayerProblem, Refusal, Training
from placewright.layers.workers import Link

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_plan", "random_problems", "random_tiny", "same_plan", "tiny", "tiny_instances"]


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
        "slow-link": tiny([1.0, 1.0], 2, links=(Link.linear(0.5, 1.0),)),
        "no-link": tiny([1.0, 1.0], 2, link_index=[[0, -1], [-1, 0]]),
        "tied": tiny([1.0] * 3, 2, tied=((0, 2),)),
        "unknown-memory": tiny([1.0] * 3, 2, activation_bytes=np.full((3, 2), math.nan)),
    }
    return {name: problem.replace(name=name) for name, problem in found.items()}


def random_problems() -> SearchStrategy[LayerProblem]:
    """Layers and workers with every option."""
    from hypothesis import strategies

    return strategies.builds(random_tiny, strategies.integers(0, 2**32 - 1))


def same_plan(plan: LayerPlan, other: LayerPlan) -> bool:
    """Whether two plans are equal."""
    return plan == other
