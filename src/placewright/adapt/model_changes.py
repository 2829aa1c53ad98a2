"""ModelChanges: what a training loop reads and changes of its model while workers have the weights.

Between two steps the newest weights and optimizer state are the workers'. What the loop does with
its own objects means the same as in eager PyTorch, or is refused by name::

    model.state_dict()                    the workers' weights are written into the model first
    optimizer.state, its state_dict()     likewise
    changed weights or optimizer state    taken over, where the loop had read the newest before
    frozen parameters, modes, attributes  the step is captured again, on the same devices
    parameters trained that were not      refused: workers keep no state for them
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.guards import Changes, Guards, changed_model
from placewright.errors import InputError

_AGAIN = "finish this trainer, and place the model as it is then"


class WatchedState(defaultdict[Any, Any]):
    """The state of an optimizer whose newest values are elsewhere.

    `read`: called before a look at it, and writes the newest values into it.
    `changed`: whether it may have been changed since `settle`.
    """

    def __init__(self, content: dict[Any, Any], read: Callable[[], None]) -> None:
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
    recapture
        Has the step captured again before the next one.
    done
        Steps so far.
    """

    def __init__(
        self,
        guards: Guards,
        optimizer: torch.optim.Optimizer | None,
        *,
        fetch: Callable[[], None],
        put: Callable[[], None],
        recapture: Callable[[], None],
        done: Callable[[], int],
    ) -> None:
        self.guards, self.optimizer = guards, optimizer
        self._fetch, self._put, self._recapture, self._done = fetch, put, recapture, done
        self._fresh_at, self._inside = 0, False  # of a continued run the model has the start
        self._groups = [] if optimizer is None else _members(optimizer)
        register: Any = guards.model.register_state_dict_pre_hook
        self._hook = register(_fetching(self.fetch))
        if optimizer is not None:
            optimizer.state = WatchedState(dict(optimizer.state), self.fetch)
            optimizer.state.settle()

    def close(self) -> None:
        """Leave the model and the optimizer alone from now on."""
        self._hook.remove()
        if self.optimizer is not None and isinstance(self.optimizer.state, WatchedState):
            with self._own():
                self.optimizer.state = defaultdict(dict, dict.copy(self.optimizer.state))

    def fetch(self) -> None:
        """Write the newest weights into the model, unless it has them or is being written."""
        if self._inside or self._fresh_at == self._done():
            return
        self.follow()  # what the loop changed before it read is no change of the newest values
        self.written(self._fetch)

    def written(self, write: Callable[[], None]) -> None:
        """`write` the newest weights into the model, which are no change by the loop."""
        with self._own():
            write()
            self.guards.follow()
        if self.optimizer is not None and isinstance(self.optimizer.state, WatchedState):
            self.optimizer.state.settle()
        self._fresh_at = self._done()

    def follow(self) -> bool:
        """Take over what the loop has changed since the last step; whether it has.

        Raises `InputError`: it cannot be taken over.
        """
        if self._inside:
            return False
        self._refuse_other_members()
        state = self._state_changed()
        if not state and self.guards.unchanged():
            return False
        changes = self.guards.changes()
        self._refuse(changes)
        if (changes.weights or state) and self._fresh_at != self._done():
            raise changed_model(
                str(changes) or "the optimizer's state",
                "Trainer.step",
                "the workers have newer values than those that were changed: call "
                "model.state_dict() or trainer.finish() before the change, which writes them into "
                "the model and the optimizer",
            )
        with self._own():
            if changes.weights or state:
                self._put()
            if changes.of_code:
                self._recapture()
            self.guards.follow()
        if state and self.optimizer is not None:
            self._watch()
        return True

    def _refuse(self, changes: Changes) -> None:
        trained = dict(self.guards.model.named_parameters())
        for name in changes.gradients:
            if name in trained and trained[name].requires_grad:
                raise changed_model(
                    f"{name!r} requires a gradient, and did not", "Trainer.step", _AGAIN
                )

    def _refuse_other_members(self) -> None:
        if self.optimizer is not None and _members(self.optimizer) != self._groups:
            raise InputError(
                "the optimizer has other parameters than when the model was placed",
                where=f"optimizer {type(self.optimizer).__name__}",
                hint=_AGAIN,
            )

    def _state_changed(self) -> bool:
        if self.optimizer is None:
            return False
        state = self.optimizer.state
        if not isinstance(state, WatchedState):  # load_state_dict has put another one there
            return True
        with self._own():
            return state.is_changed()

    def _watch(self) -> None:
        assert self.optimizer is not None
        with self._own():
            self.optimizer.state = WatchedState(dict(self.optimizer.state), self.fetch)
            self.optimizer.state.settle()

    @contextmanager
    def _own(self) -> Iterator[None]:
        """What is done inside is not the loop's."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before


def _fetching(fetch: Callable[[], None]) -> Callable[..., None]:
    """A hook; a plain function, which a copy of the model shares instead of copying the trainer."""

    def hook(_module: nn.Module, _prefix: str, _keep_vars: bool) -> None:
        fetch()

    return hook


def _members(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
