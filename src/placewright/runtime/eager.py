"""Plain eager PyTorch: what a placed run is compared with."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from placewright.capturing.containers import Batch, tensors_of
from placewright.capturing.inputs import as_arguments
from placewright.capturing.micro_batches import MicroBatch, micro_batches
from placewright.capturing.mode import set_mode
from placewright.capturing.named_state import ModelAndLoss, copied, named_state, parameters_of
from placewright.capturing.recipe import TrainingRecipe, recipe_of
from placewright.capturing.source import ModelSource
from placewright.capturing.split_loss import CountedMeans, LossSplit, split_rows, whole_counts
from placewright.capturing.update_rule import PLAIN
from placewright.capturing.user_optimizer import rebound


@dataclass(frozen=True, slots=True, eq=False)
class EagerRun:
    """Outputs of the last step, parameters and buffers after it, seconds of every step.

    ``state`` has a tensor that the model holds under several names under each of them, those of
    the loss as ``loss_fn.NAME``, and inputs that were changed in place as ``input:0``.
    """

    outputs: tuple[torch.Tensor, ...]
    state: Mapping[str, torch.Tensor]
    step_s: tuple[float, ...]


class EagerSteps:
    """Plain steps on a copy of the model and its inputs, one at a time.

    Parameters
    ----------
    threads
        Intra-operator threads; results depend on it in the last bit.
    optimizer
        ``adam`` is ``torch.optim.Adam(fused=True)``, ``sgd`` is ``torch.optim.SGD``. A recipe of
        the source goes before it; its optimizer is copied.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        training: bool,
        seed: int = 0,
        threads: int = 1,
        optimizer: str = "adam",
        lr: float = 1e-3,
    ) -> None:
        self.model, loss_fn = copied(source.model, source.loss_fn)
        own = replace(source, model=self.model, loss_fn=loss_fn)
        self._source = replace(own, recipe=_own_recipe(source, own))
        self._threads = threads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._random = torch.get_rng_state()
        self._step = Stepper(self._source, training=training, optimizer=optimizer, lr=lr)
        self._times: list[float] = []

    def step(self) -> EagerRun:
        """Execute one step; the caller's random numbers and threads stay as they were."""
        with _threads(self._threads), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            start = time.perf_counter()
            outputs = self._step()
            self._times.append(time.perf_counter() - start)
            self._random = torch.get_rng_state()
        found = tuple(x.detach() for x in tensors_of(outputs))
        return EagerRun(found, self.state(), tuple(self._times))

    def feed(self, inputs: Any, targets: Any = None) -> None:
        """Take other inputs from the next step on, and other targets if they are given."""
        targets = self._source.targets if targets is None else targets
        self._step.batch = Batch(as_arguments(inputs, ""), targets)

    def settings_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over what a loop may change in an optimizer: learning rates and the like."""
        for own, given in zip(self._step.updates.param_groups, optimizer.param_groups, strict=True):
            own |= {key: value for key, value in given.items() if key != "params"}

    def take_over(self, model: torch.nn.Module) -> None:
        """Take over what a loop has changed in a model: modes, attributes, frozen parameters.

        Its weights too: they are the newest where a trainer has taken them over.
        """
        for own, given in zip(self.model.modules(), model.modules(), strict=True):
            plain = {k: v for k, v in vars(given).items() if isinstance(v, PLAIN)}
            vars(own).update(plain)
        members = ((self.model.parameters, model.parameters), (self.model.buffers, model.buffers))
        with torch.no_grad():
            for theirs, ours in members:
                for mine, its in zip(theirs(), ours(), strict=True):
                    mine.requires_grad_(its.requires_grad)

    def parameters(self) -> set[str]:
        """All names of parameters."""
        whole = ModelAndLoss(self.model, self._source.loss_fn)
        return {n.removeprefix("model.") for n, _ in whole.named_parameters(remove_duplicate=False)}

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by every name that they have, and inputs that were changed."""
        whole = ModelAndLoss(self.model, self._source.loss_fn)
        named = (
            *whole.named_parameters(remove_duplicate=False),
            *whole.named_buffers(remove_duplicate=False),
            *self._step.batch.changed().items(),
        )
        return {name.removeprefix("model."): tensor.detach() for name, tensor in named}


def run_eager(
    source: ModelSource,
    *,
    training: bool,
    steps: int,
    seed: int = 0,
    threads: int = 1,
    optimizer: str = "adam",
    lr: float = 1e-3,
) -> EagerRun:
    """Execute plain steps on a copy of the model, at least one; see `EagerSteps`."""
    eager = EagerSteps(
        source, training=training, seed=seed, threads=threads, optimizer=optimizer, lr=lr
    )
    for _ in range(steps):
        run = eager.step()
    return run


class Stepper:
    """Does plain steps of a model on the source's batch, and changes the model.

    Calling it answers with the outputs, or with the loss.
    """

    def __init__(
        self, source: ModelSource, *, training: bool, optimizer: str = "adam", lr: float = 1e-3
    ) -> None:
        self.source, self.training = source, training
        name = type(source.model).__name__
        self.batch = Batch(as_arguments(source.inputs, name), source.targets)
        set_mode(source.model, training=training)
        if training:
            self.recipe = source.recipe or recipe_of(optimizer, lr)
            self.updates = _optimizer(source, self.recipe)
            self.steps = 0
            own = replace(source, recipe=self.recipe)
            self.split = split_rows(own) if self.recipe.micro_batches > 1 else LossSplit()
            self.counts: list[torch.Tensor] | None = None

    def __call__(self) -> Any:
        """One step."""
        return self._train() if self.training else self._infer()

    @torch.enable_grad()
    def _train(self) -> torch.Tensor:
        assert self.source.loss_fn is not None
        recipe = self.recipe
        # Gradients are added up over several steps: they are cleared before the first of them
        # alone.
        if self.steps % recipe.accumulate == 0:
            self.updates.zero_grad(set_to_none=True)
            for member in named_state(self.source.model, self.source.loss_fn)[0]:
                member.value.grad = None
        scaler = recipe.scaler if recipe.scales else None
        if recipe.micro_batches == 1:
            loss = self._backward(*self.batch.arguments(), None, scaler)
        else:
            loss = self._micro_batches(scaler)
        self.steps += 1
        if self.steps % recipe.accumulate == 0:
            self._update(scaler)
        return loss

    def _backward(
        self,
        inputs: Any,
        targets: Any,
        part: MicroBatch | None,
        scaler: torch.amp.GradScaler | None,
    ) -> torch.Tensor:
        """Forward and backward pass; the loss, times the share of a micro-batch."""
        loss_fn = self.source.loss_fn
        assert loss_fn is not None
        with self.recipe.casting():
            outputs = self._forward(inputs)
            if part is None:
                loss = loss_fn(outputs, targets)
            else:
                if self.counts is None:
                    whole = self.batch.arguments()[1]
                    self.counts = whole_counts(self.split, loss_fn, outputs, whole, part)
                with CountedMeans(self.split.divisors(self.counts, part.share)):
                    loss = loss_fn(outputs, targets) * part.share
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        return loss

    def _micro_batches(self, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
        """The plain loop: gradients of one micro-batch after the other are added up."""
        recipe, given = self.recipe, tensors_of(self.batch.whole)
        losses, self.counts = [], None
        for part in micro_batches(given, recipe.micro_batches, recipe.reduction):
            inputs, targets = map(part.parts, self.batch.arguments())
            losses.append(self._backward(inputs, targets, part, scaler).detach())
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _update(self, scaler: torch.amp.GradScaler | None) -> None:
        if scaler is not None:
            scaler.unscale_(self.updates)
        self._clip()
        if scaler is None:
            self.updates.step()
        else:
            scaler.step(self.updates)
            scaler.update()

    def _clip(self) -> None:
        parameters = [m.value for m in named_state(self.source.model, self.source.loss_fn)[0]]
        if self.recipe.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self.recipe.clip_value)
        if self.recipe.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip_norm)

    @torch.no_grad()
    def _infer(self) -> Any:
        return self._forward(self.batch.arguments()[0])

    def _forward(self, inputs: Any) -> Any:
        model = self.source.model
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _optimizer(source: ModelSource, recipe: TrainingRecipe) -> torch.optim.Optimizer:
    trained = list(parameters_of(source).values())
    if isinstance(recipe.optimizer, torch.optim.Optimizer):
        return recipe.optimizer
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=recipe.lr)
    return torch.optim.Adam(trained, lr=recipe.lr, fused=True)


def _own_recipe(source: ModelSource, own: ModelSource) -> TrainingRecipe | None:
    """The recipe with a copy of its optimizer for the copy of the model."""
    recipe = source.recipe
    if recipe is None or isinstance(recipe.optimizer, str):
        return recipe
    copies = parameters_of(own)
    of_copy = {id(value): copies[key] for key, value in parameters_of(source).items()}
    return replace(
        recipe,
        optimizer=rebound(recipe.optimizer, of_copy),
        scaler=copy.deepcopy(recipe.scaler),
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
