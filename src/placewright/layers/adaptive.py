"""A training run of a layer plan: shares follow the speeds of workers, survivors go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from placewright.adapt.device_factors import Drift
from placewright.adapt.membership import reachable_on
from placewright.adapt.run import DistributedJob, FaultTolerantRun
from placewright.adapt.snapshot import RANDOM, Batch, Replaced, Snapshot
from placewright.adapt.timeline import Kind
from placewright.capturing.containers import demand_constants, in_order_of
from placewright.capturing.source import ModelSource, as_arguments
from placewright.capturing.updates import (
    ACCUMULATED,
    HOLD,
    OPTIMIZER,
    SCALE,
    SETTINGS,
    Update,
    current_settings,
    optimizer_states,
)
from placewright.cluster.cluster import Cluster
from placewright.errors import PlacewrightError, UnsupportedError
from placewright.graph.graph import TensorSpec
from placewright.io.tensor_files import write_tensors
from placewright.layers.execution.layer_module import WorkerStepTimes
from placewright.layers.execution.session import (
    LayerSession,
    check_batch,
    executables,
    loss_of,
    random_of,
    step_s,
)
from placewright.layers.execution.stage_orders import TracedModel, demand_executable
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import own_forward_s
from placewright.layers.tracing import batch_of, with_batch
from placewright.planning.result import Result
from placewright.report.text import seconds
from placewright.runtime.engines.engine import Engine

TOLERANCE = 0.2
"""Relative change of a worker's own forward passes from which on shares are planned again."""

LEAST_GAIN = 0.05
"""Predicted gain per step below which the plan stays: predictions are not finer."""

PLANNING_S = 5.0
"""Time limit for planning again, while all workers wait."""


@dataclass
class AdaptiveLayerRun(FaultTolerantRun[LayerSession]):
    """A context manager; `step` does one training step, whatever happens meanwhile.

    A worker's speed is the time of its own forward passes. Where that has changed by more than
    `TOLERANCE` for some steps, the problem is scaled and planned again; where the new plan is
    predicted to be faster by `LEAST_GAIN`, it comes into force with the parameters and optimizer
    states as they are. Where a worker is gone, the others go on from the last snapshot.

    Attributes
    ----------
    result
        The plan in force at first, and then.
    adapt
        Whether to plan again when a worker changes its speed.
    planner
        By name.
    begin
        State that training begins with, where it is not what the session's workers were given.
    disturbances
        Step -> worker and how many times slower it becomes; ``inf``: it is killed. For tests.
    loss, grad_norm
        Of the last step; the norm is that of the gradients before they were clipped, else NaN.
    overflow
        Whether a scaled gradient of the last step was infinite.
    """

    job: LayerJob
    result: Result | None = None
    adapt: bool = True
    planner: str = "auto"
    seed: int = 0
    disturbances: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    begin: Mapping[str, torch.Tensor] | None = None
    loss: float = float("nan")
    grad_norm: float = float("nan")
    overflow: bool = False
    factors: dict[str, float] = field(default_factory=dict)
    _ready: bool = False
    _drifts: dict[str, Drift] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and states of the optimizer as they are now."""
        found = self._survive(self.done, lambda: self._workers().training_state())
        return self.job.complete(found)

    def keep_begin(self) -> None:
        """Keep what training began with: the model is about to get other values."""
        if self.log.saved == 0:
            self.begin = {**self.job.model.state(), **(self.begin or {})}

    def put_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from other values of what steps change: they are the run's next snapshot."""
        whole = self.job.complete(state)
        self._survive(self.done, lambda: self.log.save(Replaced(self, whole), self.done))
        self._ready = False  # the next step loads that snapshot

    def recapture(self) -> None:
        """Trace the model as it is now, for the next steps; those before are not repeated by it.

        Raises `InputError`: it has other layers.
        Raises `UnsupportedError`: the plan cannot be executed with it.
        """
        if self.done:
            self.finish()
        model = self.job.model.again()
        demand_executable(model, self.plan, self.problem.w, exact=self.job.exact)
        self.job = replace(self.job, model=model, sizes={})
        if self.session is not None:
            self.session.model = model
        self._ready = False

    @property
    def plan(self) -> LayerPlan:
        """In force; the one of the whole cluster before the first step."""
        assert self.result is not None
        plan: LayerPlan = self.result.plan
        return plan

    @property
    def problem(self) -> LayerProblem:
        """On the workers that are alive, at the speeds that are known now."""
        return problem_of(self.job.problem, self.alive(), self.factors)

    # What a snapshot takes (`RunningJob`).

    def save_state(self, folder: Path) -> None:
        """Write everything that steps have changed."""
        state = self.job.complete(self._workers().training_state())
        write_tensors(folder / "state.safetensors", state)

    def random_state(self) -> bytes:
        """State of the generator after the last step; empty where none draws."""
        return self.random

    def placement(self) -> dict[str, str]:
        """Layer -> its workers."""
        plan, p = self.plan, self.problem
        stages = (plan.stages[plan.stage_of(k)] for k in range(p.n))
        workers = (" ".join(p.worker_names[w] for w in stage.workers) for stage in stages)
        return dict(zip(p.layer_names, workers, strict=True))

    def _running(self) -> AdaptiveLayerRun | None:
        return self if self._ready else None

    def _dismiss(self) -> None:
        self._ready = False
        super()._dismiss()

    def _load(self, snapshot: Snapshot | None) -> None:
        names = self.alive()
        if self.session is None or self.session.cluster.device_names != names:
            self._dismiss()
            self.session = self.job.session(names)
        if self.result is None or self.result.problem.worker_names != names:
            self.result = self._planned(self.problem)
        if snapshot is not None:
            self.job = self.job.keeping(snapshot.state)
        self.session.load(self.plan, self.begin if snapshot is None else snapshot.state)
        self._ready = True
        self._watch()

    def _repeat(self, batch: Batch | None) -> None:
        self._execute(batch)

    def _advance(self, batch: Batch | None) -> None:
        self._disturb(self.done + 1)
        times = self._execute(batch)
        self._counted()
        self.timeline.stepped(step_s(times), {"loss": self.loss})
        if self.adapt and self._workers().loaded is self.job.model:
            self._observe(times)

    def _disturb(self, step: int) -> None:
        """Slow down or kill the worker that is to be disturbed in a step, once."""
        disturbed = self.disturbances.get(step)
        if disturbed is not None and disturbed[0] in self.alive():
            self.disturbances = {k: d for k, d in self.disturbances.items() if k != step}
            self._workers().disturb(*disturbed)

    def _execute(self, batch: Batch | None) -> tuple[WorkerStepTimes, ...]:
        session, result = self._workers(), self.result
        assert result is not None
        if batch is not None:
            self._size(session, self.job.rows_of(batch))
            session.feed_tensors({n: t for n, t in batch.items() if n != RANDOM})
            if RANDOM in batch:
                session.draw_from(bytes(batch[RANDOM].numpy()))
        limit_s = self.timeout.step_limit_s(self.timeline, lambda: float(result.value))
        (times,) = session.train(1, limit_s=limit_s)
        self.loss, self.random = loss_of(times), random_of(times)
        self.grad_norm = next((t.grad_norm for t in times if not math.isnan(t.grad_norm)), math.nan)
        self.overflow = any(t.overflow for t in times)
        return times

    def _size(self, session: LayerSession, rows: int) -> None:
        """Take batches of so many samples, with the state as it is."""
        if rows == session.loaded.batch:
            return
        model = self.job.sized(rows)
        plan = self.plan if model is self.job.model else self._smaller_plan(model)
        session.resize(plan, model)

    def _smaller_plan(self, model: TracedModel) -> LayerPlan:
        """The plan on all its workers, on one replica of each stage, or on one worker alone.

        The first of these that can be executed.
        Raises `UnsupportedError`: none can.
        """
        alone = Stage(0, self.problem.n - 1, (Replica((self.plan.workers[0],), model.batch),))
        for plan in (*smaller(self.plan, model.batch), LayerPlan((alone,))):
            try:
                demand_executable(model, plan, self.problem.w, exact=self.job.exact)
            except UnsupportedError as error:
                refusal = error
            else:
                return plan
        raise refusal

    def _watch(self) -> None:
        """Watch the workers of a plan that has come into force."""
        names, problem = self.alive(), self.problem
        self._drifts = {names[w]: Drift(TOLERANCE) for w in self.plan.workers}
        for w in self.plan.workers:
            rate = self._rates.get(names[w])  # measured over predicted; unknown before its steps
            if rate is not None:
                self._drifts[names[w]].expect(rate * own_forward_s(problem, self.plan, w))

    def _observe(self, times: tuple[WorkerStepTimes, ...]) -> None:
        """Plan again where a worker has become slower or faster since its plan came into force."""
        names, changed = self.alive(), []
        for w in self.plan.workers:
            drift = self._drifts[names[w]]
            if drift.note(times[w].work_s):
                changed.append(names[w])
            elif drift.settled and names[w] not in self._rates:
                expected_s = own_forward_s(self.problem, self.plan, w)
                self._rates[names[w]] = drift.reference_s / expected_s
        if not changed:
            return
        for name in changed:
            drift = self._drifts[name]
            now_s, before_s = drift.recent_s, drift.reference_s
            # On top of the last change: the reference was measured with that in force.
            self.factors[name] = self.factors.get(name, 1.0) * now_s / before_s
            text = f"{name}: forward passes"
            self.timeline.note(self.done, Kind.DRIFT, text, before_s=before_s, now_s=now_s)
            drift.accept()
        self._replan()

    def _replan(self) -> None:
        problem = self.problem
        current = judge(problem, self.plan)
        try:
            found = self._planned(problem)
        except PlacewrightError as error:
            self.timeline.note(self.done, Kind.STAY, f"no other plan: {error.what}")
            return
        numbers = {"current_s": current.value, "new_s": float(found.value)}
        if found.plan == self.plan or found.value > (1.0 - LEAST_GAIN) * current.value:
            self.timeline.note(self.done, Kind.STAY, "no plan is faster", **numbers)
            return
        start = time.perf_counter()
        self._migrate(found)
        text = f"shares {shares(problem, self.plan)}, predicted {seconds(float(found.value))}"
        numbers["seconds"] = time.perf_counter() - start
        self.timeline.note(self.done, Kind.MIGRATE, text, **numbers)

    def _migrate(self, found: Result) -> None:
        """Put another plan on the same workers; parameters and optimizer states stay."""
        session = self._workers()
        state = session.training_state()
        self.result = found
        session.load(self.plan, state)
        self.timeline.plans += 1
        self._watch()

    def _planned(self, problem: LayerProblem) -> Result:
        demand = partial(demand_executable, self.job.model, workers=problem.w, exact=self.job.exact)
        limits: dict[str, Any] = {"time_limit_s": PLANNING_S, "seed": self.seed}
        return next(executables(problem, self.planner, demand, **limits))


def smaller(plan: LayerPlan, rows: int) -> tuple[LayerPlan, ...]:
    """The plan for fewer samples, with no more of them at a time on any worker.

    On the same workers, where each has a sample, in proportion to its share; then on the largest
    replica of each stage.
    """
    largest = [max(stage.replicas, key=lambda replica: replica.share) for stage in plan.stages]
    count = _parts(rows, largest[0].share)
    stages = [
        replace(stage, replicas=(replace(replica, share=rows // count),), zero_stage=0)
        for stage, replica in zip(plan.stages, largest, strict=True)
    ]
    alone = replace(plan, stages=tuple(stages), micro_batches=count)
    count = _parts(rows, plan.micro_batch)
    if any(rows // count < len(stage.replicas) for stage in plan.stages):
        return (alone,)
    stages = [_with_rows(stage, rows // count) for stage in plan.stages]
    return replace(plan, stages=tuple(stages), micro_batches=count), alone


def _parts(rows: int, most: int) -> int:
    """The least number of equal parts of at most so many rows."""
    return next(m for m in range(1, rows + 1) if rows % m == 0 and rows // m <= max(1, most))


def _with_rows(stage: Stage, rows: int) -> Stage:
    """The stage with fewer samples of a micro-batch: each replica its part, and one at least."""
    exact = [rows * share / sum(stage.shares) for share in stage.shares]
    found = [max(1, math.floor(each)) for each in exact]
    while sum(found) != rows:
        step = 1 if sum(found) < rows else -1
        free = [k for k in range(len(found)) if found[k] + step >= 1]
        found[max(free, key=lambda k: step * (exact[k] - found[k]))] += step
    pairs = zip(stage.replicas, found, strict=True)
    return replace(stage, replicas=tuple(replace(r, share=share) for r, share in pairs))


def shares(problem: LayerProblem, plan: LayerPlan) -> str:
    """Samples of a step by worker, as text."""
    found = [
        f"{'+'.join(problem.worker_names[w] for w in r.workers)} {r.share * plan.micro_batches}"
        for r in plan.stages[0].replicas
    ]
    stages = f" in {len(plan.stages)} stages" if len(plan.stages) > 1 else ""
    return ", ".join(found) + stages


@dataclass(frozen=True, slots=True, eq=False)
class LayerJob(DistributedJob):
    """What is trained, where, and by what.

    Attributes
    ----------
    problem
        As measured on all workers of the cluster.
    update
        What the optimizer does.
    given
        The user's optimizer object, if one was given.
    exact
        Refuse plans that do not compute what one process computes.
    changing
        What steps change, as of when the model was placed: parameters, buffers, states of the
        optimizer. Parameters that are frozen later keep theirs.
    scaler, scaler_begin
        The user's scaler of the loss, if one was given, and its state when the model was placed.
    sizes
        The model on other numbers of samples, which batches had so far.
    kept
        Values of what no layer reads any more, though earlier steps have changed it.
    """

    model: TracedModel
    cluster: Cluster
    problem: LayerProblem
    engine: Engine
    update: Update
    given: torch.optim.Optimizer | None = None
    exact: bool = True
    changing: Mapping[str, TensorSpec] = field(default_factory=dict)
    scaler: torch.amp.GradScaler | None = None
    scaler_begin: Mapping[str, Any] = field(default_factory=dict)
    sizes: dict[int, TracedModel] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.changing:
            object.__setattr__(self, "changing", self._changing())
        if self.scaler is not None and not self.scaler_begin:
            object.__setattr__(self, "scaler_begin", self.scaler.state_dict())

    @property
    def name(self) -> str:
        """Of the model."""
        return self.model.source.name

    @property
    def reachable(self) -> Callable[[Sequence[str]], Collection[str]]:
        """Which of the named workers can all talk to each other now."""
        return reachable_on(self.engine)

    def session(self, names: Collection[str]) -> LayerSession:
        """Start workers on the devices called `names`.

        Raises `PlacewrightError`: they cannot be started.
        """
        left = self.cluster.part(names)
        session = LayerSession(self.model, left, self.engine, optimizer=self.update)
        return session.__enter__()

    def _changing(self) -> dict[str, TensorSpec]:
        step, state = self.model.step, self.model.held()
        held = {n: _spec(state[n]) for n in {*step.parameters.values(), *step.buffers.values()}}
        for name in self.model.trained():
            held |= {f"{OPTIMIZER}{key}:{name}": held[name] for key in self.update.moments}
            if self.update.counts_steps:
                held[f"{OPTIMIZER}step:{name}"] = TensorSpec((), "float32")
            if self.update.accumulate > 1:
                held[f"{OPTIMIZER}{ACCUMULATED}:{name}"] = held[name]
        return held

    def batch(self, inputs: Any, targets: Any, step: int) -> dict[str, torch.Tensor]:
        """What workers are fed with for one step: a batch, and the numbers of the update.

        `step`: from 1; gradients are kept until one that is a multiple of `Update.accumulate`.

        Raises `InputError`: the batch is another one than was planned with, or the optimizer asks
        for another update.
        """
        source = self._like_example(inputs, targets)
        rows = batch_of(source)
        # A larger one might not fit: it is refused as it is.
        model = self.sized(rows) if 0 < rows < self.model.batch else self.model
        batch = model.feeds(source)
        check_batch(model, batch)
        if self.given is not None:
            batch[SETTINGS] = current_settings(self.given, self.update)
        if self.scaler is not None:
            batch[SCALE] = torch.tensor(self.scaler.get_scale())
        if step % self.update.accumulate:
            batch[HOLD] = torch.tensor(1)
        return batch

    def _like_example(self, inputs: Any, targets: Any) -> ModelSource:
        """The model on a batch, in the containers of the example.

        Raises `InputError`: the batch has other values beside tensors, which programs hold.
        """
        example = self.model.source
        arguments = in_order_of(example.arguments, as_arguments(inputs, "batch"))
        ordered = in_order_of(example.targets, targets)
        demand_constants(example.arguments, arguments, "input")
        demand_constants(example.targets, ordered, "target")
        return replace(example, inputs=arguments, targets=ordered)

    def sized(self, rows: int) -> TracedModel:
        """The model traced on batches of so many samples."""
        if rows == self.model.batch:
            return self.model
        if rows not in self.sizes:
            self.sizes[rows] = TracedModel(with_batch(self.model.source, rows))
        return self.sizes[rows]

    def rows_of(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Samples of a batch that `batch` has made."""
        step = self.model.step
        return next((len(batch[name]) for name in step.feeds if name in step.batched), step.batch)

    def states_of_given(self) -> dict[str, torch.Tensor]:
        """States of the optimizer object before the first step here, by the names of `changing`."""
        if self.given is None:
            return {}
        return optimizer_states(self.given, self.model.source.model, self.update)

    def keeping(self, state: Mapping[str, torch.Tensor]) -> LayerJob:
        """The job, with what this state of training has and workers will not."""
        layers = self.model.programs(self.model.batch)
        read = {n for p in layers for n in (*p.parameters.values(), *p.buffers.values())}
        kept = {name: v for name, v in state.items() if name.rpartition(":")[2] not in read}
        return replace(self, kept=kept)

    def complete(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state with what no worker has.

        Parameters that no layer reads are the model's own; moments that no gradient has touched are
        zeros, with which Adam begins.
        """
        held = self.model.held()

        def own(name: str) -> torch.Tensor:
            if name in self.kept:
                return self.kept[name]
            if name in held:
                return held[name].detach().clone()
            spec = self.changing[name]
            return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))

        return {name: state[name] if name in state else own(name) for name in self.changing}


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def problem_of(
    problem: LayerProblem, names: Collection[str], factors: dict[str, float]
) -> LayerProblem:
    """The problem on the workers called `names`, each so many times slower than measured."""
    keep = [w for w, name in enumerate(problem.worker_names) if name in names]
    kinds = problem.worker_kind[keep]
    times = np.array([factors.get(problem.worker_names[w], 1.0) for w in keep])
    slower = times[:, None, None, None]
    return problem.replace(
        worker_names=tuple(problem.worker_names[w] for w in keep),
        # Every worker becomes a kind of its own: they no longer take the same times.
        worker_kind=np.arange(len(keep)),
        worker_node=problem.worker_node[keep],
        memory_bytes=problem.memory_bytes[keep],
        framework_bytes=problem.framework_bytes[keep],
        kind_names=tuple(problem.worker_names[w] for w in keep),
        forward_s=problem.forward_s[kinds] * slower,
        backward_s=problem.backward_s[kinds] * slower,
        begin_s=problem.begin_s[kinds] * times,
        optimizer_s=problem.optimizer_s[kinds] * times,
        optimizer_fixed_s=problem.optimizer_fixed_s[kinds] * times,
        pack_s=problem.pack_s[kinds] * times,
        send_s=problem.send_s[kinds] * times,
        receive_s=problem.receive_s[kinds] * times,
        message_s=problem.message_s[kinds] * times,
    )
