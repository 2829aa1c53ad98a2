"""Residual model: what the judge gets wrong, learned from measured runs.

A measured run says one number, ``log(measured / predicted)``. Its seconds are taken for a sum, over
the critical path, of operators and transfers that each take ``exp(error)`` times as long as
predicted, and of overheads: an ``exp(error) - 1`` of a fixed time for each operator, each transfer,
and each second beside another device's computation. The error of work is taken for a smooth
function of kind, device, seconds and bytes: Gaussian process regression (Rasmussen and Williams
2006, isbn 9780262182539), made linear about its own answer a few times over. What was never
measured is not corrected. How much kinds and sizes may differ, how much noise is assumed, and
whether anything is corrected at all, is chosen by leaving out one model after another, because a
correction is wanted for models that were never measured.
The judge stays the only code that gives a plan its value; a correction is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError
from placewright.measurement.speed_up import quantile_95
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.residual_features import OVERHEADS, TRANSFER, Feature, features
from placewright.report.text import counted, joined, seconds

KINDS = (1.0, 0.1, 0.01)
"""Factors on the prior variances of kinds and sizes: where operators were profiled, errors of the
kinds are alike; where costs were computed, they are not."""

NOISES = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Variances of noise that a model's runs share."""

OWN_NOISE = 0.2
"""Variance of each run's own noise, in that of its model: a profile drifts for all of its plans."""

ROUNDS, LARGEST_STEP = 6, 1.5
"""Of the regression, and by how much the logarithm of an error may change in one."""

ANY_KIND, SAME_KIND, SAME_DEVICE, OVERHEAD = 0.3, 0.7, 0.05, 0.3
"""Prior variances: what all kinds of one size have in common, one kind, one device at any size, an
overhead."""

LEAST = 0.1
"""Of a prediction, whatever overheads are taken from it."""

WIDTHS = (3.0, 4.0)
"""Of the kernel, in log seconds and log bytes: from a launch to a product that fills the caches."""

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
        Of the judged plan (`placewright.operators.residual_features.features`).
    predicted_s, measured_s
        Seconds of a step, by the judge and by the engine (median).
    """

    model: str
    devices: tuple[str, ...]
    features: tuple[Feature, ...]
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
        The entries of `KINDS` and `NOISES` that were chosen; ``None`` corrects nothing.
    known
        The critical work of these runs.
    weights
        Shape (works,), of the similarities to each.
    half_log
        Half the 95 % interval of the logarithm: Student's quantile times the root mean square
        error of the models that were left out.
    """

    runs: tuple[MeasuredRun, ...]
    strength: tuple[float, float] | None
    known: _Works
    weights: FloatArray
    half_log: float

    def corrected(self, judged: OperatorJudgement) -> Corrected:
        """Seconds of a judged plan, corrected, with an interval.

        Raises `UnsupportedError`: the objective is not latency, or the judge's value is zero.
        """
        return self.corrected_run(features(judged), judged.value, judged.problem.device_names)

    def corrected_run(
        self, path: Sequence[Feature], predicted_s: float, devices: Sequence[str]
    ) -> Corrected:
        """As `corrected`, of features that were computed before."""
        known = {work[0] for run in self.runs for work in run.features} | OVERHEADS.keys()
        outside = sorted(
            {work[0] for work in path if work[0] not in known and work[4] >= NAMED_SHARE}
        )
        if tuple(devices) not in {run.devices for run in self.runs}:
            outside.append("devices")
        works = _works([path])
        error = _prior(works, self.known, self.strength[0] if self.strength else 0.0) @ self.weights
        found = predicted_s * float(_ratios(works.share, error)[0])
        return Corrected(
            predicted_s,
            found,
            found * math.exp(-self.half_log),
            found * math.exp(self.half_log),
            len(self.runs),
            len({run.model for run in self.runs}),
            tuple(outside),
        )


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

    Every pair of `KINDS` and `NOISES` is scored by leaving out one model after another: the mean
    over models of their mean absolute error of ``log(measured / predicted)``. The best one is taken
    if it is better than no correction by more than a standard error of the difference over models;
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
    return _fitted(runs, works, works.share, _priors(works))


def _fitted(
    runs: tuple[MeasuredRun, ...], works: _Works, share: FloatArray, priors: Sequence[FloatArray]
) -> ResidualModel:
    """As `fit`, where the prior covariances by `KINDS` are known; `share`: rows of `runs`."""
    models = list(dict.fromkeys(run.model for run in runs))
    y = np.array([run.log_ratio for run in runs])
    model = np.array([models.index(run.model) for run in runs])
    strengths = [None, *product(KINDS, NOISES)]
    found = [(np.zeros(len(share.T)), y)] + [
        _regression(share, prior, y, model, noise) for prior, noise in product(priors, NOISES)
    ]
    errors = np.array([left for _, left in found])
    chosen = _chosen(_means(np.abs(errors), model))
    squares = float(_means(errors**2, model)[chosen].mean())
    half_log = quantile_95(len(models) - 1) * math.sqrt(squares)
    return ResidualModel(runs, strengths[chosen], works, found[chosen][0], half_log)


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
    priors, learned = _priors(works), {}
    for model in models if only is None else only:
        others = [k for k, run in enumerate(runs) if run.model != model]
        left = tuple(runs[k] for k in others)
        learned[model] = _fitted(left, works, works.share[others], priors)
    return tuple(
        learned[run.model].corrected_run(run.features, run.predicted_s, run.devices)
        for run in runs
        if run.model in learned
    )


def _regression(
    share: FloatArray, prior: FloatArray, y: FloatArray, model: IntArray, noise: float
) -> tuple[FloatArray, FloatArray]:
    """Weights of works, and what the other models' runs leave of each logarithm."""
    weights = np.zeros(len(prior))
    noises = noise * (np.equal.outer(model, model) + OWN_NOISE * np.eye(len(y)))
    for _ in range(ROUNDS):
        error = prior @ weights
        slope = share * np.exp(error) / _ratios(share, error)[:, None]
        inverse = np.linalg.inv(slope @ prior @ slope.T + noises)
        found = inverse @ (y - np.log(_ratios(share, error)) + slope @ error)
        step = slope.T @ found - weights
        weights = weights + step * min(1.0, LARGEST_STEP / max(np.abs(prior @ step).max(), 1e-9))
    # Of all models but one, by blocks of a single inverse (Rasmussen and Williams, section 5.4.2).
    left = np.zeros(len(y))
    for out in range(model.max() + 1):
        of = np.flatnonzero(model == out)
        left[of] = np.linalg.solve(inverse[np.ix_(of, of)], found[of])
    return weights, left


def _ratios(share: FloatArray, error: FloatArray) -> FloatArray:
    """Shape (paths,): how many times as long each takes; exactly 1 without errors."""
    ratios: FloatArray = np.maximum(1 + share @ np.expm1(error), LEAST)
    return ratios


def _means(values: FloatArray, model: IntArray) -> FloatArray:
    """Shape (strengths, models): means over each model's runs."""
    return np.array([values[:, model == k].mean(axis=1) for k in range(model.max() + 1)]).T


def _chosen(scores: FloatArray) -> int:
    """Row of the least error, a mean over models (columns), if it is surely below the first row."""
    best = int(scores.mean(axis=1).argmin())
    gain = scores[0] - scores[best]
    sure = gain.mean() > gain.std(ddof=1) / math.sqrt(len(gain))
    return best if sure else 0


def _priors(works: _Works) -> list[FloatArray]:
    """By `KINDS`, the covariance of all errors."""
    return [_prior(works, works, kinds) for kinds in KINDS]


def _prior(a: _Works, b: _Works, kinds: float) -> FloatArray:
    """Prior covariance of the errors of works, shape (works of a, works of b)."""
    apart_s, apart_b = (np.subtract.outer(a.sizes[k], b.sizes[k]) / WIDTHS[k] for k in range(2))
    same_kind, same_device = (np.equal.outer(a.names[k], b.names[k]) for k in range(2))
    transfers = np.equal.outer(a.names[0] == TRANSFER, b.names[0] == TRANSFER)
    alike = ANY_KIND * transfers + SAME_KIND * same_kind
    near = np.exp(-0.5 * (apart_s**2 + apart_b**2))
    found: FloatArray = kinds * alike * near + SAME_DEVICE * same_device
    overheads = np.logical_or.outer(_is_overhead(a), _is_overhead(b))
    return np.where(overheads, OVERHEAD * same_kind, found)


def _is_overhead(works: _Works) -> BoolArray:
    found: BoolArray = np.isin(works.names[0], list(OVERHEADS))
    return found


class _Works(NamedTuple):
    """Critical work and overheads of several paths, each kind and size once.

    `names` (kinds, devices) and `sizes` (log seconds, log bytes) have shape (2, works), `share`
    (paths, works); several critical paths count as one: shares of work add up to 1.
    """

    names: NDArray[np.str_]
    sizes: FloatArray
    share: FloatArray


def _works(paths: Sequence[Sequence[Feature]]) -> _Works:
    at = {key: k for k, key in enumerate(dict.fromkeys(work[:4] for p in paths for work in p))}
    share = np.zeros((len(paths), len(at)))
    for i, path in enumerate(paths):
        for work in path:
            share[i, at[work[:4]]] += work[4]
    names = np.array([key[:2] for key in at], dtype=np.str_).reshape(-1, 2).T
    sizes = np.array([key[2:] for key in at], dtype=np.float64).reshape(-1, 2).T
    on_path = share[:, ~np.isin(names[0], list(OVERHEADS))].sum(axis=1, keepdims=True)
    return _Works(names, sizes, share / np.where(on_path > 0, on_path, 1.0))
