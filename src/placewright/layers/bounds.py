"""What no plan of wing 2 can beat.

**work**. With a worker w, any plan gives it some layers for some samples. Whatever the tensor
degree, a worker spends on one sample of layer i at least ``c_w(i) = min over degrees t and sizes b
of (forward + backward at (t, b)) / b``, and t workers together at least ``t c`` for it. (Where
workers slow each other, times are those of one alone.) So the speeds add up: with ``r_w = 1 / min
over layers of (c_w(i) / m(i))`` and ``m(i) = min over w of c_w(i)``, the workers do at most
``T sum_w r_w`` seconds of work measured in m within T, and the step has ``G sum_i m(i)`` of it. A
single kind of worker gives ``T >= G sum_i c(i) / W``.

**sample**. One sample passes all layers one after another on a chain, in both directions: a
micro-batch has at least one sample, so T >= sum over layers of the least forward + backward time
of the smallest share that a worker can have: at most the least time of any size, at any degree.
The least is taken over what one worker of a replica takes for its share; a share of a replica
over t workers that split samples is at least 1/t sample.

**load** (throughput): the work of all layers by all devices, as above, without communication.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from placewright.layers.plan import Strategy
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import BoundContext

SUMMED = 1e-9
"""Taken off: the judge sums in another order."""


def bounds(problem: LayerProblem) -> dict[str, float]:
    """Quick lower bounds by name, seconds."""
    if problem.variants is not None:
        return {"load": _load_s(problem) * (1 - SUMMED)}
    return {
        "work": _work_s(problem) * (1 - SUMMED),
        "sample": _sample_s(problem) * (1 - SUMMED),
    }


def refined_bounds(problem: LayerProblem, known: BoundContext | None = None) -> dict[str, float]:
    """None: the planners prove the rest."""
    return {}


def least_s(p: LayerProblem) -> FloatArray:
    """Shape (K, n): least worker-seconds of both passes per sample, over degrees and sizes.

    A worker of a replica of degree t takes `b` samples for ``b / t`` of its own. Between measured
    sizes times are straight lines, below the smallest at least proportional, and above the largest
    the last slope holds: the least of time / samples is at a measured size or is that slope.
    """
    least = [_least_per_sample(p, times_s) for times_s in _tables(p)]
    return np.asarray(p.alone * np.sum(least, axis=0), dtype=np.float64)


def _tables(p: LayerProblem) -> list[FloatArray]:
    """Times of both passes together; of each, where they were measured at different sizes."""
    same = np.array_equal(np.isnan(p.forward_s), np.isnan(p.backward_s))
    return [p.forward_s + p.backward_s] if same else [p.forward_s, p.backward_s]


def _least_per_sample(p: LayerProblem, times_s: FloatArray) -> FloatArray:
    """Shape (K, n): of a table, see `least_s`."""
    degrees, sizes = np.array(p.degrees, dtype=np.float64), p.sizes
    each = times_s * degrees[None, :, None, None] / sizes[None, None, :, None]
    slopes = np.full((*times_s.shape[:2], 1, p.n), np.inf)
    for k, t in np.ndindex(*times_s.shape[:2]):
        known = np.flatnonzero(~np.isnan(times_s[k, t]).all(axis=1))
        if len(known) > 1:
            a, b = known[-2:]
            slope = (times_s[k, t, b] - times_s[k, t, a]) / (sizes[b] - sizes[a])
            slopes[k, t, 0] = np.maximum(slope * degrees[t], 0.0)
    each = np.concatenate([each, slopes], axis=2)
    allowed = np.isfinite(p.parameters).T  # (T, n)
    each = np.where(np.isnan(each) | ~allowed[None, :, None, :], np.inf, each)
    least: FloatArray = each.min(axis=(1, 2))
    return least


def _work_s(p: LayerProblem) -> float:
    used = np.unique(p.worker_kind)
    least = least_s(p)[used]
    fastest = least.min(axis=0)
    if not np.isfinite(fastest).all():
        return 0.0
    counted = fastest > 0
    if not counted.any():
        return 0.0
    with np.errstate(divide="ignore"):
        # How much faster than the fastest worker of each layer a kind can be at best: at most 1.
        rate = 1.0 / (least[:, counted] / fastest[counted]).min(axis=1)
    workers = np.array([(p.worker_kind == k).sum() for k in used])
    return float(p.global_batch * fastest.sum() / (rate * workers).sum())


def _sample_s(p: LayerProblem) -> float:
    """A chain's last sample passes every layer; the smallest share of one is 1 / largest degree."""
    if not p.is_chain:
        return 0.0
    least = sum(float(_least_of_a_share(p, times_s).sum()) for times_s in _tables(p))
    return p.alone * least if math.isfinite(least) else 0.0


def _least_of_a_share(p: LayerProblem, times_s: FloatArray) -> FloatArray:
    """Shape (n,): of a table, for the smallest share of a sample, ``inf`` where none is known."""
    least, share, allowed = np.full(p.n, np.inf), 1.0 / _largest_split(p), np.isfinite(p.parameters)
    for k, t in product(np.unique(p.worker_kind).tolist(), range(len(p.degrees))):
        own = times_s[k, t]
        known = np.flatnonzero(~np.isnan(own).all(axis=1))
        if len(known):
            # Below the smallest size that was measured there, times fall at most in proportion.
            smallest = own[known[0]] * min(1.0, share / float(p.sizes[known[0]]))
            times = np.vstack([own, smallest])
            usable = np.where(np.isnan(times) | ~allowed[:, t], np.inf, times)
            least = np.minimum(least, usable.min(axis=0))
    return least


def _largest_split(p: LayerProblem) -> int:
    """Into how many parts one replica can split its samples."""
    refused = {r.layer for r in p.refusals if r.strategy is Strategy.DATA}
    return 1 if len(refused) == p.n else p.w


def _load_s(p: LayerProblem) -> float:
    """Device-seconds of a sample over the devices."""
    assert p.variants is not None
    degrees = np.array(p.degrees, dtype=np.float64)[None, :, None]
    least = (p.variants.time_s * degrees).min(axis=(1, 2))
    return float(least.sum() / p.w)
