"""place(model, inputs) -> PlacedModel: capture, profile, calibrate and plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import load_cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.io.arguments import Unlimited, checked
from placewright.numerics.collector import collector_paused
from placewright.planning.contract import Monitor, Planner, Progress, monitor_of, silent
from placewright.planning.result import Result
from placewright.planning.solving import AUTO

if TYPE_CHECKING:
    import torch

    from placewright.capturing.recipe import OptimizerName, TrainingRecipe
    from placewright.deployment.workers import Workers
    from placewright.deployment.workload import Workload
    from placewright.operators.plan import OperatorPlan
    from placewright.profiling.build import Method
    from placewright.profiling.table import ProfileTable
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
        ``loss_fn(outputs, targets)``; the mean square of the outputs where none is given.
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
    from placewright.deployment.calls import refuse_changed_arguments
    from placewright.deployment.workers import Workers, shared_process
    from placewright.deployment.workload import profiled, source_of
    from placewright.runtime.engines.torchrun_agent import served_torchrun

    if served_torchrun(engine):
        raise SystemExit(0)
    if isinstance(cluster, str | Path):
        cluster = load_cluster(str(cluster))
    cluster = Cluster.detect() if cluster is None else cluster
    monitor = monitor_of(progress)
    workers = Workers(engine, cluster, emulate=emulate, together=shared_process(gpus))
    if method != "analytic":  # two workers measure what messages cost
        workers.begin()
    workload = profiled(
        source_of(
            model,
            inputs,
            loss_fn,
            targets,
            training=training,
            optimizer=optimizer,
            lr=lr,
            micro_batches=micro_batches,
        ),
        cluster,
        training=training,
        method=method,
        table=table,
        weights=weights,
        monitor=monitor,
    ).with_options(objective=objective, contiguous=contiguous)
    if not training:
        refuse_changed_arguments(workload.graph)
    return deploy(
        workload,
        workers,
        planner=planner,
        plan=plan,
        time_limit_s=time_limit_s,
        calibrate=calibrate,
        trials=trials,
        seed=seed,
        monitor=monitor,
    )


def deploy(
    workload: Workload,
    workers: Workers,
    *,
    planner: str | Planner = AUTO,
    plan: OperatorPlan | str | Path | None = None,
    time_limit_s: Unlimited | None = None,
    calibrate: bool = True,
    trials: bool = True,
    seed: int = 0,
    monitor: Monitor,
) -> PlacedModel:
    """Calibrate a profiled model on its workers, plan it, and try the closest plans.

    See `place` for the parameters. A worker that is lost meanwhile is replaced. The workers are
    closed where it fails.
    """
    with collector_paused():
        from placewright.adapt.run import measured_despite_losses
        from placewright.deployment.measuring import on_workers
        from placewright.deployment.planning import (
            Choice,
            interference_of_streams,
            judged,
            measured_interference,
            planned,
            tried,
        )
        from placewright.deployment.streams import can_be_copied
        from placewright.operators.interference import InterferenceProfile
        from placewright.operators.problem import Objective
        from placewright.profiling.profile_warnings import warn_of_shared_cores

    try:
        known = InterferenceProfile.alike(workload.problem)
        if workers.engine.name == "local":
            warn_of_shared_cores(workload.cluster.name, workload.cluster.devices)
        local = workers.engine.name == "local" or workload.state is None
        streamed = workload.problem.objective is Objective.THROUGHPUT
        if calibrate and not local:
            later = streamed and not workload.graph.program.training
            known = measured_despite_losses(
                lambda: measured_interference(workload, workers, monitor, streamed=later),
                monitor.note,
            ).with_options(workload.problem)
        copies = streamed and can_be_copied(workload)
        if calibrate and streamed and not local:
            alone = known
            known = measured_despite_losses(
                lambda: interference_of_streams(
                    workload, workers, alone, monitor, seed=seed, copies=copies
                ),
                monitor.note,
            )
        if plan is not None:
            results: tuple[Result, ...] = (judged(known, plan),)
        else:
            results = planned(
                known,
                planner,
                time_limit_s=time_limit_s,
                seed=seed,
                monitor=monitor,
                measure=on_workers(workload, workers),
                copies=copies,
            )
        choice = Choice(results[0], known)
        executable = not streamed or not workload.graph.program.training
        if trials and not local and executable and len(results) > 1:
            choice = measured_despite_losses(
                lambda: tried(workload, known, results, workers, monitor, seed=seed), monitor.note
            )
        others = tuple(other for other in results if other.plan is not choice.result.plan)
        return PlacedModel(
            workload,
            workers,
            choice.known,
            choice.result,
            others,
            tried=choice.tried,
            seed=seed,
            monitor=monitor,
        )
    except BaseException:
        workers.close()
        raise
