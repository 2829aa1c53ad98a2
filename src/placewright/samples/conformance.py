"""Tiny problems of wing 3, named and random ones, for the conformance kit and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.samples.plan import SamplePlan, check_plan
from placewright.samples.problem import Batches, Duplex, Overlap, Ports, SampleProblem

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_plan", "random_problems", "random_tiny", "same_plan", "tiny", "tiny_instances"]


def tiny(samples: Any, **changes: Any) -> SampleProblem:
    """Nodes with these samples, each a tenth of a second per sample, links of 0.05 s."""
    held = np.array(samples)
    held = held[:, None] if held.ndim == 1 else held
    n = len(held)
    pair = np.full((n, n), 0.05)
    np.fill_diagonal(pair, np.inf)
    usual: dict[str, Any] = {
        "node_names": tuple(f"n{i}" for i in range(n)),
        "class_names": tuple(f"c{k}" for k in range(held.shape[1])),
        "samples": held,
        "seconds_per_sample": np.full(n, 0.1),
        "send_s": pair,
        "receive_s": changes.get("send_s", pair),
        "latency_s": np.zeros((n, n)),
        "storage": np.full(n, np.inf),
        "keep": np.zeros_like(held),
        "price_s": np.zeros((n, n)),
        "fixed_s": np.zeros(n),
    }
    return SampleProblem(**usual | changes)


def random_tiny(seed: int, **changes: Any) -> SampleProblem:
    """Three nodes, a few samples, every option of a problem at random."""
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 2, (3, 1)) + np.array([[3], [0], [0]])
    pair = rng.uniform(0.01, 0.3, (3, 3))
    pair[2, 0] = np.inf if rng.random() < 0.3 else pair[2, 0]
    np.fill_diagonal(pair, np.inf)
    usual: dict[str, Any] = {
        "seconds_per_sample": rng.uniform(0.05, 0.4, 3),
        "send_s": pair,
        "receive_s": np.where(np.isfinite(pair), pair * rng.uniform(0.5, 1.0, (3, 3)), np.inf),
        "storage": np.where(rng.random(3) < 0.3, float(held.max() + 1), np.inf),
        "keep": np.minimum(held, rng.integers(0, 2, (3, 1))),
        "price_s": rng.uniform(0, 0.05, (3, 3)) * (rng.random() < 0.5),
        "fixed_s": rng.uniform(0, 0.1, 3),
        "epochs": int(rng.integers(1, 3)),
        "sync_s": float(rng.uniform(0, 0.1)),
        "overlap": rng.choice(list(Overlap)),
        "duplex": rng.choice(list(Duplex)),
        "batches": rng.choice(list(Batches)),
        "relay": bool(rng.random() < 0.4),
    }
    return tiny(held, **usual | changes)


def tiny_instances() -> Mapping[str, SampleProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    cut = np.full((3, 3), 0.05)
    np.fill_diagonal(cut, np.inf)
    cut[0, 1] = np.inf
    found = {
        "one-node": tiny([3]),
        "balanced": tiny([4, 4]),
        "all-on-one": tiny([20, 0, 1]),
        "nothing-may-move": tiny([6, 1], keep=np.array([[6], [1]])),
        "full-storage": tiny([6, 2], storage=np.array([np.inf, 2.0])),
        "missing-link": tiny([9, 0, 0], send_s=cut),
        "relay": tiny([9, 0, 0], send_s=cut, relay=True),
        "queued-ports": tiny([9, 1, 5], ports=Ports.QUEUED),
        "classes": tiny([[4, 0], [0, 4]], label_mix=0.25),
        "priced": tiny([8, 0], price_s=np.array([[0.0, 9.0], [9.0, 0.0]])),
    }
    return {name: problem.replace(sample_bytes=1024.0) for name, problem in found.items()}


def random_problems() -> SearchStrategy[SampleProblem]:
    """Three nodes with every limit, overlap and batch mode."""
    from hypothesis import strategies

    return strategies.builds(random_tiny, strategies.integers(0, 2**32 - 1))


def same_plan(plan: SamplePlan, other: SamplePlan) -> bool:
    """Whether the same samples move from where to where, in the same order."""
    keys = ("source", "target", "count", "sample_class")
    return all(np.array_equal(getattr(plan, key), getattr(other, key)) for key in keys)
