"""A model on worker processes that execute one layer plan after another.

Of several plans workers execute the best one that can be executed, or the fastest in trials.
Predictions of plans of unlike shapes (data parallelism, pipelines) are wrong by different amounts,
which a moment of each on the workers shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from placewright.adapt.trials import AHEAD, FAR, SURE, ShortTrials, hold_trials
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.state import demand_written
from placewright.capturing.updates import GivenOptimizer, Update, update_of
from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, PlacewrightError
from placewright.graph.graph import TensorSpec
from placewright.layers.execution.layer_module import StageOrder, WorkerStepTimes
from placewright.layers.execution.stage_orders import (
    TracedModel,
    groups_of,
    same_parts,
    stage_orders,
)
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan
from placewright.planning.candidates import Candidate, Outcome, Status, TriedPlan
from placewright.planning.result import Result
from placewright.planning.solving import solve
from placewright.runtime import limits
from placewright.runtime.engines.engine import Engine
from placewright.runtime.session import StateFiles, WorkerSession

if TYPE_CHECKING:
    from placewright.layers.problem import LayerProblem


PROGRAM = "placewright.layers.execution.worker:LayerWorker"


class LayerSession(WorkerSession):
    """A context manager: starts one worker per device, loads plans, trains steps.

    Parameters
    ----------
    model
        The traced model.
    engine
        Who starts the workers; children of this process by default.
    optimizer, lr
        As of `placewright.train`.
    """

    def __init__(
        self,
        model: TracedModel,
        cluster: Cluster,
        engine: Engine | None = None,
        *,
        optimizer: GivenOptimizer | TrainingRecipe | Update = "adam",
        lr: float = 1e-3,
    ) -> None:
        super().__init__(cluster, PROGRAM, engine)
        self.model, self.loaded = model, model
        self.update = update_of(optimizer, lr, model.source.model)
        self._files: StateFiles | None = None
        self.states: list[str] = []
        self.plan: LayerPlan | None = None
        self.orders: list[tuple[StageOrder, ...]] = []

    def begin(self) -> None:
        """Give the workers the initial state."""
        state = self.model.state()
        demand_written(state, f"model {self.model.source.name}")
        self._files = StateFiles(state)
        self.group.limit_s = limits.order_s(self._files.initial.stat().st_size)
        self.states = self.group.distribute(self._files.initial)

    @property
    def files(self) -> StateFiles:
        """Of the states that workers are given and give back."""
        assert self._files is not None, "within the context"
        return self._files

    def remove(self) -> None:
        """Remove the files of the state."""
        if self._files is not None:
            self._files.remove()

    def load(
        self,
        plan: LayerPlan,
        state: Mapping[str, Tensor] | None = None,
        *,
        rows: TracedModel | None = None,
    ) -> None:
        """Put a plan on the workers, from the model's initial state or another one.

        `rows`: the model traced on another number of samples, which the plan is for.
        Raises `UnsupportedError`: the plan cannot be executed.
        """
        self.loaded = rows or self.model
        orders = self.orders = self._orders(plan)
        files = self.states
        if state is not None:
            files = self.files.distributed(self.group, self.model.state() | dict(state))
        self.group.order_all("join_groups", groups_of(orders))
        trained = self.model.trained()
        self.group.order(
            "load_stage", [(o, f, trained) for o, f in zip(orders, files, strict=True)]
        )
        self.plan = plan
        self.feed(self.loaded.source)

    def resize(self, plan: LayerPlan, rows: TracedModel) -> None:
        """Put a plan for batches of another number of samples on the workers, with what they hold.

        Where every worker keeps its layers, their tensors stay where they are; the next batch has
        to be fed.

        `rows`: the model traced on so many samples.
        Raises `UnsupportedError`: the plan cannot be executed.
        """
        before, self.loaded = self.orders, rows
        orders = self._orders(plan)
        if not same_parts(before, orders):
            self.load(plan, self.training_state(), rows=rows)
            return
        self.group.order("resize_stage", [(own,) for own in orders])
        self.orders, self.plan = orders, plan

    def _orders(self, plan: LayerPlan) -> list[tuple[StageOrder, ...]]:
        return stage_orders(self.loaded, plan, len(self.cluster.devices), self.update)

    def feed(self, source: ModelSource) -> None:
        """Train on the inputs and targets of `source` from the next step on."""
        self.feed_tensors(self.loaded.feeds(source))

    def feed_tensors(self, batch: Mapping[str, Tensor]) -> None:
        """Likewise, by the names of `TracedStep.feeds`."""
        check_batch(self.loaded, batch)
        self.group.order_ahead("feed", [(packed(batch),)] * len(self.group.names))

    def train(
        self, steps: int = 1, *, update: bool = True, limit_s: float | None = None
    ) -> list[tuple[WorkerStepTimes, ...]]:
        """Train so many steps; times by step and worker.

        `update`: let the optimizer change the parameters.
        `limit_s`: seconds after which a worker is stuck.
        """
        if limit_s is None:
            limit_s = limits.patience(limits.FIRST_STEPS_S * steps)
        by_worker = self.group.order_all("train", steps, update, limit_s=limit_s)
        return [tuple(times) for times in zip(*by_worker, strict=True)]

    def held_bytes(self) -> list[int]:
        """Bytes that every worker holds now."""
        found: list[int] = self.group.order_all("held_bytes")
        return found

    def forget_peak(self) -> None:
        """Count the peak memory of all workers from now on."""
        self.group.order_all("forget_peak")

    def peak_bytes(self) -> list[float]:
        """Peak memory of every worker since `forget_peak`."""
        found: list[float] = self.group.order_all("peak_bytes")
        return found

    def state_elements(self) -> list[int]:
        """Elements of optimizer states (numbers per parameter apart) that every worker keeps."""
        found: list[int] = self.group.order_all("state_elements")
        return found

    def draw_from(self, random: bytes) -> None:
        """Let the next step draw from a state of the generator, as one process does.

        With replicas or micro-batches workers draw numbers of their own, which depend on it. The
        state after the step is in one of its times.
        """
        self.group.order_ahead("draw_from", [(random,)] * len(self.group.names))

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the last step by name of the parameter."""
        return self.files.collect(self.group, "gradients")

    def parameters(self) -> dict[str, Tensor]:
        """Parameters and buffers as they are now."""
        return self.files.collect(self.group, "parameters")

    def training_state(self) -> dict[str, Tensor]:
        """Parameters, buffers and states of the optimizer: what `load` goes on from."""
        return self.files.collect(self.group, "training_state")

    def disturb(self, name: str, times: float) -> None:
        """Slow a worker down so many times, or kill it in the next step (``inf``): for tests."""
        rank = self.cluster.device_names.index(name)
        ranks = range(len(self.cluster.devices))
        if math.isinf(times):
            self.group.order("end_in_next_step", [(r == rank,) for r in ranks])
        else:
            self.group.order("slow_down", [(times if r == rank else 1.0,) for r in ranks])


def packed(batch: Mapping[str, Tensor]) -> bytes:
    """A batch as safetensors, which takes no two tensors of one memory: inputs may be targets."""
    plain = {name: value.detach().resolve_conj().resolve_neg() for name, value in batch.items()}
    return save({n: v.clone(memory_format=torch.contiguous_format) for n, v in plain.items()})


def check_batch(model: TracedModel, batch: Mapping[str, Tensor]) -> None:
    """Raise where a batch is not like the one that was planned with.

    Raises `InputError`, which names the tensor, its shape and the planned one.
    """
    for name in model.step.feeds:
        spec, value = model.step.specs[name], batch[name]
        found = TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if found != TensorSpec(tuple(spec.shape), spec.dtype):
            raise InputError(
                "the batch differs from the one that was planned with",
                where=f"tensor {name}",
                by=f"{found.shape} {found.dtype}, planned for {tuple(spec.shape)} {spec.dtype}",
                hint="give batches of as many samples; the last may have fewer"
                if found.shape != tuple(spec.shape)
                else f"convert it with .to(torch.{spec.dtype})",
            )


def loss_of(times: tuple[WorkerStepTimes, ...]) -> float:
    """The loss of the whole batch in one step."""
    return float(np.sum([t.loss for t in times]))


def random_of(times: tuple[WorkerStepTimes, ...]) -> bytes:
    """State of the generator after the step, where it was given one before."""
    return next((t.random for t in times if t.random), b"")


def step_s(times: tuple[WorkerStepTimes, ...]) -> float:
    """Seconds of one step: of its slowest worker."""
    return max(t.step_s for t in times)


CLOSE, MOST_TRIED = 0.3, 4
"""Plans may change places whose steps are predicted to differ by less: so many are tried."""

LONGEST_S = 5.0
"""Predicted steps from which on nothing is tried."""


class LayerTrials(ShortTrials):
    """Trials of layer plans: few steps a turn and many turns, as machines are slow for seconds.

    A plan's time is the median of all its steps; who is surely behind drops out.
    """

    least_steps, turn_s, warm_up_steps = 2, 0.6, 1
    least_rounds, budget_s = 4, 15.0

    @property
    def step_s(self) -> tuple[float, ...]:
        """Median seconds per step of each, ``inf`` where it had no turn."""
        return tuple(map(self.times.median_s, self.candidates))

    @property
    def best(self) -> int:
        """The first candidate, unless it was fatal or another one is surely faster.

        On a machine that is busy with other work nothing is sure, and the prediction holds.
        """
        ahead = min((k for k in self.candidates if k != self.fatal), key=self.step_s.__getitem__)
        if self.fatal == 0:
            return ahead
        if not (self.times.turns(ahead) and self.times.turns(0)):
            return 0
        gap = self.times.behind(0, ahead)
        return ahead if gap > max(AHEAD, SURE * self.times.error(0, ahead)) else 0

    def _survivors(self) -> list[int]:
        ahead = min(self.left, key=self.step_s.__getitem__)
        return [
            k
            for k in self.left
            if self.round <= self.lenient_rounds
            or self.times.behind(k, ahead) <= max(FAR, SURE * self.times.error(k, ahead))
        ]


def executables(
    problem: LayerProblem,
    planner: str,
    demand: Callable[[LayerPlan], None],
    **settings: Any,
) -> Iterator[Result]:
    """Plans of `planner` that can be executed, best first; notes name better ones left out.

    At least one. `demand`: raises where a plan cannot be executed.
    Raises `UnsupportedError`: not even data parallelism or a single worker can be executed.
    """
    left_out: dict[LayerPlan, str] = {}
    given: set[LayerPlan] = set()
    for name in (planner, "data", "single"):
        try:
            result = solve(problem, name, **settings).demand_finished()
        except PlacewrightError:
            if name == planner:
                raise
            continue
        tried = [Candidate(result.planner, result.value, Outcome.FITS, 0.0)]
        plans = [(result.plan, tried[0]), *((c.plan, c) for c in result.candidates if c.fits)]
        for plan, entry in sorted(plans, key=lambda pair: pair[1].value):
            if plan in left_out or plan in given or not isinstance(plan, LayerPlan):
                continue
            try:
                demand(plan)
            except PlacewrightError as error:
                why = f"{error.what} ({error.where})" if error.where else error.what
                left_out[plan] = f"{entry.planner}, {entry.value:.4g} s: {why}"
                refused = error
                continue
            given.add(plan)
            yield result if plan == result.plan else _instead(result, plan, entry, left_out)
        if given:
            return
    raise refused


def _instead(
    result: Result, plan: LayerPlan, entry: Candidate, left_out: Mapping[LayerPlan, str]
) -> Result:
    """The result with another of its plans; its note told of the one predicted to be the best."""
    judged = judge(result.problem, plan)
    found = "; ".join(left_out.values())
    note = f"{entry.planner}: {_behind(judged.value, result)}"
    note += f"; predicted faster, but cannot be executed: {found}" if found else ""
    return replace(
        result,
        plan=plan,
        judgement=judged,
        planner=entry.planner,
        value=judged.value,
        status=Status.FEASIBLE if judged.feasible else Status.INFEASIBLE,
        note=note,
    )


def _behind(value: float, result: Result) -> str:
    """How a plan compares with the one that was predicted to be the best."""
    off = 100 * (value / result.value - 1) if result.value else 0.0
    return f"predicted {off:.1f} % above {result.planner}, the best by prediction"


def fastest(session: LayerSession, results: Iterable[Result]) -> tuple[Result, str]:
    """The fastest of a few results, executed in turns on the workers; why trials ended early.

    Where a worker dies, what was measured until then counts; Ctrl-C is raised.

    `results`: the one predicted to be the best first.
    """
    tried = closest(results)
    outcome = hold_trials(
        tried,
        lambda result: session.load(result.plan),
        lambda: step_s(session.train(1)[0]),
        trials=LayerTrials(len(tried)),
    )
    rows = [
        TriedPlan(result.planner, result.value, step_s, result is outcome.plan)
        for result, step_s in zip(outcome.plans, outcome.step_s, strict=True)
        if step_s < math.inf
    ]
    ended = f"trying plans ended early: {outcome.ended}" if outcome.ended else ""
    return outcome.plan.after_trials(rows), ended


def closest(results: Iterable[Result]) -> Sequence[Result]:
    """The first of `results`, and others within `CLOSE` of it: the best of every shape first."""
    found = iter(results)
    first = next(found)
    if first.value > LONGEST_S or not first.judgement.feasible:
        return [first]
    limit_s = (1 + CLOSE) * first.value
    close = [first, *takewhile(lambda r: r.value <= limit_s and r.judgement.feasible, found)]
    shapes = {_shape(result.plan): result for result in reversed(close)}
    return sorted(close, key=lambda r: shapes[_shape(r.plan)] is not r)[:MOST_TRIED]


def _shape(plan: LayerPlan) -> tuple[object, ...]:
    """Plans of one shape are predicted wrongly by about the same amount."""
    return tuple((len(s.replicas), s.tensor_degree, s.zero_stage) for s in plan.stages)
