"""Training or evaluation mode for a trace or a call; the model is restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from placewright.errors import MissingDependencyError

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from torch import fx, nn
from torch.utils._pytree import tree_map_only

from placewright.capturing.checks import python_generators_kept
from placewright.capturing.python_state import PythonState
from placewright.capturing.source import Loss, ModelAndLoss, ModelSource, modules_in

CHEAP_BYTES = 1 << 30
"""Of parameters and buffers: a model up to this size is called once before it is traced."""


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


def fill_caches(source: ModelSource, *, training: bool) -> None:
    """Call a model once for real, so that what its code caches is there as after any call.

    Masks by length, positions, filter banks: a trace then reads them as constants, and puts nothing
    in their place. Buffers, counters and random numbers stay as they are. A large model is not
    called, nor one on the meta device; errors are left to the trace, which names the module.
    """
    model, loss_fn = source.model, source.loss_fn
    whole = ModelAndLoss(model, loss_fn, loss_fn or (lambda outputs, _: outputs))
    held = [*whole.parameters(), *whole.buffers()]
    if any(x.is_meta for x in held) or sum(x.nbytes for x in held) > CHEAP_BYTES:
        return
    buffers = {name: value.clone() for name, value in whole.named_buffers()}
    before = PythonState.of(model, *modules_in(loss_fn), loss_fn)
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        python_generators_kept(),
        flags_kept(model),
        suppress(Exception),
    ):
        set_mode(model, training=training)
        torch.func.functional_call(whole, buffers, _copies((source.arguments, source.targets)))
    before.restore_numbers()


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


def _copies(values: Any) -> Any:
    """Arguments whose tensors are others: a model may change them in place."""
    return tree_map_only(torch.Tensor, torch.clone, values)
