"""TrainingRecipe: what a training step does with the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import torch

from placewright.errors import InputError
from placewright.io.arguments import Count, OneOf, Positive, checked

BUILT_IN = ("adam", "sgd")
"""Optimizers that are known by name, without state of the user's."""

OptimizerName: TypeAlias = Annotated[str, OneOf(*BUILT_IN)]

_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@checked
@dataclass(frozen=True, slots=True, eq=False)
class TrainingRecipe:
    """What a training step does with the gradients.

    In this order, as in an ordinary loop: gradients are accumulated, unscaled, clipped by value,
    clipped by norm, and taken by the optimizer.

    Attributes
    ----------
    optimizer
        ``adam``, ``sgd``, or an optimizer object that has the model's parameters. Its groups'
        numbers are read before every step, so schedulers made from it take effect.
    lr
        Of an optimizer that is a name.
    clip_norm
        As ``torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)``.
    clip_value
        As ``torch.nn.utils.clip_grad_value_(model.parameters(), clip_value)``.
    accumulate
        Update after so many batches, whose gradients are added up. The loss is not divided.
    micro_batches
        Cut every batch into so many parts along the first dimension of its tensors, whose forward
        and backward passes overlap on the devices; one update follows, by the sum of their
        gradients.
    reduction
        How the loss reduces a batch. ``mean``: the loss of each micro-batch counts by its share of
        the rows, so that the step is that of the whole batch; ``sum``: it is not divided.
    autocast
        ``bfloat16`` or ``float16``: the model and the loss run under ``torch.autocast("cpu")``.
    scaler
        A ``torch.amp.GradScaler``: the loss is scaled, gradients are unscaled before they are
        clipped, and an update with infinite ones is left out.
    outputs
        Keep what the model returns in every step, for `Trainer.outputs`.

    Raises
    ------
    InputError
        A limit that is not positive.
    """

    optimizer: OptimizerName | torch.optim.Optimizer = "adam"
    lr: float = 1e-3
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    accumulate: Count = 1
    autocast: str | torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    outputs: bool = False
    micro_batches: Count = 1
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if self.autocast is not None and self.autocast_dtype not in _HALF.values():
            raise InputError(
                "autocast must be bfloat16 or float16",
                where="TrainingRecipe",
                by=f"got {self.autocast}",
                hint="give one of these, or None to compute in the model's own types",
            )

    @property
    def built_in(self) -> str:
        """Name of the optimizer where nothing but its plain update is asked for, else empty."""
        plain = self.clip_norm is None and self.clip_value is None and self.accumulate == 1
        plain = plain and not self.scales
        return self.optimizer if isinstance(self.optimizer, str) and plain else ""

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled."""
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """As PyTorch's object."""
        given = self.autocast
        return _HALF.get(given) if isinstance(given, str) else given

    def casting(self) -> AbstractContextManager[object]:
        """The context in which the model and the loss run."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast("cpu", dtype=self.autocast_dtype)

    def resolved(self, parameters: Callable[[], Sequence[torch.Tensor]]) -> TrainingRecipe:
        """With an optimizer object for these parameters, unless it is `built_in`."""
        if self.built_in or isinstance(self.optimizer, torch.optim.Optimizer):
            return self
        if self.optimizer == "sgd":
            return replace(self, optimizer=torch.optim.SGD(parameters(), lr=self.lr))
        return replace(self, optimizer=torch.optim.Adam(parameters(), lr=self.lr, fused=True))


def step_scaler(scaler: torch.amp.GradScaler, found_inf: float) -> None:
    """Let a scaler grow or shrink, as if it had looked at the gradients of an update itself."""
    here = torch.device("cpu")
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(here)
    found = torch.tensor(found_inf, dtype=torch.float32)
    scaler._per_optimizer_states[id(scaler)]["found_inf_per_device"] = {here: found}
    scaler.update()


def recipe_of(
    optimizer: str | torch.optim.Optimizer | TrainingRecipe, lr: float = 1e-3
) -> TrainingRecipe:
    """A recipe from any of the ways to give an optimizer."""
    if isinstance(optimizer, TrainingRecipe):
        return optimizer
    return TrainingRecipe(optimizer, lr)
