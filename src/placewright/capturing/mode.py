"""Training or evaluation mode for a trace or a call; the model is restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from placewright.errors import MissingDependencyError

try:
    from torch import fx, nn
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from placewright.capturing.python_state import PythonState
from placewright.capturing.source import Loss, modules_in


@contextmanager
def in_mode(
    model: nn.Module, loss_fn: Loss | None = None, *, training: bool
) -> Iterator[PythonState]:
    """Set the mode by `set_mode`, and put back all that the code of model and loss changes.

    Yields what is put back, with which a second trace can begin as the first one did.
    """
    with flags_kept(model):
        set_mode(model, training=training)
        state = PythonState.of(model, *modules_in(loss_fn), loss_fn)
        try:
            yield state
        finally:
            state.restore()


def set_mode(model: nn.Module, *, training: bool) -> None:
    """``model.train(training)``, unless the model is in that mode.

    Then each of its modules stays in the mode that the user gave it: a batch norm with frozen
    statistics in a model that is trained, dropout that is on in evaluation. A ``torch.export``
    module stays in the mode that it was exported in.
    """
    if model.training == training:
        return
    try:
        model.train(training)
    except NotImplementedError:
        if not isinstance(model, fx.GraphModule):
            raise


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Put every module back into the mode that it has now."""
    before, flags = model.training, [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        set_mode(model, training=before)
        for module, flag in flags:
            if module.training != flag:
                module.training = flag
