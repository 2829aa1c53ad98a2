"""PlacedModel: a planned model on its workers, to call, run, train, save and report."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.deployment.loaded_model import LoadedModel
from placewright.errors import InputError
from placewright.io.arguments import Count, checked
from placewright.measurement import Measurement
from placewright.planning.candidates import Status
from placewright.planning.contract import Monitor, Progress, monitor_of

if TYPE_CHECKING:
    import torch

    from placewright.adapt.timeline import Timeline
    from placewright.adapt.training_loop import TrainingLoop
    from placewright.deployment.planning import Choice
    from placewright.deployment.training import OperatorTraining
    from placewright.deployment.workers import ModelWorkers
    from placewright.deployment.workload import Workload
    from placewright.operators.adaptive.adaptation import AdaptationPolicy
    from placewright.operators.adaptive.run import AdaptiveRun
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.run import Runner
    from placewright.operators.streaming.run import StreamMeasurement
    from placewright.runtime.engines.engine import Engine, EngineName

MEASURED_STEPS = 10
"""At most, for the measurement that precedes a run that adapts."""


class PlacedModel(LoadedModel):
    """A model with a plan for its operators, and workers that execute it.

    Made by `place`. A context manager that ends the workers; they are started when first needed.

    Attributes
    ----------
    result
        The plan with its value, lower bound, gap and status.
    measurement
        Of the last `run`, ``None`` before the first.
    timeline
        Events of the last run that adapted, ``None`` before the first.
    workers
        The worker processes that execute it.
    monitor
        Shows progress and takes notes.
    interference
        The costs of operators on devices that work alone, and on several at a time.
    tried
        Plans whose streams were executed for a moment before one was taken: predicted and measured
        seconds per sample of each.
    """

    def __init__(
        self,
        workload: Workload,
        workers: ModelWorkers,
        choice: Choice,
        *,
        seed: int,
        monitor: Monitor,
    ) -> None:
        super().__init__(workload, workers, choice.result, seed)
        self.interference, self._others, self.tried = choice.known, choice.others, choice.tried
        self.measurement: Measurement | None = None
        self.stream_measurement: StreamMeasurement | None = None
        self.timeline: Timeline | None = None
        self.monitor = monitor

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """What the model returns for these arguments, computed on the workers.

        In evaluation mode and without gradients, from the weights that the model has now. Arguments
        of other shapes than the example's are captured when they first come (seconds), and the last
        eight forms of arguments are kept.

        Returns
        -------
        The same containers, classes and names as the model's, with tensors on the CPU.

        Raises
        ------
        InputError
            The model does not take the arguments, or one has another dtype than the example.
        InfeasibleError
            Arguments of this size do not fit.
        RunError
            The placed model is closed.
        WorkerError
            A worker died or raised; the next call starts others.
        """
        self.workers.check_open()
        return self.call(args, keywords)

    @checked
    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """What the model returns for each batch, in order; several are in flight on the workers.

        While one device works on one batch, others work on others, as many as the memory that was
        planned with allows. Batches are taken as there is room for them. A worker that is lost
        costs time and no batch: the devices that are left get another plan and go on.

        Parameters
        ----------
        batches
            What the model is called with each time: a tensor, a tuple or list of arguments, or a
            dict of keywords. A run of batches of equal shapes is one stream.

        Raises
        ------
        InputError
            As of a call, once the batches before that one are delivered; or the workers are
            executing another stream.
        RunError
            The placed model was closed meanwhile.
        WorkerError
            A worker was lost, and the others cannot go on.

        Examples
        --------
        >>> for outputs in placed.stream(loader):
        ...     print(outputs.argmax(-1))
        """
        from placewright.deployment.streams import PlacedStream

        self.follow_weights()
        self._refuse_advanced()
        placed = PlacedStream(
            self.workload,
            self.workers,
            self.calls,
            self.result.problem,
            self.plan,
            seed=self._seed,
            monitor=self.monitor,
        )
        return self._counted(placed.run(batches))

    def _refuse_advanced(self) -> None:
        """Raise where calls have changed buffers: a stream begins with the model's own.

        Raises `InputError`: they have.
        """
        if self._advanced:
            raise InputError(
                "a stream begins with the model's own buffers, and the workers have newer ones",
                where=f"model {self.workload.graph.name}: {', '.join(sorted(self._advanced))}",
                by=f"{max(self._advanced.values())} calls or batches",
                hint="call the placed model instead; or set the buffers of the model "
                "(model.load_state_dict(placed.state_dict())), from which the stream begins then",
            )

    def _counted(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """Outputs of a stream, and note that what it writes into buffers ends with it."""
        written = [i.key for i in self.workload.graph.program.inputs if i.mutated]
        with closing(outputs):  # type: ignore[type-var]
            for output in outputs:
                for name in written:
                    self._advanced[name] = self._advanced.get(name, 0) + 1
                yield output

    def __enter__(self) -> PlacedModel:
        return self

    def __reduce__(self) -> Any:
        """Raise: worker processes cannot be copied."""
        raise InputError(
            "a placed model holds worker processes, which can be neither pickled nor copied",
            where=f"placed {self.workload.graph.name}",
            hint="save it with save_pretrained(folder), or take to_module() for a plain module",
        )

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; what was planned and measured stays."""
        self.workers.close()

    @property
    def plan(self) -> Any:
        """The plan: ``plan.placement`` has the device of every operator."""
        return self.result.plan

    @property
    def value(self) -> float:
        """Predicted seconds of a step."""
        return self.result.value

    @property
    def lower_bound(self) -> float:
        """Seconds that no plan can beat."""
        return self.result.lower_bound

    @property
    def gap(self) -> float:
        """``value / lower_bound - 1``."""
        return self.result.gap

    @property
    def status(self) -> Status:
        """Whether the plan is proved optimal."""
        return self.result.status

    @property
    def plans(self) -> tuple[OperatorPlan, ...]:
        """The plan, and others that a run that adapts may try."""
        return tuple(result.plan for result in (self.result, *self._others))

    @checked
    def with_plan(self, plan: OperatorPlan | str | Path) -> PlacedModel:
        """The same model on the same workers, by another plan or the one in this file.

        Raises
        ------
        InfeasibleError
            It does not fit; says by how much.
        """
        from placewright.deployment.planning import Choice, judged

        result = judged(self.interference, plan)
        choice = Choice(result, self.interference, others=(self.result, *self._others))
        return PlacedModel(
            self.workload, self.workers, choice, seed=self._seed, monitor=self.monitor
        )

    @contextmanager
    def runner(self) -> Iterator[Runner]:
        """The workers, to measure and check several results of this problem on."""
        from placewright.operators.run import Runner

        with self.workers.session(self.workload) as session:
            yield Runner(session)

    @checked
    def run(
        self,
        steps: Count = 10,
        *,
        check: bool = False,
        adapt: bool = False,
        snapshots: str | Path | None = None,
        engine: EngineName | Engine | None = None,
        warmup: int = 2,
        seed: int | None = None,
        progress: Progress | Monitor | None = None,
    ) -> Measurement:
        """Execute steps, in turns with the best single device, and measure both.

        Parameters
        ----------
        steps
            Measured ones. With `adapt` at most ten are measured, and the run does so many.
        check
            Compare with plain eager PyTorch, from the same state and seed; the numbers are in the
            ``check`` of the measurement and of the timeline.
        adapt
            Then do `steps` steps that watch themselves, plan again when something changes, and
            survive lost workers: see `timeline`. A Ctrl-C ends them after the one it comes in.
        snapshots
            Folder in which the run that adapts keeps its state, and from which it is continued.
        engine
            Another engine, for this call only, than the one that the model was placed with.
        warmup
            Steps that do not count before the first round.
        seed
            Of random numbers in the steps; that of `place` by default.
        progress
            As in `place`, and the same by default.

        Returns
        -------
        What was measured; ``speed_up`` says how much faster the plan is than one device.

        Raises
        ------
        CheckError
            A step differs from eager PyTorch; `measurement` and `timeline` are kept.
        WorkerError
            A worker died or raised, outside of steps that adapt.
        """
        if check and self.workload.weights:
            raise InputError(
                "the weights are in files, so this process has no eager model to compare with",
                where=f"model {self.workload.graph.name}",
                hint="compare a call with placed.to_module()(x), where the memory suffices",
            )
        if snapshots is not None and not adapt:
            raise InputError("snapshots are for runs that adapt", hint="add adapt=True")
        from placewright.deployment.workers import beside_single
        from placewright.operators.run import Runner

        self.follow_weights()
        self.demand_as_placed()
        monitor = self.monitor if progress is None else monitor_of(progress)
        seed = self._seed if seed is None else seed
        with nullcontext(self.workers) if engine is None else self.workers.on(engine) as workers:

            def measured() -> Measurement:
                what = "running the plan"
                with beside_single(self, workers, monitor, what) as (session, meter, single):
                    meter.step("first steps")
                    return Runner(session).measure(
                        self.result,
                        beside=single,
                        progress=meter,
                        steps=min(steps, MEASURED_STEPS) if adapt else steps,
                        warmup=warmup,
                        seed=seed,
                        check=self.workload.source if check else None,
                    )

            if not adapt:
                self.measurement = measured()
            else:
                from placewright.adapt.run import measured_despite_losses
                from placewright.deployment.training import run_adaptively

                self.measurement = measured_despite_losses(measured, monitor.note)
                self.timeline = run_adaptively(
                    self,
                    workers,
                    steps=steps,
                    seed=seed,
                    snapshots=None if snapshots is None else Path(snapshots),
                    check=check,
                    monitor=monitor,
                )
        checks = [self.measurement.check]
        if adapt and self.timeline is not None:
            checks.append(self.timeline.check)
        for each in checks:
            if each is not None:
                each.demand()
        return self.measurement

    @checked
    def measure_stream(
        self,
        samples: int = 30,
        *,
        check: bool = False,
        seed: int | None = None,
        progress: Progress | Monitor | None = None,
    ) -> StreamMeasurement:
        """Execute a stream of samples, in turns with that of the best single device.

        Several samples are in flight: while one device works on one of them, others work on
        others. The model is to be placed with ``objective="throughput"``.

        Parameters
        ----------
        samples
            Measured ones, after those that fill the pipeline.
        check
            Compare samples that differ with plain eager PyTorch.
        seed, progress
            As of `run`.

        Raises
        ------
        UnsupportedError
            The plan cannot be streamed; a training step, for one.
        WorkerError
            A worker died or raised.
        """
        from placewright.deployment.workers import beside_single
        from placewright.operators.streaming.run import measure_stream

        self.follow_weights()
        self.demand_as_placed()
        monitor = self.monitor if progress is None else monitor_of(progress)
        what = "streaming samples through the plan"
        with beside_single(self, self.workers, monitor, what) as (session, meter, single):
            found = measure_stream(
                session,
                self.result,
                beside=single,
                progress=meter,
                samples=samples,
                seed=self._seed if seed is None else seed,
                check=self.workload.source if check else None,
            )
        self.measurement, self.stream_measurement = found.measurement, found
        if self.measurement.check is not None:
            self.measurement.check.demand()
        return found

    @checked
    def trainer(
        self,
        folder: str | Path | None = None,
        *,
        steps: int | None = None,
        adapt: bool = True,
        policy: AdaptationPolicy | None = None,
        snapshot_every: int = 50,
        rejoin_every: int = 20,
        patience_s: float = 10.0,
        seed: int | None = None,
        schedulers: Any = (),
        check: bool = False,
    ) -> TrainingLoop[AdaptiveRun]:
        """Train batch after batch on the workers, from an ordinary PyTorch loop.

        Until it is closed the trainer owns the weights: `state_dict`, `save_pretrained` and
        `to_module` give those that it has trained so far, and calls are refused.

        Parameters
        ----------
        folder
            Snapshots; one that already holds some of this model continues that run. They are
            removed with the trainer where none is given.
        steps, adapt, policy, snapshot_every, patience_s
            As of `placewright.operators.adaptive.run.AdaptiveRun`.
        rejoin_every
            Steps before a device that was lost once is looked for.
        seed
            Of random numbers in the steps, which are a sequence of their own. By default steps
            draw from PyTorch's global generator, as the model itself would: what
            ``torch.manual_seed`` sets holds.
        schedulers
            One or several of ``torch.optim.lr_scheduler``, made from the optimizer object that the
            model was placed with: stepped after every update, and kept in snapshots.
        check
            Do every step in eager PyTorch too, on a copy of the model in this process, and compare
            losses, parameters and buffers; ``finish`` writes the model and then raises if they
            differ. What was found is in ``timeline.check``.

        Raises
        ------
        InputError
            The model was not placed with ``training=True``; another trainer of it is open; or the
            folder holds another model's snapshots, or another run is using it. With `check`: the
            run continues another one, or the model has no weights here.
        """
        from placewright.adapt.training_loop import TrainingLoop

        program = self.training_program(
            folder,
            schedulers=schedulers,
            check=check,
            steps=steps,
            adapt=adapt,
            policy=policy,
            snapshot_every=snapshot_every,
            rejoin_every=rejoin_every,
            patience_s=patience_s,
            seed=seed,
        )
        trainer = TrainingLoop(program, self.monitor, self)
        self.workers.trainer = weakref.ref(trainer)
        return trainer

    def training_program(
        self,
        folder: str | Path | None = None,
        *,
        schedulers: Any = (),
        check: bool = False,
        steps: int | None = None,
        adapt: bool = True,
        policy: AdaptationPolicy | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> OperatorTraining:
        """What a trainer executes, on the workers of this model; see `trainer`."""
        from placewright.deployment.training import OperatorTraining, adaptive_run
        from placewright.io.scratch import Scratch
        from placewright.operators.adaptive.adaptation import AdaptationPolicy

        load = self.workload
        if not load.graph.program.training:
            raise InputError(
                "the model was placed for inference",
                where=load.graph.name,
                hint="place it with training=True, its loss_fn and example targets",
            )
        self.follow_weights()
        self.demand_as_placed()
        load = self.workload
        passing = None
        if folder is None:
            passing = Scratch()
            folder = passing.name
        run = adaptive_run(
            self,
            self.workers,
            Path(folder),
            steps=float("inf") if steps is None else steps,
            try_plans=adapt and steps is not None,
            adapt=adapt,
            policy=policy or AdaptationPolicy(),
            seed=seed,
            **settings,
        )
        program = OperatorTraining(
            load.captured,
            run,
            schedulers=tuple(schedulers) if isinstance(schedulers, tuple | list) else (schedulers,),
            guards=None if load.weights else load.guards,
            weights=load.weights,
            keep=self.keep_trained if load.weights else None,
            check=check,
            passing=passing,
        )
        self.timeline = run.timeline
        self.workers.training = weakref.ref(run)
        return program

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the model's ``state_dict`` returns, with the weights that calls compute with.

        Copies, on the CPU of this process; `save_pretrained` needs no memory for them.
        """
        from placewright.deployment.export import own_tensor

        return {name: own_tensor(weight) for name, weight in self.weights().items()}

    @checked
    def save_pretrained(self, folder: str | Path) -> Path:
        """Write weights as safetensors files, the plan, and the model's ``config`` if it has one.

        ``place(model, x, cluster, weights=FOLDER, plan=FOLDER/plan.json)`` takes them up, and for
        a model of transformers so does ``from_pretrained(FOLDER)``. A save over an earlier one that
        is killed leaves the earlier weights or the new ones, complete.

        Returns
        -------
        The folder.

        Raises
        ------
        InputError
            Another save into the folder is under way, or the workers read their weights from it.
        RunError
            The disk does not take them.
        """
        from placewright.deployment.export import only_saver, save_weights

        path = Path(folder)
        with only_saver(path):
            save_weights(self.workload, self.weights(), path)
            self.save(path / "plan.json")
        return path

    def to_module(self) -> torch.nn.Module:
        """A plain copy of the model with the weights that calls compute with, on the CPU."""
        from placewright.deployment.export import plain_module

        return plain_module(self.workload.source.model, self.weights())

    @checked
    def explain(self, name: str) -> Any:
        """Where an operator or a module runs, and what moving it would change."""
        return self.result.explain(name)

    @checked
    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page: the plan, and what was measured in the last `run`."""
        return self.result.report(path, self.measurement, self.workload.graph, self.timeline)

    @checked
    def trace(self, path: str | Path) -> Path:
        """Write a Perfetto/Chrome trace (``.json.gz``): the plan and a measured step of it."""
        return self.result.trace(path, self.measurement)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, which ``place(..., plan=path)`` reads."""
        return self.result.save(path)

    def __repr__(self) -> str:
        measured = [] if self.measurement is None else [repr(self.measurement)]
        return "\n".join([repr(self.result), *measured])

    def _repr_html_(self) -> str:
        return self.result._repr_html_()
