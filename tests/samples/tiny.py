"""Tiny problems of samples, and the enumeration of all their plans."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from placewright.samples.conformance import random_tiny, tiny
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem

__all__ = ["best_of", "best_value", "random_tiny", "tiny"]


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
