"""The same training step in one process, by plain eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource, copied, mean_square
from placewright.capturing.updates import Update, update_of


def one_process(source: ModelSource) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole batch; the model is left as it was."""
    model = source.model
    with _kept(model):
        loss = _loss(model, source)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {
            f"model.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
    return float(loss.detach()), gradients


def trained_alone(
    source: ModelSource,
    batches: Iterable[tuple[Any, Any]],
    optimizer: Update | str,
    lr: float = 1e-3,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and parameters after a step on every batch; the model is left as it was.

    `scaler`: as before the first step; it is stepped.
    """
    model, losses = copied(source.model, None)[0], list[float]()
    _train(model)
    update, named = update_of(optimizer, lr), dict(model.named_parameters())
    steps = update.made(named.values(), named)
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None else scaler
    for k, (inputs, targets) in enumerate(batches):
        if k % update.accumulate == 0:
            steps.zero_grad()
        loss = _loss(model, replace(source, inputs=inputs, targets=targets))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if (k + 1) % update.accumulate == 0:
            scaler.unscale_(steps)
            update.clip([p.grad for p in named.values() if p.grad is not None])
            scaler.step(steps)
            scaler.update()
        losses.append(float(loss.detach()))
    return losses, {name: value.detach() for name, value in model.state_dict().items()}


class ReferenceSteps:
    """Steps of one process, each from where the workers' last step has ended.

    So every step is compared by itself: what rounding makes of a gradient that is nearly zero,
    which Adam divides by its own size, is in no later one.
    """

    def __init__(self, source: ModelSource, update: Update) -> None:
        self.model, loss_fn = copied(source.model, source.loss_fn)
        self.source = replace(source, loss_fn=loss_fn)
        _train(self.model)
        self.parameters = {f"model.{n}": p for n, p in self.model.named_parameters()}
        self.update = update
        names = (name.removeprefix("model.") for name in self.parameters)
        self.optimizer = update.made(self.parameters.values(), names)

    def gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients of a step, clipped; the model's buffers are those after it."""
        self.optimizer.zero_grad()
        loss = _loss(self.model, self.source)
        loss.backward()  # type: ignore[no-untyped-call]
        found = {n: p.grad.clone() for n, p in self.parameters.items() if p.grad is not None}
        self.update.clip([*found.values()])
        return float(loss.detach()), found

    def update_errors(
        self, gradients: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> Iterator[tuple[float, float]]:
        """Update by the workers' gradients; by how much their parameters and buffers differ.

        Absolute, and as a part of the update or, where nothing is updated, of the values; without
        the rounding of the values. Then goes on from what the workers have.
        """
        before = {n: p.detach().clone() for n, p in self.parameters.items()}
        for name, p in self.parameters.items():
            p.grad = gradients.get(name)
        self.optimizer.step()
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        for name, value in ((f"model.{n}", v.detach()) for n, v in named):
            moved = (value - before[name]).abs().max() if name in before else value.new_zeros(())
            if name in state:
                yield _distance(state[name], value, float(moved))
                value.copy_(state[name])
            elif moved > 0:
                yield math.inf, math.inf


def _distance(found: Tensor, expected: Tensor, scale: float) -> tuple[float, float]:
    """Absolute, and beyond rounding as a part of `scale`."""
    found, wide = found.double(), expected.double()
    if not wide.numel() or torch.equal(found, wide):
        return 0.0, 0.0
    size, off = float(wide.abs().max()), float((found - wide).abs().max())
    rounding = 4 * torch.finfo(expected.dtype).eps * size if expected.is_floating_point() else 0.0
    if not math.isfinite(off):
        return math.inf, math.inf
    return off, max(off - rounding, 0.0) / (scale or size or 1.0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed, and eager's one thread; both are put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _train(model: nn.Module) -> None:
    """Training mode; modules of a model that is in it stay as the user set them."""
    if not model.training:
        model.train()


def _loss(model: nn.Module, source: ModelSource) -> Tensor:
    inputs, loss_fn = source.inputs, source.loss_fn or mean_square
    with (source.recipe or TrainingRecipe()).casting():
        if isinstance(inputs, dict):
            outputs = model(**inputs)
        else:
            outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
        return loss_fn(outputs, source.targets)


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Training mode without gradients from before; buffers and gradients are restored."""
    modes = [(m, m.training) for m in model.modules()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    _train(model)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for p, gradient in before:
            p.grad = gradient
