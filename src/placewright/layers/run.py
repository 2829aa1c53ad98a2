"""Execute a layer plan beside its baselines, in turns on the same workers, and compare.

`ReferenceSteps` are the same training steps in one process, by plain eager PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from placewright.capturing.program_calls import random_state
from placewright.capturing.source import ModelSource, TrainingRecipe, copied, default_loss
from placewright.capturing.updates import Update, update_of
from placewright.errors import CheckError, UnsupportedError
from placewright.layers.judge import LayerJudgement, judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.planners.space import judged as judged_plan
from placewright.layers.problem import LayerProblem
from placewright.measurement import SpeedUp, speed_up
from placewright.report.text import size

if TYPE_CHECKING:
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
    from placewright.layers.execution.stage_orders import demand_exact

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


def trained_alone(
    source: ModelSource,
    batches: Iterable[tuple[Any, Any]],
    optimizer: Update | str,
    lr: float = 1e-3,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and parameters after a step on every batch; the model is left as it was.

    `scaler`: as before the first step; it is stepped.
    """
    model, losses = copied(source.model, None)[0], list[float]()
    _train(model)
    update, named = update_of(optimizer, lr), dict(model.named_parameters())
    steps = update.made(named.values(), named)
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None else scaler
    for k, (inputs, targets) in enumerate(batches):
        if k % update.accumulate == 0:
            steps.zero_grad()
        loss = _loss(model, replace(source, inputs=inputs, targets=targets))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if (k + 1) % update.accumulate == 0:
            scaler.unscale_(steps)
            update.clip([p.grad for p in named.values() if p.grad is not None])
            scaler.step(steps)
            scaler.update()
        losses.append(float(loss.detach()))
    return losses, {name: value.detach() for name, value in model.state_dict().items()}


class ReferenceSteps:
    """Steps of one process, each from where the workers' last step has ended.

    So every step is compared by itself: what rounding makes of a gradient that is nearly zero,
    which Adam divides by its own size, is in no later one.
    """

    def __init__(self, source: ModelSource, update: Update) -> None:
        self.model, loss_fn = copied(source.model, source.loss_fn)
        self.source = replace(source, loss_fn=loss_fn)
        _train(self.model)
        self.parameters = {f"model.{n}": p for n, p in self.model.named_parameters()}
        self.update = update
        names = (name.removeprefix("model.") for name in self.parameters)
        self.optimizer = update.made(self.parameters.values(), names)

    def gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients of a step, clipped; the model's buffers are those after it."""
        self.optimizer.zero_grad()
        loss = _loss(self.model, self.source)
        loss.backward()  # type: ignore[no-untyped-call]
        found = {n: p.grad.clone() for n, p in self.parameters.items() if p.grad is not None}
        self.update.clip([*found.values()])
        return float(loss.detach()), found

    def update_errors(
        self, gradients: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> Iterator[tuple[float, float]]:
        """Update by the workers' gradients; by how much their parameters and buffers differ.

        Absolute, and as a part of the update or, where nothing is updated, of the values; without
        the rounding of the values. Then goes on from what the workers have.
        """
        before = {n: p.detach().clone() for n, p in self.parameters.items()}
        for name, p in self.parameters.items():
            p.grad = gradients.get(name)
        self.optimizer.step()
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        for name, value in ((f"model.{n}", v.detach()) for n, v in named):
            moved = (value - before[name]).abs().max() if name in before else value.new_zeros(())
            if name in state:
                yield _distance(state[name], value, float(moved))
                value.copy_(state[name])
            elif moved > 0:
                yield math.inf, math.inf


def _distance(found: Tensor, expected: Tensor, scale: float) -> tuple[float, float]:
    """Absolute, and beyond rounding as a part of `scale`."""
    found, wide = found.double(), expected.double()
    if not wide.numel() or torch.equal(found, wide):
        return 0.0, 0.0
    size, off = float(wide.abs().max()), float((found - wide).abs().max())
    rounding = 4 * torch.finfo(expected.dtype).eps * size if expected.is_floating_point() else 0.0
    if not math.isfinite(off):
        return math.inf, math.inf
    return off, max(off - rounding, 0.0) / (scale or size or 1.0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed, and eager's one thread; both are put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _train(model: nn.Module) -> None:
    """Training mode; modules of a model that is in it stay as the user set them."""
    if not model.training:
        model.train()


def _loss(model: nn.Module, source: ModelSource) -> Tensor:
    inputs, loss_fn = source.inputs, source.loss_fn or default_loss
    with (source.recipe or TrainingRecipe()).casting():
        if isinstance(inputs, dict):
            outputs = model(**inputs)
        else:
            outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
        return loss_fn(outputs, source.targets)
