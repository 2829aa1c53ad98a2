"""The graph of one training step up to the gradients: forward, loss, backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.fx import traceback

from placewright.capture.draws import is_draw
from placewright.capture.feed import Loss, feed
from placewright.capture.mode import in_mode
from placewright.capture.rebound import write_back
from placewright.capture.tracing import Traced, trace
from placewright.errors import InputError, UnsupportedError


def trace_training(model: nn.Module, inputs: Any, loss_fn: Loss, targets: Any) -> Traced:
    """The functional graph of loss and gradients in training mode.

    Its outputs are the loss, then the gradients of `Traced.gradients`. Updates of buffers
    (running statistics) are in it, updates of parameters are not: see
    `placewright.capture.optimizer`.
    """
    fed = feed(model, inputs, targets)
    trained = [k for k, slot in enumerate(fed.slots) if _trained(slot.role, slot.value)]
    reached: list[str] = []

    def step(*values: Tensor) -> Sequence[Tensor]:
        with traceback.annotate({"phase": "forward"}):
            loss, replaced = fed.loss(values, loss_fn)
        _check_loss(loss)
        # Private, and the only way to tell which module a backward operator belongs to.
        setup_stacktrace_preservation_hooks([loss.grad_fn] if loss.grad_fn else [])
        with traceback.annotate({"phase": "backward"}):
            gradients = torch.autograd.grad(loss, [values[k] for k in trained], allow_unused=True)
        used = [(k, g) for k, g in zip(trained, gradients, strict=True) if g is not None]
        _check_gradients([(fed.slots[k].key, g) for k, g in used])
        reached[:] = [fed.slots[k].key for k, _ in used]
        with traceback.annotate({"phase": "forward"}):
            write_back(replaced)
        return [loss.detach(), *(gradient for _, gradient in used)]

    _check_trained(model, trained)
    with in_mode(model, training=True):
        module = trace(step, fed.slots, model)
    _check_redraws(module, model)
    return Traced(module, fed.slots, ("loss",), tuple(reached))


def _check_redraws(module: fx.GraphModule, model: nn.Module) -> None:
    """Checkpointing rewinds the random generator to draw the same again; a graph cannot."""
    for node in module.graph.nodes:
        custom = node.meta.get("custom") or {}
        if custom.get("phase") == "backward" and is_draw(node):
            raise UnsupportedError(
                "the backward pass draws random numbers again (activation checkpointing)",
                where=f"model {type(model).__name__}, module {custom.get('module', '')!r}",
                hint="capture it without checkpointing, or with dropout 0 inside it",
            )


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
