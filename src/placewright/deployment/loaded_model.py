"""LoadedModel: a planned model on its workers, called with the weights that it has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.deployment.workload import MemoryComparison, Workload
from placewright.errors import InputError, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from placewright.capturing.guards import Guards
    from placewright.deployment.calls import Calls
    from placewright.deployment.workers import ModelWorkers
    from placewright.io.scratch import Scratch
    from placewright.io.tensor_files import AnyTensor
    from placewright.operators.adaptive.run import AdaptiveRun
    from placewright.planning.result import Result
    from placewright.runtime.session import Session

MEMORY_STEPS = 2
"""After which no step needs more memory than those before."""


class LoadedModel:
    """A plan that stays loaded on the workers from call to call.

    Attributes
    ----------
    workload
        The model with the weights that calls compute with: it follows changes of the model's own.
    workers
        The worker processes that execute it.
    result
        The plan with its value, lower bound, gap and status.
    """

    def __init__(
        self, workload: Workload, workers: ModelWorkers, result: Result, seed: int
    ) -> None:
        self.workload, self.workers, self.result, self._seed = workload, workers, result, seed
        self._calls: Calls | None = None
        self._loaded: tuple[Session, int] | None = None
        self._trained: Scratch | None = None
        # Calls that have changed a buffer since it was set: its state is the workers' alone.
        self._advanced: dict[str, int] = {}

    @property
    def calls(self) -> Calls:
        """Programs for calls of the model, by the form of the arguments."""
        if self._calls is None:
            from placewright.capturing.guards import Guards
            from placewright.deployment.calls import Calls
            from placewright.operators.run import execution_order

            load, result = self.workload, self.result
            order = execution_order(result.problem, result.judgement)
            trains = load.graph.program.training
            guards = None if trains else load.guards
            guards = guards or Guards(load.source.model, training=False)
            self._calls = Calls(load.captured, load.cluster, result.plan, order, guards)
        return self._calls

    def call(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """What the model returns for these arguments; threads of the caller take turns."""
        from placewright.capturing.program_calls import random_state, set_random_state

        with self.workers.turn:
            self.follow_weights()
            calls = self.calls
            form = calls.form(arguments := calls.arguments(args, keywords))
            with self._loaded_session() as session:
                calls.select(session, form)
                # The numbers that the model itself would draw here; the rest is left to the caller.
                random = random_state() if form.draws else b""
                record, made = session.call(form.batch(arguments), random=random)
                if random:
                    set_random_state(record.random)
                for name in form.changed:
                    self._advanced[name] = self._advanced.get(name, 0) + 1
                return form.returned(made)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The workers with the plan loaded, and with the weights that the model has now."""
        self.follow_weights()
        with self._loaded_session() as session:
            yield session

    @contextmanager
    def _loaded_session(self) -> Iterator[Session]:
        from placewright.operators.run import load_plan

        self._refuse_lost()
        result = self.result
        with self.workers.session(self.workload) as session:
            # A run or a stream has loaded something else since, or the workers are others.
            if self._loaded != (session, session.loads):
                load_plan(
                    session,
                    result.problem,
                    result.plan,
                    result.judgement,
                    self._seed,
                    step_s=result.value,
                )
                self._loaded = (session, session.loads)
            yield session

    def follow_weights(self) -> None:
        """Let the workers start again from the model's weights, where these have changed.

        Those in files are looked at before workers start: others may have been saved meanwhile.

        Raises `UnsupportedError`: inside a transform, a trace or the default device ``meta``.
        """
        from placewright.capturing.isolation import refuse_transforms

        refuse_transforms(f"placed {self.workload.graph.name}")
        with self.workers.turn:
            self.workers.refuse_while_streaming()  # whose samples have the weights from before
            self._refuse_while_training()
            changes = [guards.follow() for guards in self._guards()]
            model = any(bool(change.weights) for change in changes)
            changed = self.workload.refreshed(files=self.workers.up is None, model=model)
            if changed is not self.workload:
                self.workload, self._advanced = changed, {}
                self.workers.dismiss()

    def _refuse_while_training(self) -> None:
        """Raise if a trainer has the weights that a call would have to compute with.

        Raises `InputError`: it has, and is not closed.
        """
        run = self.workers.trained_by
        if run is not None:
            raise InputError(
                "a trainer of the placed model is open, and has its weights",
                where=self.workload.graph.name,
                by=f"after step {run.done}",
                hint="compute with trainer.evaluate(x); or end the trainer's `with` block first",
            )

    def _refuse_lost(self) -> None:
        """Raise if the workers that had what calls have changed in buffers are gone.

        Raises `RunError`: they are; the next workers would begin from the model's own buffers.
        """
        up = self.workers.up
        if not self._advanced or self._loaded == (up, up.loads if up else 0):
            return
        names = ", ".join(sorted(self._advanced))
        raise RunError(
            "what calls or a stream have written into buffers is lost with the workers that had it",
            where=f"model {self.workload.graph.name}: {names}",
            by=f"{max(self._advanced.values())} calls or batches",
            hint="set the buffers of the model (buffer.zero_(), model.load_state_dict(...)), from "
            "which the next call goes on; or place the model again",
        )

    def demand_as_placed(self) -> None:
        """Raise `InputError` where the model has become another one than what is loaded."""
        guards = self.workload.guards
        if guards is not None:
            where = f"placed {self.workload.graph.name}"
            guards.demand_as_captured(where, "place the model as it is now")

    def _guards(self) -> list[Guards]:
        """Of forward passes, and of the training step if that is what is loaded."""
        placed = self.workload.guards
        others = [] if placed is None or placed is self.calls.guards else [placed]
        return [self.calls.guards, *others]

    def keep_trained(self, run: AdaptiveRun) -> None:
        """Let workers write what they learned into files, from which later ones start."""
        from placewright.io.scratch import Scratch
        from placewright.io.tensor_files import stored_tensors

        folder = Scratch()
        run.save_state(Path(folder.name))
        inputs = self.workload.graph.program.inputs
        lasting = {item.name for item in inputs if item.role in ("parameter", "buffer")}
        # File by file: a buffer that several devices keep is in several.
        files = sorted(Path(folder.name).glob("*.safetensors"))
        learned = {n: t for f in files for n, t in stored_tensors(f).items() if n in lasting}
        state = {**self.workload.values, **learned}
        self.workload = replace(self.workload, state=state, files=None)
        self._trained = folder  # the files stay while they are needed
        self.workers.dismiss()

    def weights(self) -> dict[str, AnyTensor]:
        """Parameters and persistent buffers as they are now, by name in the model."""
        run = self.workers.trained_by
        if run is not None:
            trainer = self.workers.trainer()
            with nullcontext() if trainer is None else trainer.handed_over():
                return self._weights(run.state())
        if self.workers.up is None:
            refreshed = self.workload.refreshed(files=True)
            if refreshed is not self.workload:
                self.workload, self._advanced = refreshed, {}
        self._refuse_lost()
        program, changed = self.workload.graph.program, {}
        session = self._loaded[0] if self._loaded is not None else None
        live = session is not None and self._loaded == (self.workers.up, session.loads)
        if live and not program.training and any(item.mutated for item in program.inputs):
            with self.session() as session:
                changed = session.state()
        return self._weights(changed)

    def _weights(self, changed: Mapping[str, Tensor]) -> dict[str, AnyTensor]:
        from placewright.deployment.export import current_weights

        load = self.workload
        return current_weights(load.captured, load.values, load.weights, changed)

    def memory(self) -> dict[str, MemoryComparison]:
        """What each device has needed since the plan was loaded, beside what the judge predicted.

        Forms of arguments that came after the example need memory of their own. Where nothing has
        been executed since, for one after a `run` that measured other plans in turns, two steps
        are.
        """
        predicted = self.result.judgement.peak_bytes.tolist()
        with self.session() as session:
            if not session.executed:
                session.run(MEMORY_STEPS)
                if any(item.mutated for item in self.workload.graph.program.inputs):
                    self._loaded = None  # those steps have changed the state; calls must not see it
            measured = session.memory_peaks()
            names = session.cluster.device_names
        pairs = zip(names, predicted, measured, strict=True)
        return {name: MemoryComparison(expected, found) for name, expected, found in pairs}
