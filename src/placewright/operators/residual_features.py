"""Features of a judged plan, by which measured runs are compared: critical path and overheads."""

from __future__ import annotations

import math

import numpy as np

from placewright.errors import UnsupportedError
from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.critical_path import critical_spans
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.problem import Objective, OperatorProblem

Feature = tuple[str, str, float, float, float]
"""Work on the critical path (operators of one kind and size on one device, or transfers), or an
overhead: values of `FEATURES`."""

FEATURES = ("kind", "device", "log seconds", "log bytes", "share of prediction")
"""Names, in order. Sizes are rounded; seconds are those on the operator's fastest device."""

FEATURES_VERSION = 3
"""Raised whenever a feature of the same name is computed in another way."""

TRANSFER = "transfer"
"""Kind of a transfer; its device is ``""``."""

PER_OPERATOR, PER_TRANSFER = "per operator", "per transfer"
PER_TRANSFER_ANYWHERE, BESIDE_OTHERS = "per transfer anywhere", "beside others"

OVERHEADS = {
    PER_OPERATOR: 1e-5,
    PER_TRANSFER: 1e-4,
    PER_TRANSFER_ANYWHERE: 1e-4,
    BESIDE_OTHERS: 1.0,
}
"""Kinds of overheads, and the seconds that one counts: operators and transfers on the critical
path, transfers on it or not, and seconds on it for each other device that computes meanwhile. They
have no device and no size."""

LEAST_BYTES = 64.0
"""Added to the bytes of operators: a cache line."""


def features(judged: OperatorJudgement) -> tuple[Feature, ...]:
    """The critical path of a judged plan, grouped by kind, device and rounded size; overheads.

    Raises `UnsupportedError`: the objective is not latency, or the judge's value is zero.
    """
    p, moves = judged.problem, judged.transfers
    if p.objective is not Objective.LATENCY:
        raise UnsupportedError(
            "steps are corrected, and the objective is another",
            where=p.name,
            by=f"objective {p.objective}",
            hint="ask for latency, or leave the correction out",
        )
    if not (0 < judged.value < math.inf):
        raise UnsupportedError(
            "only a prediction above zero can be corrected by a factor",
            where=p.name,
            by=f"predicted: {judged.value} s",
            hint="give operators or links costs, or leave the correction out",
        )
    kinds = [*(p.operator_kinds or [""] * p.n), *[TRANSFER] * len(moves)]
    devices = [*(p.device_names[k] for k in judged.placement), *[""] * len(moves)]
    sent_s = moves.end_s - moves.start_s
    share = np.concatenate([judged.op_end_s - judged.op_start_s, sent_s]) / judged.value
    critical = critical_spans(judged)
    share[~critical] = 0.0
    # A device's speed must not make its operators look like larger ones.
    size_s = np.concatenate([p.compute_s.min(axis=1), sent_s])
    size = np.concatenate([_bytes(p), p.tensor_bytes[moves.tensor]]) + LEAST_BYTES
    groups: dict[tuple[str, str, float, float], float] = {}
    for k in np.flatnonzero(share > 0):
        # The kernel is several times as wide as these steps.
        seconds_, bytes_ = round(math.log(max(size_s[k], 1e-12))), 2 * round(math.log(size[k]) / 2)
        key = (kinds[k], devices[k], float(seconds_), float(bytes_))
        groups[key] = groups.get(key, 0.0) + float(share[k])
    for name, counted in _overheads(judged, critical).items():
        if counted > 0:
            groups[name, "", 0.0, 0.0] = OVERHEADS[name] * counted / judged.value
    return tuple((*key, groups[key]) for key in sorted(groups))


def _bytes(p: OperatorProblem) -> FloatArray:
    """Shape (operators,): what each reads, writes and keeps."""
    found = np.array(p.resident_bytes, dtype=np.float64)
    np.add.at(found, p.tensor_producer, p.tensor_bytes)
    np.add.at(found, p.consumers, p.tensor_bytes[p.consumed])
    return found


def _overheads(judged: OperatorJudgement, critical: BoolArray) -> dict[str, float]:
    """How many of each of `OVERHEADS` there are."""
    operators, moves = critical[: judged.problem.n], critical[judged.problem.n :]
    return {
        PER_OPERATOR: float((operators & (judged.op_end_s > judged.op_start_s)).sum()),
        PER_TRANSFER: float(moves.sum()),
        PER_TRANSFER_ANYWHERE: float(len(moves)),
        BESIDE_OTHERS: float(_beside_others(judged)[operators].sum()),
    }


def _beside_others(judged: OperatorJudgement) -> FloatArray:
    """Shape (operators,): seconds that other devices compute while an operator runs, summed."""
    start_s, end_s = judged.op_start_s, judged.op_end_s
    found = np.zeros(len(start_s))
    for device in range(judged.problem.m):
        own = np.flatnonzero(judged.placement == device)
        own = own[np.argsort(start_s[own], kind="stable")]
        # Seconds that the device has computed until any time: linear between starts and ends.
        times = np.stack([start_s[own], end_s[own]], axis=1).ravel()
        computed = np.cumsum(np.stack([np.zeros(len(own)), end_s[own] - start_s[own]], axis=1))
        if len(own):
            meanwhile = np.interp(end_s, times, computed) - np.interp(start_s, times, computed)
            found += np.where(judged.placement == device, 0.0, meanwhile)
    return found
