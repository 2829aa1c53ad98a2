"""TrainingLoop: an ordinary PyTorch training loop over heterogeneous devices, whatever the plan.

ModelChanges: what a training loop reads and changes of its model while workers have the weights.

Between two steps the newest weights and optimizer state are the workers'. What the loop does with
its own objects means the same as in eager PyTorch, or is refused by name::

    model(x), a weight, a buffer          the workers' weights are written into the model first
    optimizer.state, its state_dict()     likewise
    changed weights or optimizer state    taken over
    frozen parameters, modes, attributes  the step is captured again, on the same devices
    parameters that were never trained    refused: workers keep no state for them
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from placewright.adapt.run import interrupts_wait
from placewright.adapt.snapshot import RANDOM, Batch
from placewright.adapt.timeline import QUIET, Timeline, event_text
from placewright.capturing.guards import Changes, Guards, changed_model
from placewright.capturing.isolation import refuse_transforms
from placewright.capturing.program_calls import set_random_state
from placewright.capturing.read_watch import ReadWatch, read_newest
from placewright.capturing.state import is_expanded
from placewright.capturing.update_rule import refuse_step_hooks
from placewright.errors import InputError, UnsupportedError
from placewright.io.arguments import checked

if TYPE_CHECKING:
    import torch

    from placewright.adapt.run import FaultTolerantRun
    from placewright.measurement import Check
    from placewright.planning.contract import Monitor


Run = TypeVar("Run", bound="FaultTolerantRun[Any]")


class UnfinishedWarning(UserWarning):
    """A trainer was closed, and the model does not have what was learned."""


class TrainingProgram(ABC, Generic[Run]):
    """What a training loop needs of the plan that it executes: one class for each kind of plan.

    Attributes
    ----------
    model
        The user's, into which what was learned is written.
    run
        Executes the steps; the loop closes it.
    optimizer
        The user's object, ``None`` where none was given.
    guards
        What the captured step assumes of the model; without them changes of it are not seen.
    accumulate
        Steps whose gradients are added up for one update.
    """

    model: torch.nn.Module
    run: Run
    optimizer: torch.optim.Optimizer | None = None
    guards: Guards | None = None
    accumulate: int = 1

    @property
    @abstractmethod
    def plan(self) -> Any:
        """In force now."""

    @abstractmethod
    def step(self, inputs: Any, targets: Any) -> float:
        """Do one step on the run; its loss."""

    @abstractmethod
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the weights as they are now, by their names in the model."""

    @abstractmethod
    def learned(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters and buffers in a state of the run, by their names in the model."""

    @abstractmethod
    def write_optimizer(self, state: Mapping[str, torch.Tensor]) -> None:
        """Write a state of the run into the optimizer object, if there is one."""

    @abstractmethod
    def put(self) -> None:
        """Let workers go on from the model's weights and the optimizer's state."""

    @abstractmethod
    def recapture(self) -> None:
        """Capture the step again before the next one; steps before it are not repeated by it."""

    def close(self) -> None:
        """End the run."""
        self.run.close()

    def fetch(self) -> None:
        """Write the workers' weights and optimizer state into the model and the optimizer."""
        import torch

        if not self.run.done:
            return
        state = self.run.state()
        learned = self.learned(state)
        with torch.no_grad():
            for name, member in self.members():
                # An expanded tensor has one place for several values: no step can change it.
                if name in learned and not is_expanded(member):
                    member.copy_(learned[name])
        self.write_optimizer(state)

    def members(self) -> Iterable[tuple[str, Any]]:
        """Parameters and buffers that learn, by the keys of `learned`."""
        return (*self.model.named_parameters(), *self.model.named_buffers())

    @contextmanager
    def drawing(self, batch: Batch, *, draws: bool) -> Iterator[Batch]:
        """A batch whose step draws what eager PyTorch would draw, from this process's generator.

        Behind the block the generator is where eager PyTorch leaves it. The first step of a
        continued run goes on with the numbers of the snapshot.

        `draws`: whether the step draws at all.
        """
        if not draws:
            yield batch
            return
        if continued := self.run.log.restored_random:
            set_random_state(continued)
            self.run.log.restored_random = b""
        done = self.run.done
        try:
            yield {**batch, RANDOM: torch.get_rng_state()}
        except BaseException:
            if self.run.done > done:  # a Ctrl-C takes effect behind the step
                set_random_state(self.run.random)
            raise
        set_random_state(self.run.random)

    def changed(self) -> None:
        """Take in that the loop has changed the model, and that workers follow it."""
        return

    def check(self) -> Check | None:
        """How the steps compare with eager PyTorch, where that was asked for."""
        return None

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the last step."""
        return dict(self.run.timeline.scalars[-1])

    def outputs(self) -> Any:
        """Outputs of the model in the last step; `UnsupportedError` where the plan keeps none."""
        raise _of_operators("outputs", self.run)

    def evaluate(self, inputs: Any) -> Any:
        """Outputs in evaluation mode; `UnsupportedError` where the plan has no such step."""
        raise _of_operators("evaluate", self.run)


def _of_operators(what: str, run: FaultTolerantRun[Any]) -> UnsupportedError:
    return UnsupportedError(
        "workers that share every batch return no outputs of the model",
        where=f"trainer.{what}(...)",
        by=f"after step {run.done}",
        hint="call trainer.finish(), then the model itself",
    )


@checked
class TrainingLoop(Generic[Run]):
    """Trains a placed model batch after batch, in the user's own loop.

    Made by `placewright.PlacedModel.trainer` and `placewright.PlacedTraining.trainer`; it is what
    `placewright.Trainer` is. It adapts to devices and links that change, and goes on from its last
    snapshot when a worker is lost::

        with place(model, x, cluster, training=True, ...).trainer("folder") as trainer:
            for x, y in trainer.remaining(loader):
                loss = trainer.step(x, y)
            trainer.finish()                 # the model holds what was learned

    While it is open it owns the state: what the placed model saves are the workers' weights. A
    ``with`` block that ends without an error calls `finish` where the loop did not. After an error
    the model is as it was, and the error has a note that says so.

    Attributes
    ----------
    placed
        The placed model.
    run
        Executes the steps; the trainer closes it.
    """

    def __init__(
        self, program: TrainingProgram[Run], monitor: Monitor | None = None, placed: Any = None
    ) -> None:
        self._program, self._monitor, self.placed = program, monitor, placed
        self.model, self.run = program.model, program.run
        self._to_skip = self.run.done
        self._kept = self._noted = 0
        self._changes: ModelChanges | None = None
        if program.guards is not None:
            self._changes = ModelChanges(
                program.guards,
                program.optimizer,
                fetch=program.fetch,
                put=program.put,
                members=lambda: [member for _, member in program.members()],
                recapture=program.recapture,
                done=lambda: self.run.done,
                accumulate=program.accumulate,
            )
        if monitor is not None:
            note_start(self.run, monitor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._unfinished():
                self.finish()
            elif error is not None and self._unfinished():
                error.add_note(self._lost())
        finally:
            self._kept = self.run.done
            self.close()

    def step(self, inputs: Any, targets: Any = None) -> float:
        """One training step; the loss.

        A batch of another shape than the example (the last one of an epoch) is captured when its
        shape first comes, and runs on the same devices; where workers share every batch it is
        refused.

        A Ctrl-C takes effect when the step is done, a second one at once. The batch is copied:
        its tensors may be used again for the next one. Events of the run (a lost worker, a
        migration) are noted.

        Raises
        ------
        InputError
            A batch of another type than the example, or of a shape that the model does not take;
            or the loop has changed the model or the optimizer in a way that cannot be taken over.
        InfeasibleError
            The model does not fit on the devices that are left.
        """
        with self._followed():
            loss = self._program.step(inputs, targets)
        if self._monitor is not None:
            note_events(self.run, self._noted, self._monitor)
            self._noted = len(self.timeline.events)
        return loss

    def evaluate(self, inputs: Any) -> Any:
        """Outputs of the model for `inputs` in evaluation mode, with its weights as they are now.

        On the workers, between two steps; a shape is captured when it first comes.

        Raises
        ------
        InputError
            The model does not take them.
        UnsupportedError
            Workers share every batch; or the model writes into buffers in evaluation mode.
        """
        with self._followed():
            return self._program.evaluate(inputs)

    def outputs(self) -> Any:
        """Outputs of the model in the last step.

        Raises
        ------
        InputError
            The recipe keeps no outputs.
        RunError
            They are lost with the workers that had them.
        UnsupportedError
            Workers share every batch.
        """
        return self._program.outputs()

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the last step: ``loss``, and ``grad_norm`` before gradients were clipped."""
        return self._program.metrics

    @property
    def plan(self) -> Any:
        """The plan in force now."""
        return self._program.plan

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the model's ``state_dict`` would return had it been trained here until now.

        Copies, fetched from the workers between two steps; `finish` writes them into the model.

        Raises
        ------
        RunError
            The trainer is closed.
        """
        with self.handed_over():
            return self._program.state_dict()

    def save(self, path: str | Path) -> Path:
        """Write `state_dict` as a safetensors file."""
        from safetensors.torch import save

        from placewright.io.stored import write_file

        return write_file(Path(path), save(self.state_dict()))

    def finish(self) -> torch.nn.Module:
        """Write trained parameters and buffers into the model, and a last snapshot; the model.

        The optimizer object, if one was given, gets its state. Steps may follow, and another
        `finish`.

        Raises
        ------
        RunError
            The last snapshot cannot be written, though the model has what was learned; or the
            trainer is closed, and the model is as it was.
        CheckError
            With `check`: a step differs from eager PyTorch. The model has what was learned.
        """
        if (found := self._program.check()) is not None:
            self.timeline.check = found
        if self._changes is not None:
            self._hand_over()
            self._changes.written(self._program.fetch)
        else:
            self._program.fetch()
        self._kept = self.run.done
        self.run.finish()
        if found is not None:
            found.demand()
        return self.model

    def close(self) -> None:
        """End the run and its workers; snapshots stay.

        Warns (`UnfinishedWarning`) where steps were done after the last `finish`.
        """
        if self._changes is not None:
            self._changes.close()
        if self._unfinished():
            warnings.warn(self._lost(), UnfinishedWarning, stacklevel=2)
        self._program.close()

    def _hand_over(self) -> None:
        """Give workers the values that the loop has changed since the last step."""
        if self._changes is not None and self._changes.hand_over():
            self._program.changed()

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """The workers' weights inside are those of the last step or what the loop has set since."""
        with self.unread():
            self._hand_over()
            yield

    def unread(self) -> AbstractContextManager[None]:
        """What is read of the model inside is what it has: the newest weights are not fetched."""
        return nullcontext() if self._changes is None else self._changes.own()

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Take over what the loop has changed in the model before what is done inside.

        A Ctrl-C waits for all of it, so that schedulers, scalers and comparisons stay with it.
        """
        refuse_transforms("trainer.step")
        with interrupts_wait():
            if self._changes is None:
                yield
                return
            with self._changes.own():
                if self._changes.follow():
                    self._program.changed()
                yield

    def _unfinished(self) -> bool:
        """Whether the workers have learned what the model does not have."""
        return self.run.done > self._kept and not self.run.closed

    def _lost(self) -> str:
        steps = f"steps {self._kept + 1} to {self.run.done}"
        return (
            f"the model does not have what was learned ({steps}): finish() was not called\n"
            f"  next: call it before the trainer is closed; snapshots, if they are kept, have step "
            f"{self.run.log.saved}"
        )

    @property
    def timeline(self) -> Timeline:
        """Step times, losses and events so far."""
        return self.run.timeline

    @property
    def steps_done(self) -> int:
        """Steps done, including those before the snapshot that a continued run started from."""
        return self.run.done

    @checked
    def remaining(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches but for those that a continued run has already taken.

        The loader must give the same order every time it is iterated: once for every epoch.
        """
        for batch in loader:
            if self._to_skip > 0:
                self._to_skip -= 1
            else:
                yield batch


def note_start(run: FaultTolerantRun[Any], monitor: Monitor) -> None:
    """Note which snapshot a run starts from, and which are damaged."""
    for name in run.snapshots.damaged:
        monitor.note(f"{run.folder / name} is damaged and passed over")
    if run.done:
        monitor.note(f"continued after step {run.done}, from {run.folder}")


def note_events(run: FaultTolerantRun[Any], seen: int, monitor: Monitor) -> bool:
    """Note the events after the first `seen`; whether there were any."""
    news = [e for e in run.timeline.events[seen:] if e.kind not in QUIET]
    for event in news:
        monitor.note(f"step {event.step}: {event.kind}: {event_text(event)}")
    return bool(news)


def _gradients(leaves: Iterable[Tensor]) -> dict[int, tuple[int, int]]:
    """Identity and version of the gradients that are here, by the tensors that have them."""
    with torch._C.DisableTorchFunctionSubclass():
        made = ((id(value), value.grad) for value in leaves)
        return {key: (id(grad), grad._version) for key, grad in made if grad is not None}


_AGAIN = "finish this trainer, and place the model as it is then"


class WatchedState(defaultdict[Any, Any]):
    """The state of an optimizer whose newest values are elsewhere.

    `read`: called before a look at it, and writes the newest values into it.
    `changed`: whether it may have been changed since `settle`.
    """

    def __init__(self, content: dict[Any, Any], read: Callable[[], object]) -> None:
        super().__init__(dict, content)
        self.read, self.changed = read, False
        self._known: list[Any] = []

    def __reduce__(self) -> Any:
        return defaultdict, (dict, dict.copy(self))

    def settle(self) -> None:
        """Take the present content for the one that workers have."""
        self.changed, self._known = False, self._identities()

    def _identities(self) -> list[Any]:
        """Of all that is in it: identity, and version or value."""
        return [
            (id(kept), name, id(value), value._version if isinstance(value, Tensor) else value)
            for kept in dict.values(self)
            for name, value in kept.items()
        ]

    def is_changed(self) -> bool:
        """Whether the loop has changed anything."""
        return self.changed or self._identities() != self._known


def _watched(name: str, *, changes: bool) -> Callable[..., Any]:
    plain = getattr(defaultdict, name)

    def method(self: WatchedState, *args: Any, **keywords: Any) -> Any:
        self.read()
        self.changed = self.changed or changes
        return plain(self, *args, **keywords)

    return method


_READING = ("__getitem__", "__iter__", "__len__", "__contains__", "get", "items", "keys", "values")
_CHANGING = ("__setitem__", "__delitem__", "clear", "pop", "popitem", "setdefault", "update")

for _name in (*_READING, *_CHANGING):
    setattr(WatchedState, _name, _watched(_name, changes=_name in _CHANGING))


class ModelChanges:
    """Follows the changes of a model and its optimizer between the steps of a run.

    Parameters
    ----------
    fetch
        Writes the workers' weights and optimizer state into the model and the optimizer.
    put
        Lets workers go on from the model's weights and the optimizer's state.
    members
        Gives the weights and buffers that `fetch` writes.
    recapture
        Has the step captured again before the next one.
    done
        Steps so far.
    accumulate
        Steps whose gradients are added up for one update.
    """

    def __init__(
        self,
        guards: Guards,
        optimizer: torch.optim.Optimizer | None,
        *,
        fetch: Callable[[], None],
        put: Callable[[], None],
        members: Callable[[], Iterable[Tensor]],
        recapture: Callable[[], None],
        done: Callable[[], int],
        accumulate: int = 1,
    ) -> None:
        self.guards, self.optimizer = guards, optimizer
        self._fetch, self._put, self._recapture, self._done = fetch, put, recapture, done
        self._accumulate = accumulate
        self._fresh_at = 0  # of a continued run the model has the start
        self._inside, self._alone, self._closed = False, RLock(), False
        self._groups = [] if optimizer is None else _members(optimizer)
        named = dict(guards.model.named_parameters())
        self._placed = {name: value for name, value in named.items() if value.requires_grad}
        self._known, self._trained = set(_names(guards.model)), guards.model.training
        self._leaves = [value for value in guards.members() if value.is_leaf]
        self._gradients = _gradients(self._leaves)
        self._watch = ReadWatch(members, self.fetch)
        self._watch_state()
        if self._fresh_at == self._done():
            self.guards.note_bytes()
        self._settle()

    def close(self) -> None:
        """Leave the model and the optimizer alone from now on."""
        self._closed = True
        self._watch.disarm()
        if self.optimizer is not None and isinstance(self.optimizer.state, WatchedState):
            self.optimizer.state = defaultdict(dict, dict.copy(self.optimizer.state))

    def fetch(self) -> bool:
        """Write the newest weights into the model, and whether it has them now.

        Not while a step or a change is under way, which reads the model for itself.
        """
        if self._inside:
            return False
        with self.own():
            if self._fresh_at != self._done():
                self._refuse_overwriting()
                self.written(self._fetch)
        return True

    def written(self, write: Callable[[], None]) -> None:
        """`write` the newest weights into the model, which are no change by the loop."""
        # Whatever mode the reader is in: a default device, a transform, inference, a trace.
        with self.own(), _outside_of_modes(), self._loaded_state_kept():
            write()
            self.guards.take_weights()
            self._fresh_at = self._done()

    def follow(self) -> bool:
        """Take over what the loop has changed since the last step; whether it has.

        Raises `InputError`: it cannot be taken over.
        """
        self._refuse_other_members()
        self._refuse_evaluation()
        self._refuse_gradients()
        read_newest(self.guards.members(), but=self._watch)  # a second trainer has trained them
        with self.own():
            state = self._state_changed()
            if not state and self._as_it_was(read=self._fresh_at == self._done()):
                return False
            changes = self.guards.changes()
            self._refuse(changes)
            if changes.weights or state:
                self._refuse_overwriting()
                if self._fresh_at != self._done():
                    self.written(self._fetch)
                self._put()
            if changes.of_code:
                self._recapture()
            self.guards.follow()
        if state:
            self._watch_state()
        return True

    def hand_over(self) -> bool:
        """Give workers the values that the loop has changed and the model has; whether it has.

        Before these are fetched: the workers' would take their place. Other changes, and those of
        older values, are followed or refused before the next step.
        """
        with self.own():
            if not self._done() or self._fresh_at != self._done():
                return False
            state = self._state_changed()
            if not state and (self._as_it_was() or not self.guards.changes().weights):
                return False
            self._put()
            self.guards.take_weights()
        if state:
            self._watch_state()
        return True

    def _as_it_was(self, *, read: bool = True) -> bool:
        """Whether the loop has changed nothing; of weights that it has not `read`, by a sample."""
        return self.guards.unchanged() and (not read or self.guards.same_bytes())

    def _refuse_overwriting(self) -> None:
        """Raise where the loop has changed values that were not the newest."""
        if self._fresh_at == self._done():
            return
        changes = Changes() if self._as_it_was() else self.guards.changes()
        state = self.optimizer is not None and _is_changed(self.optimizer.state)
        if changes.weights or state:
            raise changed_model(
                str(Changes(weights=changes.weights)) or "the optimizer's state",
                "Trainer.step",
                "the workers have newer values than those that were changed through a tensor or an "
                "array that was taken before the last step: take it from the model, or from the "
                "optimizer, after the step",
            )

    def _refuse(self, changes: Changes) -> None:
        if changes.attributes and (new := set(_names(self.guards.model)) - self._known):
            by = f"{min(new)!r} is new"
            raise changed_model(by, "Trainer.step", _AGAIN)
        trained = dict(self.guards.model.named_parameters())
        for name in changes.weights if self.optimizer is not None else ():
            if trained.get(name) is not (begun := self._placed.get(name)) and begun is not None:
                raise changed_model(
                    f"{name!r} is another parameter, which the optimizer does not have",
                    "Trainer.step",
                    f"copy the values into the one that it has: parameter.data.copy_(values), or "
                    f"load_state_dict without assign=True; else {_AGAIN}",
                )
        if (changes.attributes or changes.modes) and self._done() % self._accumulate:
            raise changed_model(
                f"{Changes(modes=changes.modes, attributes=changes.attributes)} changed, and "
                "gradients are being added up",
                "Trainer.step",
                f"change it after a step that updates, every {self._accumulate} steps",
            )
        for name in changes.gradients:
            if name in trained and trained[name].requires_grad and name not in self._placed:
                raise changed_model(
                    f"{name!r} requires a gradient, and did not", "Trainer.step", _AGAIN
                )
            if name in trained and self._done() % self._accumulate:
                raise changed_model(
                    f"requires_grad of {name!r} is another, and gradients are being added up",
                    "Trainer.step",
                    f"change it after a step that updates, every {self._accumulate} steps",
                )

    def _refuse_other_members(self) -> None:
        if self.optimizer is None:
            return
        where = f"optimizer {type(self.optimizer).__name__}"
        if _members(self.optimizer) != self._groups:
            raise InputError(
                "the optimizer has other parameters than when the model was placed",
                where=where,
                hint=_AGAIN,
            )
        refuse_step_hooks(self.optimizer, where)

    def _refuse_evaluation(self) -> None:
        """Raise where the model was in training mode and is not: eager would train it so."""
        self._trained = self._trained or self.guards.model.training
        if self._trained and not self.guards.model.training:
            raise InputError(
                "the model is in evaluation mode, and was in training mode",
                where="Trainer.step",
                by=f"after step {self._done()}",
                hint="call model.train() before the next step; single modules may stay in "
                "evaluation mode. trainer.evaluate(x) needs no model.eval()",
            )

    def _refuse_gradients(self) -> None:
        """Raise where the loop has computed gradients, which no step of the workers would add."""
        found = _gradients(self._leaves)
        if found == self._gradients:
            return
        with torch._C.DisableTorchFunctionSubclass():
            for name, value in self.guards.model.named_parameters():
                made = id(value) in found and found[id(value)] != self._gradients.get(id(value))
                if made and bool(value.grad is not None and value.grad.any()):
                    raise InputError(
                        "a gradient has been computed between steps, which workers do not add",
                        where=f"Trainer.step, parameter {name!r}",
                        by=f"its .grad is set after step {self._done()}",
                        hint="call model.zero_grad() before the step if it is not to be added, or "
                        "compute the loss that it is of in loss_fn",
                    )
        self._gradients = found

    def _state_changed(self) -> bool:
        if self.optimizer is None:
            return False
        state = self.optimizer.state
        return not isinstance(state, WatchedState) or state.is_changed()

    def _watch_state(self) -> None:
        if self.optimizer is not None:
            with self.own():
                self.optimizer.state = WatchedState(dict(self.optimizer.state), self.fetch)
                self.optimizer.state.settle()

    @contextmanager
    def _loaded_state_kept(self) -> Iterator[None]:
        """Keep what ``load_state_dict`` has put in the place of the optimizer's state.

        It is all of the state: whatever workers have is not the optimizer's any more.
        """
        optimizer = self.optimizer
        if optimizer is None:
            yield
            return
        if isinstance(optimizer.state, WatchedState):
            yield
            optimizer.state.settle()
            return
        state, optimizer.state = optimizer.state, defaultdict(dict)
        try:
            yield
        finally:
            optimizer.state = state

    @contextmanager
    def own(self) -> Iterator[None]:
        """What is done inside is not the loop's; behind it, reads are of the newest values."""
        with self._alone:
            before, self._inside = self._inside, True
            try:
                yield
            finally:
                self._inside = before
                if not before:
                    self._settle()

    def _settle(self) -> None:
        """Watch reads where the workers have newer values than the model."""
        if self._closed or self._fresh_at == self._done():
            self._watch.disarm()
        else:
            self._watch.arm()


def _is_changed(state: Any) -> bool:
    """Whether the loop has changed an optimizer's state in place."""
    return isinstance(state, WatchedState) and state.is_changed()


@contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Compute as if nothing else were going on in this thread."""
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def _names(model: torch.nn.Module) -> Iterator[str]:
    yield from (
        name for named in (model.named_parameters, model.named_buffers) for name, _ in named()
    )


def _members(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
