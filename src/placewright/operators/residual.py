"""Residual model: what the judge gets wrong, learned from measured runs.

A measured run gives one equation: features of the judged plan, and ``log(measured / predicted)``.
`fit` solves a ridge regression on them (Hoerl and Kennard 1970, doi:10.1080/00401706.1970.10488634)
in closed form. How strong it is, and whether anything is corrected at all, is chosen by leaving
out one model after another, because a correction is wanted for models that were never measured.
The judge stays the only code that gives a plan its value; a correction is shown beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import InputError, UnsupportedError
from placewright.measurement.speed_up import T_95
from placewright.numerics.arrays import FloatArray
from placewright.operators.critical_path import critical_spans
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.problem import Objective
from placewright.report.text import counted, joined, seconds

FEATURES = (
    "log predicted seconds",
    "log operators",
    "operators per predicted ms",
    "log 1 + transfers",
    "transfers per predicted ms",
    "log 1 + bytes sent",
    "link share of critical path",
    "devices used",
    "busy devices on average",
    "backward share of seconds",
    "matrix product share of seconds",
    "convolution share of seconds",
)
"""Names, in order."""

FEATURES_VERSION = 1
"""Raised whenever a feature of the same name is computed in another way."""

STRENGTHS = (None, math.inf, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Of the ridge, the strongest first: ``None`` corrects nothing, ``inf`` the mean ratio alone."""

SLACK = 1e-9
"""Relative; how far outside of what was measured a feature counts as inside."""


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
        One number per entry of `FEATURES`.
    predicted_s, measured_s
        Seconds of a step, by the judge and by the engine (median).
    """

    model: str
    devices: tuple[str, ...]
    features: tuple[float, ...]
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
        Features that lie outside of what was measured (they count as the nearest that was), and
        ``"devices"`` where no run had the same ones.
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
    """A ridge regression from standardised features to ``log(measured / predicted)``.

    Attributes
    ----------
    runs
        What it was fitted to.
    strength
        The entry of `STRENGTHS` that was chosen.
    intercept, weights
        Shape () and (features,); of standardised features.
    mean, scale
        Shape (features,), standardisation.
    low, high
        Shape (features,), the range that was measured.
    half_log
        Half the 95 % interval of the logarithm: Student's quantile times the root mean square
        error of the models that were left out.
    """

    runs: tuple[MeasuredRun, ...]
    strength: float | None
    intercept: float
    weights: FloatArray
    mean: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    half_log: float

    def corrected(self, judged: OperatorJudgement) -> Corrected:
        """Seconds of a judged plan, corrected, with an interval.

        Raises `UnsupportedError`: the objective is not latency, or the judge's value is zero.
        """
        return self.corrected_run(features(judged), judged.value, judged.problem.device_names)

    def corrected_run(
        self, values: Sequence[float], predicted_s: float, devices: Sequence[str]
    ) -> Corrected:
        """As `corrected`, of features that were computed before."""
        x = np.asarray(values, dtype=np.float64)
        slack = SLACK * (1.0 + np.abs(x))
        far = (x < self.low - slack) | (x > self.high + slack)
        outside = [FEATURES[k] for k in np.flatnonzero(far)]
        if tuple(devices) not in {run.devices for run in self.runs}:
            outside.append("devices")
        found = predicted_s * math.exp(self._log(x))
        return Corrected(
            predicted_s,
            found,
            found * math.exp(-self.half_log),
            found * math.exp(self.half_log),
            len(self.runs),
            len({run.model for run in self.runs}),
            tuple(outside),
        )

    def _log(self, x: FloatArray) -> float:
        """Logarithm of the correction; features are clipped, as a line does not extrapolate."""
        inside = np.clip(x, self.low, self.high)
        return self.intercept + float((inside - self.mean) / self.scale @ self.weights)


def features(judged: OperatorJudgement) -> tuple[float, ...]:
    """Features of a judged plan, in the order of `FEATURES`.

    Shares by kind are zero where the problem does not know its operators' kinds.
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
    spent = judged.op_end_s - judged.op_start_s
    total = max(float(spent.sum()), 1e-30)
    sent = float(p.tensor_bytes[moves.tensor].sum())
    backward = p.is_backward if len(p.is_backward) else np.zeros(p.n, dtype=np.bool_)
    kinds = [kind.lower() for kind in p.operator_kinds] or [""] * p.n
    products = [_is_product(kind) for kind in kinds]
    return (
        math.log(judged.value),
        math.log(p.n),
        p.n / (1e3 * judged.value),
        math.log1p(len(moves)),
        len(moves) / (1e3 * judged.value),
        math.log1p(sent),
        _link_share(judged),
        float(len(np.unique(judged.placement))),
        float(judged.busy_s.sum()) / judged.value,
        float(spent[backward].sum()) / total,
        float(spent[products].sum()) / total,
        float(spent[["conv" in kind for kind in kinds]].sum()) / total,
    )


def _is_product(kind: str) -> bool:
    """Whether a kind of operator multiplies matrices: ``aten.addmm.default``, ``Gemm``."""
    words = re.split(r"[^a-z0-9]+", kind.replace("_", "."))
    return any(w.endswith("mm") or w in ("matmul", "linear", "attention") for w in words)


def _link_share(judged: OperatorJudgement) -> float:
    """Seconds of critical transfers over seconds of all critical spans."""
    moves = judged.transfers
    spans = np.concatenate([judged.op_end_s - judged.op_start_s, moves.end_s - moves.start_s])
    critical = np.where(critical_spans(judged), spans, 0.0)
    total = float(critical.sum())
    return float(critical[judged.problem.n :].sum()) / total if total > 0 else 0.0


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
    models of their mean absolute error of ``log(measured / predicted)``. The strongest one is
    taken that is not worse than the best by more than one standard error of their difference over
    models, so that noise is not corrected. The interval comes from the same errors; that the
    strength was chosen on them makes it a little too narrow.

    Raises `InputError`: runs of fewer than two models, or with another number of features.
    """
    runs = tuple(runs)
    models = list(dict.fromkeys(run.model for run in runs))
    for run in runs:
        if len(run.features) != len(FEATURES):
            raise InputError(
                "a measured run has other features",
                where=run.model,
                by=f"{len(run.features)} features, this version computes {len(FEATURES)}",
                hint="make it of the judged plan again with `measured_run`",
            )
    if len(models) < 2:
        raise InputError(
            "measured runs of at least two models are needed",
            where=models[0] if models else "no run",
            by=f"{len(runs)} runs of {len(models)} models",
            hint="measure plans of another model, too",
        )
    errors = [_left_out(runs, models, strength) for strength in STRENGTHS]
    chosen = _strongest(np.array([[np.abs(e).mean() for e in row] for row in errors]))
    squares = float(np.mean([np.mean(e**2) for e in errors[chosen]]))
    quantile = T_95[min(len(models) - 1, len(T_95)) - 1]
    return _solved(runs, STRENGTHS[chosen], quantile * math.sqrt(squares))


def held_out(runs: Sequence[MeasuredRun]) -> tuple[Corrected, ...]:
    """Each run corrected by what was learned without its model; nothing is chosen on it either.

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
    learned = {m: fit([run for run in runs if run.model != m]) for m in models}
    return tuple(
        learned[run.model].corrected_run(run.features, run.predicted_s, run.devices) for run in runs
    )


def _left_out(
    runs: Sequence[MeasuredRun], models: Sequence[str], strength: float | None
) -> list[FloatArray]:
    """Per model, errors of the logarithm of its runs, corrected by the other models' runs."""
    found = []
    for model in models:
        solved = _solved([run for run in runs if run.model != model], strength)
        out = [run for run in runs if run.model == model]
        logs = [solved._log(np.array(run.features)) for run in out]
        found.append(np.array([run.log_ratio for run in out]) - logs)
    return found


def _strongest(scores: FloatArray) -> int:
    """Row (strength) that is first within a standard error of the best; columns are models."""
    best = scores[int(scores.mean(axis=1).argmin())]
    worse = scores - best
    error = worse.std(axis=1, ddof=1) / math.sqrt(scores.shape[1])
    return int(np.argmax(worse.mean(axis=1) <= error))


def _solved(
    runs: Sequence[MeasuredRun], strength: float | None, half_log: float = math.inf
) -> ResidualModel:
    """Closed form: ``(Z'Z / n + strength I) w = Z'y / n`` with standardised Z and centred y."""
    x = np.array([run.features for run in runs], dtype=np.float64)
    y = np.array([run.log_ratio for run in runs])
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale <= SLACK * (1.0 + np.abs(mean))] = 1.0  # the same in all runs: its weight is zero
    intercept, weights = 0.0, np.zeros(x.shape[1])
    if strength is not None:
        intercept = float(y.mean())
    if strength is not None and math.isfinite(strength):
        z = (x - mean) / scale
        gram = z.T @ z / len(y) + strength * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, z.T @ (y - intercept) / len(y))
    low, high = x.min(axis=0), x.max(axis=0)
    return ResidualModel(
        tuple(runs), strength, intercept, weights, mean, scale, low, high, half_log
    )
