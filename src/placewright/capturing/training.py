"""The graph of one training step up to the gradients: forward, loss, backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.fx import traceback

from placewright.capturing.feed import Feed, feed
from placewright.capturing.mode import in_mode
from placewright.capturing.named_state import Loss, modules_in
from placewright.capturing.parameters import check_parameters
from placewright.capturing.rebound import write_back
from placewright.capturing.tracing import Traced, trace
from placewright.errors import InputError, UnsupportedError


def trace_training(model: nn.Module, inputs: Any, loss_fn: Loss, targets: Any) -> Traced:
    """The functional graph of loss and gradients in training mode.

    Its outputs are the loss, then the gradients of `Traced.gradients`. Updates of buffers
    (running statistics) are in it, updates of parameters are not: see
    `placewright.capturing.optimizer`.
    """
    try:
        return _traced(model, feed(model, inputs, targets, loss_fn), loss_fn, torch.autograd.grad)
    except InputError as error:
        if _REENTRANT not in str(error.__cause__):
            raise
    return _traced(model, feed(model, inputs, targets, loss_fn), loss_fn, _accumulated)


_REENTRANT = "use_reentrant=True"
"""In PyTorch's words for checkpoints whose backward accumulates gradients by itself."""


def _accumulated(
    loss: Tensor, wanted: Sequence[Tensor], *, allow_unused: bool
) -> Sequence[Tensor | None]:
    """Gradients as ``loss.backward()`` leaves them."""
    torch.autograd.backward(loss)
    return [value.grad for value in wanted]


def _traced(model: nn.Module, fed: Feed, loss_fn: Loss, differentiate: Any) -> Traced:
    trained = [k for k, slot in enumerate(fed.slots) if _trained(slot.role, slot.value)]
    reached: list[str] = []

    def step(*values: Tensor) -> Sequence[Tensor]:
        def differentiated(outputs: Any, targets: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
            loss = loss_fn(outputs, targets)
            _check_loss(loss)
            # Private, and the only way to tell which module a backward operator belongs to.
            setup_stacktrace_preservation_hooks([loss.grad_fn] if loss.grad_fn else [])
            with traceback.annotate({"phase": "backward"}):
                wanted = [values[k] for k in trained]
                return loss, differentiate(loss, wanted, allow_unused=True)

        with traceback.annotate({"phase": "forward"}):
            (loss, gradients), replaced = fed.run(values, differentiated)
        used = [(k, g) for k, g in zip(trained, gradients, strict=True) if g is not None]
        _check_gradients([(fed.slots[k].key, g) for k, g in used])
        reached[:] = [fed.slots[k].key for k, _ in used]
        with traceback.annotate({"phase": "forward"}):
            write_back(replaced)
        return [loss.detach(), *(gradient for _, gradient in used)]

    _check_trained(model, trained)
    check_parameters(model, loss_fn)
    with in_mode(model, *modules_in(loss_fn), training=True):
        module = trace(step, fed)
    return Traced(module, fed.slots, ("loss",), tuple(reached))


def _check_gradients(gradients: Sequence[tuple[str, Tensor]]) -> None:
    for key, gradient in gradients:
        if gradient.layout is not torch.strided:
            raise UnsupportedError(
                f"a gradient of layout {gradient.layout}",
                where=f"parameter {key!r}",
                hint="build the embedding with sparse=False",
            )


def _trained(role: str, value: Tensor) -> bool:
    return role == "parameter" and value.requires_grad


def _check_trained(model: nn.Module, trained: Sequence[int]) -> None:
    if not trained:
        raise InputError(
            "no parameter requires a gradient, so there is nothing to train",
            where=f"model {type(model).__name__}",
            hint="capture it with training=False",
        )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(
            "the loss must be one number that depends on the parameters",
            where="loss_fn(outputs, targets)",
            by=f"got {got}",
            hint="reduce it with .mean() or .sum(), without .detach()",
        )
