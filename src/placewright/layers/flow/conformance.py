"""Tiny problems of layer ranges, for the conformance kit and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.layers.flow.problem import FlowProblem, LayerRanges, check_plan

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_plan", "random_problems", "random_tiny", "same_plan", "tiny", "tiny_instances"]


def tiny(layers: int, tables: Any, links: Any = None, **changes: Any) -> FlowProblem:
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
        "links": complete(n, 100.0) if links is None else links,
        "latency_s": np.zeros((n + 2, n + 2)),
        "name": "tiny",
    }
    return FlowProblem(**usual | changes)


def complete(n: int, rate: float) -> Any:
    """Links between all machines, and between them and the coordinator."""
    links = np.full((n + 2, n + 2), rate)
    np.fill_diagonal(links, 0.0)
    links[n + 1, :] = links[:, n] = links[n, n + 1] = 0.0
    return links


def random_tiny(seed: int) -> FlowProblem:
    """Up to four machines of two types and five layers, some links missing or slow."""
    rng = np.random.default_rng(seed)
    n, layers = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    kinds = [rng.integers(1, 20, int(rng.integers(1, layers + 1))).tolist() for _ in range(2)]
    links = complete(n, 1.0) * rng.choice([0.0, 3.0, 10.0, 50.0], (n + 2, n + 2))
    tables = [kinds[k] for k in rng.integers(0, 2, n)]
    return tiny(layers, tables, links, partial_inference=bool(rng.random() < 0.4))


def tiny_instances() -> Mapping[str, FlowProblem]:
    """The cases that planners get wrong, each as small as it can be."""
    broken = complete(2, 100.0)
    broken[0, 1] = broken[1, 0] = 0.0
    return {
        "one-machine": tiny(2, [[9, 5]]),
        "a-chain": tiny(4, [[9, 5], [9, 5]]),
        "side-by-side": tiny(1, [[5], [7]]),
        "more-layers-are-faster": tiny(4, [[9, 2, 6], [4]]),
        "too-few": tiny(5, [[9, 5], [9, 5]]),
        "no-link-between": tiny(4, [[9, 5], [9, 5]], broken),
        "a-slow-link": tiny(4, [[9, 5], [9, 5]], complete(2, 3.0)),
        "partial": tiny(3, [[9, 8], [9, 7]], partial_inference=True),
        "no-memory": tiny(1, [[], [4]]),
    }


def random_problems() -> SearchStrategy[FlowProblem]:
    """Machines and links with every option."""
    from hypothesis import strategies

    return strategies.builds(random_tiny, strategies.integers(0, 2**32 - 1))


def same_plan(plan: LayerRanges, other: LayerRanges) -> bool:
    """Whether two plans are equal."""
    return plan == other
