"""Execute a layer plan beside its baselines, in turns on the same workers, and compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from placewright.errors import CheckError, UnsupportedError
from placewright.layers.judge import LayerJudgement, judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.planners.space import judged as judged_plan
from placewright.layers.problem import LayerProblem
from placewright.measurement.measurement import SpeedUp, speed_up
from placewright.report.text import size
from placewright.runtime.random_state import random_state

if TYPE_CHECKING:
    from placewright.layers.execution.reference import ReferenceSteps
    from placewright.layers.execution.session import LayerSession
    from placewright.layers.execution.stage_orders import TracedModel

ROUNDS = 5
"""Turns of every plan: an interval needs a few."""

MOST_ERROR = 1e-5
"""Largest difference that rounding in another order makes: of the loss, or as a part of the
largest gradient."""

TINY = 1e-30

CHECKED_STEPS = 2
"""The second one from what the first has changed."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """What was measured.

    Attributes
    ----------
    predicted_s
        By plan: ``plan``, ``fastest worker``, ``equal batches``.
    rounds
        By plan, seconds of every measured step, by round; plans were measured in turns.
    limit
        Speed-up over the fastest worker that no plan can exceed: the sum of the workers' speeds.
    max_abs_error
        Of the loss, all gradients, and parameters and buffers after updates against one process;
        ``None`` without a check.
    max_rel_error
        The same, the loss as a part of itself, gradients as a part of the largest one, what is
        updated as a part of the update.
    peak_memory_bytes, predicted_peak_bytes
        Most resident memory of each worker's process while the plan trained, as the kernel
        counted it (NaN: it does not); what the judge says.
    inexact
        Why the plan need not compute what one process does, where ``exact=False`` accepted it.
    """

    predicted_s: Mapping[str, float]
    rounds: Mapping[str, tuple[tuple[float, ...], ...]]
    limit: float
    engine: str
    emulated: str
    baseline_worker: str
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    peak_memory_bytes: Mapping[str, float] = field(default_factory=dict)
    predicted_peak_bytes: Mapping[str, float] = field(default_factory=dict)
    inexact: str = ""

    @property
    def step_s(self) -> dict[str, list[float]]:
        """By plan, seconds of every measured step."""
        return {name: [s for part in found for s in part] for name, found in self.rounds.items()}

    @property
    def measured_s(self) -> float:
        """Median step of the plan."""
        return self.typical_s("plan")

    def typical_s(self, name: str) -> float:
        """Median step of a plan or baseline that was executed."""
        return median(self.step_s[name])

    def speed_up(self, other: str) -> SpeedUp | None:
        """How many times as fast as a baseline the plan is; ``None`` where it was not executed."""
        if other not in self.rounds:
            return None
        return speed_up(self.rounds["plan"], self.rounds[other])

    def as_json(self) -> dict[str, Any]:
        """What the command line prints."""

        def one(name: str) -> dict[str, Any] | None:
            if name not in self.step_s:
                return None
            return {
                "predicted_s": self.predicted_s[name],
                "measured_s": median(self.step_s[name]),
                "step_s": self.step_s[name],
            }

        fastest = one(FASTEST)
        gains = {name: self.speed_up(name) for name in (FASTEST, EQUAL)}
        return {
            **(one("plan") or {}),
            "steps": len(self.step_s["plan"]),
            "baseline": None if fastest is None else {"name": self.baseline_worker, **fastest},
            "equal_batches": one(EQUAL),
            "speed_up": _ratio(gains[FASTEST]),
            "speed_up_over_equal_batches": _ratio(gains[EQUAL]),
            "speed_up_intervals": {
                name: None if gain is None else gain.as_json() for name, gain in gains.items()
            },
            "speed_up_limit": self.limit,
            "engine": self.engine,
            "emulated": self.emulated,
            "max_abs_error": self.max_abs_error,
            "max_rel_error": self.max_rel_error,
            "memory": {
                name: {
                    "predicted_peak_bytes": self.predicted_peak_bytes.get(name),
                    "measured_peak_bytes": held,
                }
                for name, held in self.peak_memory_bytes.items()
            },
        }

    def demand(self) -> None:
        """Raise where the check failed.

        Raises `CheckError`: by how much.
        """
        if self.max_rel_error is not None and not self.max_rel_error <= MOST_ERROR:
            raise CheckError(
                "the plan does not compute what one process computes",
                where="loss, gradients and updates",
                by=f"{self.max_rel_error:.2e} of their size, at most {MOST_ERROR:.0e}",
                hint=f"as exact=False (--approximate) accepts: {self.inexact}; plan with exact=True"
                if self.inexact
                else "report this plan, with the model",
            )

    def __repr__(self) -> str:
        lines = []
        for name, times in self.step_s.items():
            predicted, measured = self.predicted_s[name], median(times)
            lines.append(f"{name:15s} predicted {predicted:.4g} s, measured {measured:.4g} s")
        for name in (FASTEST, EQUAL):
            gain = self.speed_up(name)
            if gain is not None:
                lines.append(f"{gain_text(gain)} as fast as {name}")
        lines.append(f"at most {self.limit:.2f}x as fast as {FASTEST}: the sum of speeds")
        if self.max_abs_error is not None:
            lines.append(f"largest difference from one process: {self.max_abs_error:.1e}")
        for name, held in self.peak_memory_bytes.items():
            predicted = self.predicted_peak_bytes.get(name, math.nan)
            lines.append(f"{name} peak memory: predicted {size(predicted)}, measured {size(held)}")
        lines.append(f"engine {self.engine}, emulated: {self.emulated or 'nothing'}")
        return "\n".join(lines)


FASTEST, EQUAL = "fastest worker", "equal batches"


def gain_text(gain: SpeedUp) -> str:
    """The ratio with its 95 % interval, where there is one."""
    interval = f" ({gain.low:.2f} to {gain.high:.2f})" if gain.rounds > 1 else ""
    return f"{gain.ratio:.2f}x{interval}"


def _ratio(gain: SpeedUp | None) -> float | None:
    return None if gain is None else gain.ratio


def run(
    session: LayerSession,
    problem: LayerProblem,
    plan: LayerPlan,
    *,
    steps: int = 10,
    check: bool = False,
) -> LayerRun:
    """Measure a plan, the fastest worker alone and data parallelism with equal batches, in turns.

    Baselines that do not fit or cannot be executed are left out.

    Raises `UnsupportedError`: the plan cannot be executed.
    """
    from placewright.layers.execution.session import step_s

    every = alone(problem)
    fitting = min((j for j in every if j.feasible), key=lambda j: j.value, default=None)
    fastest = None if fitting is None else fitting.plan
    plans = {"plan": plan, FASTEST: fastest, EQUAL: equal_batches(problem)}
    judgement = judge(problem, plan)
    predicted = {"plan": judgement.value}
    errors = checked(session, plan) if check else (None, None)
    session.load(plan)
    for name in (FASTEST, EQUAL):
        other = plans[name]
        judged = None if other is None else judged_plan(problem, other)
        if judged is None or not judged.feasible:
            del plans[name]
        else:
            predicted[name] = judged.value
    same = plans.get(FASTEST) == plan
    if same:
        del plans[FASTEST]
    held: list[float] = []
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in plans}
    rounds = min(ROUNDS, steps)
    for k in range(rounds):
        names = list(plans) if k % 2 == 0 else list(reversed(plans))
        count = steps // rounds + (k < steps % rounds)
        for name in names:
            chosen = plans[name]
            assert chosen is not None
            session.load(chosen)
            if name == "plan" and k == 0:
                session.forget_peak()
            session.train(1)
            times[name].append(tuple(step_s(step) for step in session.train(count)))
            if name == "plan" and k == 0:
                held = session.peak_bytes()
    if same:
        times[FASTEST] = times["plan"]
    alone_s = [j.value for j in every]
    return LayerRun(
        predicted,
        {name: tuple(found) for name, found in times.items()},
        sum(min(alone_s) / s for s in alone_s),
        f"{session.engine.name}: torch.distributed",
        session.emulated,
        problem.worker_names[alone_s.index(min(alone_s))],
        errors[0],
        errors[1],
        {problem.worker_names[w]: held[w] for w in plan.workers},
        {problem.worker_names[w]: float(judgement.held_bytes[w]) for w in plan.workers},
        _inexact(session.model, plan) if check else "",
    )


def _inexact(model: TracedModel, plan: LayerPlan) -> str:
    """Why a plan does not compute what one process does; empty if it does."""
    from placewright.layers.execution.refusals import demand_exact

    try:
        demand_exact(model, plan)
    except UnsupportedError as error:
        return f"{error.what}: {error.by}"
    return ""


def checked(session: LayerSession, plan: LayerPlan) -> tuple[float, float]:
    """Largest difference of some steps from one process, and relative to them.

    Of the loss, compared with itself; of gradients, with the largest entry of any of them; of
    parameters and buffers after the update, with what the update changed.
    """
    from placewright.layers.execution.reference import ReferenceSteps, seeded

    session.load(plan)
    with seeded(0):
        reference = ReferenceSteps(session.model.source, session.update)
        found = [pair for _ in range(CHECKED_STEPS) for pair in _step_errors(session, reference)]
    absolute, relative = zip(*found, strict=True)
    # max() would drop a NaN that is not first.
    finite = all(map(math.isfinite, (*absolute, *relative)))
    return (max(absolute), max(relative)) if finite else (math.inf, math.inf)


def _step_errors(session: LayerSession, reference: ReferenceSteps) -> Iterator[tuple[float, float]]:
    """Absolute and relative differences of one step."""
    from placewright.layers.execution.session import loss_of

    if session.model.draws:
        session.draw_from(random_state())
    expected_loss, expected = reference.gradients()
    (times,) = session.train(1)
    gradients = session.gradients()
    if expected.keys() - gradients.keys():
        yield math.inf, math.inf
        return
    of_loss = abs(loss_of(times) - expected_loss)
    yield of_loss, of_loss / max(abs(expected_loss), TINY)
    largest = max((float(v.abs().max()) for v in expected.values()), default=0.0)
    for name, gradient in expected.items():
        off = float((gradients[name] - gradient).abs().max())
        yield off, off / max(largest, TINY)
    yield from reference.update_errors(gradients, session.parameters())


def alone(problem: LayerProblem) -> list[LayerJudgement]:
    """The whole step on every worker alone, whether it fits or not."""
    plans = (_data(problem, [w], [problem.global_batch]) for w in range(problem.w))
    return [judge(problem, plan) for plan in plans]


def equal_batches(problem: LayerProblem) -> LayerPlan | None:
    """Data parallelism as usual: all workers, as many samples each."""
    share, left = divmod(problem.global_batch, problem.w)
    if share == 0 or problem.w == 1:
        return None
    workers = range(problem.w)
    return _data(problem, workers, [share + (w < left) for w in workers])


def _data(problem: LayerProblem, workers: Sequence[int], shares: Sequence[int]) -> LayerPlan:
    replicas = tuple(Replica((w,), s) for w, s in zip(workers, shares, strict=True))
    return LayerPlan((Stage(0, problem.n - 1, replicas),))
