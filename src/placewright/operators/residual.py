"""Residual model: what the judge gets wrong, learned from measured runs.

A measured run says one number, ``log(measured / predicted)``. Its seconds are taken for a sum, over
the critical path, of operators and transfers that each take ``exp(error)`` times as long as
predicted, and this error for a smooth function of kind, device, seconds and bytes: Gaussian process
regression (Rasmussen and Williams 2006, isbn 9780262182539), made linear about its own answer a few
times over. What was never measured is not corrected. How much noise is assumed, and whether
anything is corrected at all, is chosen by leaving out one model after another, because a correction
is wanted for models that were never measured.
The judge stays the only code that gives a plan its value; a correction is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError, UnsupportedError
from placewright.measurement.speed_up import T_95
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.critical_path import critical_spans
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.problem import Objective, OperatorProblem
from placewright.report.text import counted, joined, seconds

CriticalWork = tuple[str, str, float, float, float]
"""Operators of one kind and size on one device, or transfers: values of `FEATURES`."""

FEATURES = ("kind", "device", "log seconds", "log bytes", "share of prediction")
"""Names, in order. Sizes are rounded; seconds are those on the operator's fastest device."""

FEATURES_VERSION = 2
"""Raised whenever a feature of the same name is computed in another way."""

TRANSFER = "transfer"
"""Kind of a transfer; its device is ``""``."""

STRENGTHS = (None, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Variance of noise that a model's runs share, the strongest first: ``None`` corrects nothing."""

OWN_NOISE = 0.2
"""Variance of each run's own noise, in that of its model: a profile drifts for all of its plans."""

ROUNDS, LARGEST_STEP = 6, 1.5
"""Of the regression, and by how much the logarithm of an error may change in one."""

ANY_KIND, SAME_KIND, SAME_DEVICE = 0.3, 0.7, 0.05
"""Prior variances: what all kinds of one size have in common, one kind, one device at any size."""

WIDTHS = (3.0, 4.0)
"""Of the kernel, in log seconds and log bytes: from a launch to a product that fills the caches."""

LEAST_BYTES = 64.0
"""Added to the bytes of operators: a cache line."""

NAMED_SHARE = 0.01
"""Share of the prediction from which a kind that was never measured is named."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One plan that was judged and executed.

    Attributes
    ----------
    model
        Runs of one model are held out together.
    devices
        Names of all devices of the problem.
    features
        The critical path, grouped.
    predicted_s, measured_s
        Seconds of a step, by the judge and by the engine (median).
    """

    model: str
    devices: tuple[str, ...]
    features: tuple[CriticalWork, ...]
    predicted_s: float
    measured_s: float

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted seconds."""
        return math.log(self.measured_s) - math.log(self.predicted_s)


@dataclass(frozen=True, slots=True)
class Corrected:
    """A corrected prediction of one plan.

    Attributes
    ----------
    predicted_s
        The judge's.
    seconds, low_s, high_s
        Corrected, and its 95 % interval.
    runs, models
        What it was learned from.
    outside
        Kinds of operators on the critical path that were never measured, and ``"devices"`` where no
        run had the same ones.
    """

    predicted_s: float
    seconds: float
    low_s: float
    high_s: float
    runs: int
    models: int
    outside: tuple[str, ...] = ()

    def __str__(self) -> str:
        beyond = f"outside of what was measured: {', '.join(self.outside)}" if self.outside else ""
        interval = f"{seconds(self.low_s)} to {seconds(self.high_s)}"
        return joined(
            f"corrected by {counted(range(self.runs), 'measured run')} of "
            f"{counted(range(self.models), 'model')}: {seconds(self.seconds)} "
            f"(95 %: {interval}); the judge: {seconds(self.predicted_s)}",
            beyond,
        )

    def as_json(self) -> dict[str, Any]:
        """As ``operators simulate -f json`` prints it."""
        return {
            "value": self.seconds,
            "low": self.low_s,
            "high": self.high_s,
            "runs": self.runs,
            "models": self.models,
            "outside": list(self.outside),
        }


@dataclass(frozen=True, slots=True, eq=False)
class ResidualModel:
    """A Gaussian process from critical paths to ``log(measured / predicted)``.

    Attributes
    ----------
    runs
        What it was fitted to.
    strength
        The entry of `STRENGTHS` that was chosen.
    known
        The critical work of these runs.
    weights
        Shape (works,), of the similarities to each.
    half_log
        Half the 95 % interval of the logarithm: Student's quantile times the root mean square
        error of the models that were left out.
    """

    runs: tuple[MeasuredRun, ...]
    strength: float | None
    known: _Works
    weights: FloatArray
    half_log: float

    def corrected(self, judged: OperatorJudgement) -> Corrected:
        """Seconds of a judged plan, corrected, with an interval.

        Raises `UnsupportedError`: the objective is not latency, or the judge's value is zero.
        """
        return self.corrected_run(features(judged), judged.value, judged.problem.device_names)

    def corrected_run(
        self, path: Sequence[CriticalWork], predicted_s: float, devices: Sequence[str]
    ) -> Corrected:
        """As `corrected`, of features that were computed before."""
        known = {work[0] for run in self.runs for work in run.features}
        outside = sorted(
            {work[0] for work in path if work[0] not in known and work[4] >= NAMED_SHARE}
        )
        if tuple(devices) not in {run.devices for run in self.runs}:
            outside.append("devices")
        works = _works([path])
        error = _similarity(works, self.known) @ self.weights
        found = predicted_s * math.exp(float(_logs(works.share, error)[0]))
        return Corrected(
            predicted_s,
            found,
            found * math.exp(-self.half_log),
            found * math.exp(self.half_log),
            len(self.runs),
            len({run.model for run in self.runs}),
            tuple(outside),
        )


def features(judged: OperatorJudgement) -> tuple[CriticalWork, ...]:
    """The critical path of a judged plan, grouped by kind, device and rounded size.

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
    share[~critical_spans(judged)] = 0.0
    # A device's speed must not make its operators look like larger ones.
    size_s = np.concatenate([p.compute_s.min(axis=1), sent_s])
    size = np.concatenate([_bytes(p), p.tensor_bytes[moves.tensor]]) + LEAST_BYTES
    groups: dict[tuple[str, str, float, float], float] = {}
    for k in np.flatnonzero(share > 0):
        # The kernel is several times as wide as these steps.
        seconds_, bytes_ = round(math.log(max(size_s[k], 1e-12))), 2 * round(math.log(size[k]) / 2)
        key = (kinds[k], devices[k], float(seconds_), float(bytes_))
        groups[key] = groups.get(key, 0.0) + float(share[k])
    return tuple((*key, groups[key]) for key in sorted(groups))


def _bytes(p: OperatorProblem) -> FloatArray:
    """Shape (operators,): what each reads, writes and keeps."""
    found = np.array(p.resident_bytes, dtype=np.float64)
    np.add.at(found, p.tensor_producer, p.tensor_bytes)
    np.add.at(found, p.consumers, p.tensor_bytes[p.consumed])
    return found


def measured_run(judged: OperatorJudgement, measured_s: float, model: str = "") -> MeasuredRun:
    """The record of a plan that was executed.

    `measured_s`: seconds of its step.
    `model`: the problem's name without it.
    """
    p = judged.problem
    if not (0 < measured_s < math.inf):
        raise InputError(
            "a measured step must take more than no time",
            where=p.name,
            by=f"{measured_s} s",
            hint="measure the plan again",
        )
    return MeasuredRun(
        model or p.name, p.device_names, features(judged), judged.value, float(measured_s)
    )


def fit(runs: Sequence[MeasuredRun]) -> ResidualModel:
    """Learn a correction from runs of at least two models.

    Every entry of `STRENGTHS` is scored by leaving out one model after another: the mean over
    models of their mean absolute error of ``log(measured / predicted)``. The best one is taken if
    it is better than no correction by more than a standard error of the difference over models;
    else nothing is corrected. The interval comes from the same errors; that the strength was chosen
    on them makes it a little too narrow.

    Raises `InputError`: runs of fewer than two models.
    """
    runs = tuple(runs)
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) < 2:
        raise InputError(
            "measured runs of at least two models are needed",
            where=models[0] if models else "no run",
            by=f"{len(runs)} runs of {len(models)} models",
            hint="measure plans of another model, too",
        )
    works = _works([run.features for run in runs])
    return _fitted(runs, works, works.share, _similarity(works, works))


def _fitted(
    runs: tuple[MeasuredRun, ...], works: _Works, share: FloatArray, prior: FloatArray
) -> ResidualModel:
    """As `fit`, where the similarities of all pairs of works are known; `share`: rows of `runs`."""
    models = list(dict.fromkeys(run.model for run in runs))
    y = np.array([run.log_ratio for run in runs])
    model = np.array([models.index(run.model) for run in runs])
    found = [_regression(share, prior, y, model, strength) for strength in STRENGTHS]
    errors = np.array([left for _, left in found])
    chosen = _chosen(_means(np.abs(errors), model))
    squares = float(_means(errors**2, model)[chosen].mean())
    half_log = T_95[min(len(models) - 1, len(T_95)) - 1] * math.sqrt(squares)
    return ResidualModel(runs, STRENGTHS[chosen], works, found[chosen][0], half_log)


def held_out(
    runs: Sequence[MeasuredRun], only: Collection[str] | None = None
) -> tuple[Corrected, ...]:
    """Each run corrected by what was learned without its model; nothing is chosen on it either.

    `only`: models whose runs are corrected; those of the others are only learned from.
    Raises `InputError`: runs of fewer than three models.
    """
    models = dict.fromkeys(run.model for run in runs)
    if len(models) < 3:
        raise InputError(
            "measured runs of at least three models are needed to hold one out",
            where=next(iter(models), "no run"),
            by=f"{len(runs)} runs of {len(models)} models",
            hint="measure plans of other models, too",
        )
    works = _works([run.features for run in runs])
    prior, learned = _similarity(works, works), {}
    for model in models if only is None else only:
        others = [k for k, run in enumerate(runs) if run.model != model]
        left = tuple(runs[k] for k in others)
        learned[model] = _fitted(left, works, works.share[others], prior)
    return tuple(
        learned[run.model].corrected_run(run.features, run.predicted_s, run.devices)
        for run in runs
        if run.model in learned
    )


def _regression(
    share: FloatArray, prior: FloatArray, y: FloatArray, model: IntArray, strength: float | None
) -> tuple[FloatArray, FloatArray]:
    """Weights of works, and what the other models' runs leave of each logarithm."""
    weights = np.zeros(len(prior))
    if strength is None:
        return weights, y
    noise = strength * (np.equal.outer(model, model) + OWN_NOISE * np.eye(len(y)))
    for _ in range(ROUNDS):
        error = prior @ weights
        taken = share * np.exp(error)
        slope = taken / taken.sum(axis=1, keepdims=True)
        inverse = np.linalg.inv(slope @ prior @ slope.T + noise)
        found = inverse @ (y - _logs(share, error) + slope @ error)
        step = slope.T @ found - weights
        weights = weights + step * min(1.0, LARGEST_STEP / max(np.abs(prior @ step).max(), 1e-9))
    # Of all models but one, by blocks of a single inverse (Rasmussen and Williams, section 5.4.2).
    left = np.zeros(len(y))
    for out in range(model.max() + 1):
        of = np.flatnonzero(model == out)
        left[of] = np.linalg.solve(inverse[np.ix_(of, of)], found[of])
    return weights, left


def _logs(share: FloatArray, error: FloatArray) -> FloatArray:
    """Shape (paths,): logarithm of how many times as long each takes; exactly 0 without errors."""
    logs: FloatArray = np.log1p(share @ np.expm1(error))
    return logs


def _means(values: FloatArray, model: IntArray) -> FloatArray:
    """Shape (strengths, models): means over each model's runs."""
    return np.array([values[:, model == k].mean(axis=1) for k in range(model.max() + 1)]).T


def _chosen(scores: FloatArray) -> int:
    """Row of the least error, a mean over models (columns), if it is surely below the first row."""
    best = int(scores.mean(axis=1).argmin())
    gain = scores[0] - scores[best]
    sure = gain.mean() > gain.std(ddof=1) / math.sqrt(len(gain))
    return best if sure else 0


def _similarity(a: _Works, b: _Works) -> FloatArray:
    """Prior covariance of the errors of works, shape (works of a, works of b)."""
    apart_s, apart_b = (np.subtract.outer(a.sizes[k], b.sizes[k]) / WIDTHS[k] for k in range(2))
    kinds, devices = (np.equal.outer(a.names[k], b.names[k]) for k in range(2))
    transfers = np.equal.outer(a.names[0] == TRANSFER, b.names[0] == TRANSFER)
    alike = ANY_KIND * transfers + SAME_KIND * kinds
    near = np.exp(-0.5 * (apart_s**2 + apart_b**2))
    found: FloatArray = alike * near + SAME_DEVICE * devices
    return found


class _Works(NamedTuple):
    """Critical work of several paths, each kind and size once.

    `names` (kinds, devices) and `sizes` (log seconds, log bytes) have shape (2, works), `share`
    (paths, works); several critical paths count as one.
    """

    names: NDArray[np.str_]
    sizes: FloatArray
    share: FloatArray


def _works(paths: Sequence[Sequence[CriticalWork]]) -> _Works:
    at = {key: k for k, key in enumerate(dict.fromkeys(work[:4] for p in paths for work in p))}
    share = np.zeros((len(paths), len(at)))
    for i, path in enumerate(paths):
        for work in path:
            share[i, at[work[:4]]] += work[4]
    names = np.array([key[:2] for key in at], dtype=np.str_).reshape(-1, 2).T
    sizes = np.array([key[2:] for key in at], dtype=np.float64).reshape(-1, 2).T
    return _Works(names, sizes, share / share.sum(axis=1, keepdims=True))
