"""place(model, inputs) -> PlacedModel: capture, profile, calibrate and plan; and `Trainer`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from placewright.adapt.training_loop import TrainingLoop
from placewright.cluster.cluster import Cluster
from placewright.cluster.files import load_cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import Unlimited, checked
from placewright.numerics.collector import collector_paused
from placewright.operators.adaptive.run import AdaptiveRun
from placewright.planning.contract import Monitor, Planner, Progress, monitor_of, silent
from placewright.planning.solving import AUTO

if TYPE_CHECKING:
    import torch

    from placewright.capturing.source import OptimizerName, TrainingRecipe
    from placewright.operators.plan import OperatorPlan
    from placewright.profiling.profiler import Method, ProfileTable
    from placewright.runtime.engines.engine import Engine, EngineName


@checked
def place(
    model: Any,
    inputs: Any = None,
    cluster: Cluster | str | Path | None = None,
    training: bool = False,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    optimizer: OptimizerName | torch.optim.Optimizer | TrainingRecipe = "adam",
    lr: float = 1e-3,
    micro_batches: int | None = None,
    engine: EngineName | Engine = "local",
    emulate: bool = True,
    gpus: Literal["together", "apart"] | None = None,
    method: Method = "auto",
    table: ProfileTable | None = None,
    weights: str | Path | None = None,
    planner: str | Planner = AUTO,
    plan: OperatorPlan | str | Path | None = None,
    objective: Literal["latency", "throughput"] = "latency",
    contiguous: bool = False,
    time_limit_s: Unlimited | None = None,
    calibrate: bool = True,
    trials: bool = True,
    seed: int = 0,
    progress: Progress | Monitor = silent,
) -> PlacedModel:
    """Decide where each operator of a PyTorch model should run, ready to be run there.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, or what `placewright.load_model` returns, with inputs of its own.
    inputs
        What the model is called with: a tensor, a tuple or list of arguments, or a dict.
    cluster
        The devices, or a file or preset of them; this machine by default.
    training
        Place the whole step (forward, loss, backward, optimizer) instead of the forward pass.
    loss_fn, targets
        ``loss_fn(outputs, targets)``; where none is given, what the model returns as ``loss`` or as
        its only number, else the mean square of the outputs.
    optimizer, lr
        ``adam`` or ``sgd``, and its learning rate; or an optimizer object that has the model's
        parameters; or a `placewright.TrainingRecipe`, which clips and accumulates gradients too.
    micro_batches
        With `training`: cut every batch into so many parts along its first dimension, whose forward
        and backward passes overlap on the devices, and update once; as
        ``TrainingRecipe(micro_batches=...)``. As many are in flight as the memories allow.
    engine
        Who starts the workers: ``local``, ``testbed`` (root), ``torchrun``, ``ray``. The processes
        that torchrun started beside the first one serve it here, and end in `SystemExit`.
    emulate
        Wait where devices and links are slower than the machines that are there.
    gpus
        One process for the GPUs of a node (with the engine ``local``), or one each; by default
        ``together`` where all are on one node.
    method, table
        How operators are timed, and times that are known already: see `placewright.profile`.
    weights
        A safetensors file, or a folder of them, for a model on the meta device: each worker reads
        what lives on its device, and this process none of it. Without them such a model can be
        planned and not run. Operators are then timed one at a time unless `method` says otherwise.
    planner
        A name, ``"auto"``, or a planner of your own.
    plan
        Use this plan, or the one in this file, instead of making one.
    objective
        ``latency``: the time of one step. ``throughput``: that between two samples of a stream, of
        which several are in flight; see `PlacedModel.measure_stream`.
    contiguous
        With ``throughput``: one contiguous part of the model on each device.
    time_limit_s
        For planning; by default from 1 to 60 s, by the size of the model, and no longer than what
        a better plan could save in 1,000 steps.
    calibrate
        With every engine but ``local``, execute whole steps on each device and correct the profile
        by what they take, then steps on several devices, or a stream through them for
        ``throughput``, to measure how these slow each other.
    trials
        With ``auto``, and every engine but ``local``, execute the plans that are predicted to be
        nearly equal and take the fastest: steps, or streams for ``throughput`` (see
        `PlacedModel.tried`). A run that adapts does that in its first steps, so it needs none here.
    progress
        Called as the work goes on. Notes on what was found go to the logger ``placewright`` at
        level INFO, or to the `note` of a `placewright.planning.contract.Monitor`.

    Returns
    -------
    A `PlacedModel`; its workers end with its ``with`` block, with `PlacedModel.close`, or with
    the program.

    Raises
    ------
    InfeasibleError
        No plan fits; says by how much the best one misses.
    UnsupportedError
        The model cannot be captured, or the engine cannot be had here.
    KeyboardInterrupt
        Ctrl-C; says what was found until then. The workers are ended.

    Examples
    --------
    >>> with placewright.place(model, x, cluster, training=True, engine="testbed") as placed:
    ...     print(placed.run(steps=200, adapt=True, check=True))
    ...     placed.report("run.html")
    """
    with collector_paused():
        from placewright.capturing.source import source_of
        from placewright.deployment.calls import refuse_changed_arguments
        from placewright.deployment.planning import Chooser
        from placewright.deployment.workers import ModelWorkers, shared_process
        from placewright.deployment.workload import profiled
        from placewright.runtime.engines.torchrun_agent import served_torchrun

    if served_torchrun(engine):
        raise SystemExit(0)
    if micro_batches is not None and not training:
        raise InputError(
            "micro-batches are for training steps",
            where=f"micro_batches={micro_batches}",
            hint="add training=True; for inference give several batches to placed.stream",
        )
    if isinstance(cluster, str | Path):
        cluster = load_cluster(str(cluster))
    cluster = Cluster.detect() if cluster is None else cluster
    monitor = monitor_of(progress)
    workers = ModelWorkers(engine, cluster, emulate=emulate, together=shared_process(gpus))
    if method != "analytic":  # two workers measure what messages cost
        workers.begin()
    source = source_of(model, inputs, loss_fn, targets, training=training, where="place")
    if training:
        source = source.with_recipe(optimizer, lr, micro_batches)
    workload = profiled(
        source,
        cluster,
        training=training,
        method=method,
        table=table,
        weights=weights,
        monitor=monitor,
    ).with_options(objective=objective, contiguous=contiguous)
    if not training:
        refuse_changed_arguments(workload.captured)
    choice = Chooser(workload, workers, monitor, seed).choose(
        planner=planner,
        plan=plan,
        time_limit_s=time_limit_s,
        calibrate=calibrate,
        trials=trials,
    )
    return PlacedModel(workload, workers, choice, seed=seed, monitor=monitor)


@checked
class Trainer(TrainingLoop[AdaptiveRun]):
    """Places a training step and executes it batch after batch, in the user's own loop.

    In five lines::

        with Trainer(model, x, cluster, loss_fn=loss_fn, targets=y, optimizer=optimizer) as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()

    As ``placewright operators run --training`` does, it calibrates on the workers of the engine,
    plans, and with `adapt` tries plans, watches its steps, migrates and notes every event. Lost
    workers are survived with and without `adapt`.

    Parameters
    ----------
    model, inputs, cluster
        As of `placewright.place`.
    engine
        ``local``, ``testbed``, ``torchrun``, ``ray``. Under torchrun every process executes the
        script up to here; rank 0 goes on, the others serve it and end in `SystemExit`.
    adapt
        Plan again when something changes, and try plans in the first of `steps` steps.
    check, folder, steps, schedulers
        As of `placewright.PlacedModel.trainer`.
    loop
        Further settings of `placewright.PlacedModel.trainer`.
    placing
        Further settings of `placewright.place`: ``loss_fn``, ``targets``, ``optimizer``, ...

    Raises
    ------
    PlacewrightError
        As of `placewright.place` and `placewright.PlacedModel.trainer`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Any,
        cluster: Cluster | str | Path | None = None,
        *,
        engine: EngineName | Engine = "local",
        adapt: bool = True,
        check: bool = False,
        folder: str | Path | None = None,
        steps: int | None = None,
        schedulers: Any = (),
        loop: dict[str, Any] | None = None,
        **placing: Any,
    ) -> None:
        # A run that adapts tries plans in its first steps, where it knows how many there are.
        placing = {"trials": not adapt or steps is None, **placing}
        known = [*signature(PlacedModel.trainer).parameters][1:]
        for name in loop or {}:
            if name not in known:
                raise UnknownNameError("setting", str(name), known, where="Trainer(loop=...)")
        placed = place(model, inputs, cluster, training=True, engine=engine, **placing)
        settings = {"adapt": adapt, "check": check, "steps": steps, "schedulers": schedulers}
        try:
            program = placed.training_program(folder, **settings, **(loop or {}))
            super().__init__(program, placed.monitor, placed)
        except BaseException:
            placed.close()
            raise

    def close(self) -> None:
        """End the run and its workers; snapshots stay."""
        try:
            super().close()
        finally:
            self.placed.close()
