"""Problems so small that every plan can be tried, and the trying of every plan."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem


def tiny(samples: Any, **said: Any) -> SampleProblem:
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
        "receive_s": said.get("send_s", pair),
        "latency_s": np.zeros((n, n)),
        "storage": np.full(n, np.inf),
        "keep": np.zeros_like(held),
        "price_s": np.zeros((n, n)),
        "fixed_s": np.zeros(n),
    }
    return SampleProblem(**usual | said)


def random_tiny(seed: int, **said: Any) -> SampleProblem:
    """Three nodes, a few samples, everything that a problem can say at random."""
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
    return tiny(held, **usual | said)


@cache
def best_of(seed: int) -> float:
    """The least value of all plans of `random_tiny`."""
    return best_value(random_tiny(seed))


def best_value(problem: SampleProblem) -> float:
    """The least value of all plans of whole samples; ``inf`` where none fits. Own formulas."""
    p = problem
    linked = np.argwhere(np.isfinite(p.send_s))
    columns = [(i, j, c) for i, j in linked.tolist() for c in range(p.k)]
    tops = [int(p.samples[:, c].sum() if p.relay else p.samples[i, c]) for i, _, c in columns]
    grid = np.indices([top + 1 for top in tops]).reshape(len(tops), -1).T
    flow = np.zeros((len(grid), p.n, p.n, p.k))
    for column, (i, j, c) in enumerate(columns):
        flow[:, i, j, c] = grid[:, column]
    leaving, arriving = flow.sum(axis=2), flow.sum(axis=1)
    held = p.samples + arriving - leaving
    left = held - p.keep if p.relay else p.samples - p.keep - leaving
    fits = (left >= 0).all(axis=(1, 2)) & (held.sum(axis=2) <= p.storage).all(axis=1)
    if np.isfinite(p.label_mix):
        share, total = p.samples.sum(axis=0) / p.samples.sum(), held.sum(axis=2, keepdims=True)
        off = np.abs(held - share * total)
        fits &= (off <= p.label_mix * total + 1).all(axis=(1, 2))
    moved = flow.sum(axis=3)
    out_s = (moved * np.where(np.isfinite(p.send_s), p.send_s, 0)).sum(axis=2)
    in_s = (moved * np.where(np.isfinite(p.receive_s), p.receive_s, 0)).sum(axis=1)
    price = (moved * p.price_s).sum(axis=(1, 2))
    value = _value(p, out_s, in_s, held.sum(axis=2)) + price
    return float(np.where(fits, value, np.inf).min())


def _value(p: SampleProblem, out_s: Any, in_s: Any, held: Any) -> Any:
    moved = np.maximum(out_s, in_s) if p.duplex is Duplex.FULL else out_s + in_s
    rate = p.epochs * p.seconds_per_sample
    if p.batches is Batches.EQUAL:
        epoch = _steps_s(rate, held)
        trained = np.broadcast_to(epoch[:, None] + p.epochs * p.fixed_s.max(), moved.shape)
    else:
        trained = rate * held + p.epochs * p.fixed_s
    sync = p.epochs * p.sync_s
    if p.overlap is Overlap.HIDDEN:
        return np.maximum(moved, trained).max(axis=1) + sync
    if p.overlap is Overlap.STAGGERED and p.batches is Batches.PROPORTIONAL:
        return (moved + trained).max(axis=1) + sync
    return moved.max(axis=1) + trained.max(axis=1) + sync


def _steps_s(rate: Any, held: Any) -> Any:
    """Step after step: as slow as the slowest that still has a sample."""
    steps = range(int(held.max()))
    return sum(
        (np.where(held > step, rate, 0.0).max(axis=1) for step in steps), np.zeros(len(held))
    )
