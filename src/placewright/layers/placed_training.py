"""train(model, inputs, ...) -> PlacedTraining: measure, plan, train on workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import RunError, UnsupportedError
from placewright.io.arguments import Count, Unlimited, checked
from placewright.layers.plan import LayerPlan
from placewright.planning.contract import LOG, Monitor, Progress, monitor_of, silent
from placewright.planning.result import Result

if TYPE_CHECKING:
    import torch

    from placewright.adapt.training_loop import TrainingLoop
    from placewright.capturing.guards import Guards
    from placewright.capturing.source import ModelSource, OptimizerName, TrainingRecipe
    from placewright.capturing.updates import Factory
    from placewright.cluster.cluster import Cluster
    from placewright.layers.adaptive import AdaptiveLayerRun, LayerJob
    from placewright.layers.execution.session import LayerSession
    from placewright.layers.problem import LayerProblem
    from placewright.layers.run import LayerRun
    from placewright.runtime.engines.engine import Engine, EngineName


@checked
def train(
    model: Any,
    inputs: Any = None,
    cluster: Cluster | str | Path | None = None,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    optimizer: OptimizerName | type[Any] | torch.optim.Optimizer | TrainingRecipe | Factory = (
        "adam"
    ),
    lr: float = 1e-3,
    engine: EngineName | Engine = "local",
    emulate: bool = True,
    planner: str = "auto",
    plan: LayerPlan | str | Path | None = None,
    time_limit_s: Unlimited = 20.0,
    trials: bool = True,
    exact: bool = True,
    seed: int = 0,
    progress: Progress | Monitor = silent,
) -> PlacedTraining:
    """Decide how a model is trained on several workers, ready to be trained there.

    Every layer gets a strategy (data, tensor, pipeline, replicated) and every worker its share of
    the batch; slow workers may be left out.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, or what `placewright.load_model` returns.
    inputs, targets
        A whole batch.
    cluster
        The workers, or a file or preset of them; this machine by default.
    optimizer, lr
        ``adam`` or ``sgd``, or the class ``Adam``, ``AdamW`` or ``SGD`` of ``torch.optim``, and its
        learning rate; an object of one of these that has the model's parameters, in groups with
        numbers of their own; what makes one from these parameters; or a `TrainingRecipe` with one
        of these, which may clip and accumulate gradients, autocast, and scale the loss. An
        object's numbers are read before every step, so
        schedulers made from it take effect.
    engine
        Who starts the workers: ``local``, ``testbed`` (root), ``torchrun``, ``ray``. All but the
        testbed emulate the speeds of devices, and no links: messages take what they take.
    plan
        Use this plan, or the one in this file, instead of making one.
    trials
        Execute the few plans that are predicted to be fastest for some seconds, and take the one
        that is.
    exact
        Refuse plans that do not compute what one process computes: dropout, batch norm, or a loss
        that is no mean or sum over samples, on parts of the batch.
    progress
        As of `placewright.place`: of planning, and then of the trainer's events.

    Raises
    ------
    InfeasibleError
        No plan fits.
    UnsupportedError
        The model cannot be traced, or the plan cannot be executed; names the layer. Or workers
        cannot do what the optimizer does.
    InputError
        The optimizer does not have the parameters of the model that are trained.
    """
    from torch.optim import Optimizer

    from placewright.adapt.run import measured_despite_losses
    from placewright.capturing.guards import Guards
    from placewright.capturing.source import TrainingRecipe, source_of
    from placewright.capturing.updates import check_parameters, update_of
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster
    from placewright.layers.adaptive import LayerJob
    from placewright.layers.execution.layer_problem import measured_problem
    from placewright.layers.execution.session import LayerSession, executables, fastest
    from placewright.layers.execution.stage_orders import TracedModel, demand_executable
    from placewright.planning.solving import judged_plan
    from placewright.runtime.engines.engine import open_engine
    from placewright.runtime.engines.torchrun_agent import served_torchrun

    if served_torchrun(engine):
        raise SystemExit(0)
    source = source_of(model, inputs, loss_fn, targets, training=True, where="train")
    if isinstance(cluster, str | Path):
        cluster = load_cluster(str(cluster))
    cluster = Cluster.detect() if cluster is None else cluster
    started_by = engine if isinstance(engine, str) else engine.name
    if started_by != "testbed":  # collectives of torch.distributed cannot be slowed by waiting
        cluster = Cluster(cluster.devices, (), cluster.name)
    _refuse_without_data(source)
    if callable(optimizer) and not isinstance(optimizer, type):
        optimizer = optimizer([*source.model.parameters()])
    update = update_of(optimizer, lr, source.model)
    recipe = optimizer if isinstance(optimizer, TrainingRecipe) else None
    if recipe is not None and recipe.autocast is not None:
        source = replace(source, recipe=TrainingRecipe(autocast=recipe.autocast))
    named = optimizer if recipe is None else recipe.optimizer
    given = named if isinstance(named, Optimizer) else None
    if given is not None:
        check_parameters(given, source.model, source.name)
    traced = TracedModel(source)
    guards, monitor = Guards(source.model, source.loss_fn, training=True), monitor_of(progress)
    with ExitStack() as stack, ExitStack() as workers:
        started = (
            stack.enter_context(open_engine(engine, cluster, emulate=emulate))
            if isinstance(engine, str)
            else engine
        )

        def start() -> LayerSession:
            made = LayerSession(traced, cluster, started, optimizer=update)
            return workers.enter_context(made)

        def measured() -> tuple[LayerSession, LayerProblem]:
            workers.close()
            session = start()
            return session, measured_problem(session, exact=exact)

        (session, problem), tried = measured_despite_losses(measured, LOG.info), ""
        demand = partial(demand_executable, traced, workers=problem.w, exact=exact)
        if plan is None:
            with monitor.meter(f"planning layers of {source.name}") as meter:
                limits = {"time_limit_s": time_limit_s, "seed": seed, "progress": meter}
                found = executables(problem, planner, demand, **limits)
                result, tried = fastest(session, found) if trials else (next(found), "")
            if session.lost():  # one of the plans ended a worker
                workers.close()
                session = start()
        else:
            result = judged_plan(problem, plan)
            demand(result.plan)
        scaler = recipe.scaler if recipe is not None and recipe.scales else None
        job = LayerJob(traced, cluster, problem, started, update, given, exact, scaler=scaler)
        session.load(result.plan, job.states_of_given() or None)
        guards.follow()  # batch norm's statistics were put back
        notes = tuple(filter(None, [result.note, tried]))
        ends = workers.pop_all(), stack.pop_all()
        return PlacedTraining(job, session, result, *ends, notes, guards=guards, monitor=monitor)


def _refuse_without_data(source: ModelSource) -> None:
    model = source.model
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_meta:
            raise UnsupportedError(
                "the model is on the meta device, and has no values to train",
                where=f"model {source.name}, {name!r}",
                hint="load its weights first: model.to_empty(device='cpu'), then load_state_dict; "
                "placewright.layer_problem and `layers plan` need none",
            )


class PlacedTraining:
    """A model with a plan for its layers, and workers that train it. Made by `train`.

    A context manager that ends the workers.

    Attributes
    ----------
    result
        The plan with its predicted step time, lower bound, gap and status.
    measurement
        Of the last `run`, ``None`` before the first.
    notes
        Faster plans that cannot be executed, and layers that only measurements know.
    """

    def __init__(
        self,
        job: LayerJob,
        session: LayerSession,
        result: Result,
        workers: ExitStack,
        engine: ExitStack,
        notes: tuple[str, ...] = (),
        *,
        guards: Guards,
        monitor: Monitor,
    ) -> None:
        self._guards, self._monitor = guards, monitor
        self.notes = notes
        self._job, self._up, self.result = job, session, result
        self._workers, self._engine = workers, engine
        self._trainer: TrainingLoop[AdaptiveLayerRun] | None = None
        self.measurement: LayerRun | None = None

    def __enter__(self) -> PlacedTraining:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def plan(self) -> LayerPlan:
        """Stages of layers, their workers, shares and strategies."""
        plan: LayerPlan = self.result.plan
        return plan

    @property
    def judgement(self) -> Any:
        """What the judge predicts of the plan: step time, memory of every worker, trace."""
        return self.result.judgement

    @property
    def problem(self) -> Any:
        """The measured costs of layers, links and workers."""
        return self.result.problem

    @checked
    def run(self, steps: Count = 10, *, check: bool = False) -> LayerRun:
        """Measure the plan beside the fastest worker alone and equal batches, in turns.

        Training goes back to the initial parameters.

        Parameters
        ----------
        check
            Compare loss, gradients and updates of two steps with one process.

        Raises
        ------
        CheckError
            They differ; `measurement` is kept.
        """
        from placewright.layers.run import run

        session, plan = self._session, self.result.plan
        self._demand_unchanged()
        self.measurement = run(session, self.problem, plan, steps=steps, check=check)
        session.load(plan, self._job.states_of_given() or None)
        self._guards.follow()  # the check has put buffers back
        self.measurement.demand()
        return self.measurement

    @checked
    def trainer(
        self,
        folder: str | Path | None = None,
        *,
        adapt: bool = True,
        planner: str = "auto",
        snapshot_every: Count = 50,
        rejoin_every: Count = 20,
        patience_s: float = 10.0,
        seed: int = 0,
        disturbances: Mapping[int, tuple[str, Unlimited]] | None = None,
    ) -> TrainingLoop[AdaptiveLayerRun]:
        """Train batch after batch from the model's parameters, and adapt to the workers.

        Shares are balanced again when a worker becomes slower or faster; when one is lost, the
        others go on from the last snapshot. The trainer takes the workers over, and
        `run` of this object has them no more.

        Parameters
        ----------
        folder
            Snapshots; one that already holds some of this model continues that run. They are
            removed with the trainer where none is given.
        adapt
            Plan again when a worker changes its speed.
        planner
            Of these plans.
        snapshot_every, rejoin_every, patience_s
            As of `placewright.adapt.run.FaultTolerantRun`.
        disturbances
            Step -> worker and how many times slower it becomes then, ``inf`` kills it: to try the
            above.

        Raises
        ------
        InputError
            The folder holds another model's snapshots, or another run is using it.
        """
        from placewright.adapt.training_loop import TrainingLoop
        from placewright.io.scratch import Scratch
        from placewright.layers.adaptive import AdaptiveLayerRun
        from placewright.layers.training import LayerTraining

        session = self._session
        if folder is None:
            passing = Scratch()
            self._engine.callback(passing.cleanup)
            folder = passing.name
        run = AdaptiveLayerRun(
            self._job,
            Path(folder),
            snapshot_every,
            rejoin_every,
            patience_s,
            result=self.result,
            session=session,
            adapt=adapt,
            planner=planner,
            seed=seed,
            disturbances=disturbances or {},
        )
        self._workers.pop_all()  # the run ends them
        program = LayerTraining(self._job.model.source.model, run, self._guards)
        self._trainer = TrainingLoop(program, self._monitor, self)
        return self._trainer

    def _demand_unchanged(self) -> None:
        """Raise `InputError` where the model is another one than the workers have."""
        from placewright.capturing.guards import changed_model

        if not self._guards.unchanged() and (by := str(self._guards.changes())):
            hint = "train with placed.trainer(), which takes changes over, or place the model again"
            raise changed_model(by, f"placed {self._job.name}", hint)

    @property
    def _session(self) -> LayerSession:
        """The workers; raises `RunError` where a trainer has them."""
        if self._trainer is not None:
            raise RunError(
                "the workers belong to the trainer",
                where=self._job.name,
                hint="use the trainer's methods, or place the model again",
            )
        return self._up

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the plan with its prediction; ``layers simulate|explain`` read it."""
        return self.result.save(path)

    @checked
    def report(self, path: str | Path) -> Path:
        """Write a page: layers by strategy and stage, timeline, memory, predicted and measured."""
        return self.result.report(path, run=self.measurement)

    def close(self) -> None:
        """End the workers; twice is fine."""
        with self._engine, self._workers:
            if self._trainer is not None:
                self._trainer.close()

    def __repr__(self) -> str:
        measured = [] if self.measurement is None else [repr(self.measurement)]
        return "\n".join([repr(self.result), *measured])
