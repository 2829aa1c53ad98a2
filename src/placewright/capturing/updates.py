"""Update: what workers that share a batch do with gradients, from any way to give an optimizer.

Workers hold whole parameters, or parts of them where a plan divides weights. So only optimizers are
taken that treat each element by itself, with the same settings for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeAlias

import torch

# Optimizers import it as they are made, which takes a second: the fork server does it once for all
# of its workers.
import torch._dynamo
from torch import Tensor, nn
from torch.optim import Optimizer

from placewright.capturing.recipe import BUILT_IN
from placewright.capturing.source import Loss, modules_in
from placewright.capturing.update_rule import UpdateRule, numbered
from placewright.errors import InputError, UnknownNameError, UnsupportedError

OPTIMIZER = "optimizer:"
"""Prefix of an optimizer's states in a file of training state: ``optimizer:exp_avg:NAME``."""

GivenOptimizer: TypeAlias = str | type[Optimizer] | Optimizer

KINDS: Mapping[str, type[Optimizer]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}

SETTINGS = f"{OPTIMIZER}settings"
"""Name under which the numbers of a step are fed with its batch."""

_AGAIN = "finish this trainer, and place the model with the optimizer as it is then"


@dataclass(frozen=True, slots=True)
class Update:
    """A class of `KINDS` and the settings of its only group.

    `settings`: its numbers at first, in the order of `UpdateRule.numbers`.
    """

    rule: UpdateRule
    settings: tuple[float, ...]

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the states that are as large as the parameter."""
        group = self.rule.group(self.settings)
        if self.rule.kind == "SGD":
            return ("momentum_buffer",) if group["momentum"] else ()
        largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
        return "exp_avg", "exp_avg_sq", *largest

    @property
    def counts_steps(self) -> bool:
        """Whether each parameter has a number of steps."""
        return self.rule.kind != "SGD"

    def arguments(self) -> dict[str, Any]:
        """Of the class' constructor."""
        known = signature(KINDS[self.rule.kind]).parameters
        return {k: v for k, v in self.rule.group(self.settings).items() if k in known}

    def made(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """An optimizer; a stage without parameters gets one that does nothing."""
        held = list(parameters) or [nn.Parameter(torch.zeros(()))]
        return KINDS[self.rule.kind](held, **self.arguments())


def update_of(given: GivenOptimizer | Update, lr: float = 1e-3) -> Update:
    """What any of the ways to give an optimizer asks for; `lr`: of a name or a class.

    Raises `UnsupportedError`: workers cannot do it; names the class, or the groups that differ.
    """
    if isinstance(given, Update):
        return given
    if isinstance(given, str):
        if given not in BUILT_IN:
            raise UnknownNameError("optimizer", given, BUILT_IN)
        given = torch.optim.SGD if given == "sgd" else torch.optim.Adam
    kind = given if isinstance(given, type) else type(given)
    if KINDS.get(kind.__name__) is not kind:
        raise UnsupportedError(
            f"workers that share a batch cannot do what the optimizer {kind.__name__} does",
            where="optimizer=...",
            by=f"workers know {', '.join(KINDS)} of torch.optim",
            hint="take one of these, or placewright.place(..., training=True), which takes any "
            "optimizer that works tensor by tensor",
        )
    return _of_object(kind([nn.Parameter(torch.zeros(()))], lr=lr) if given is kind else given)  # type: ignore[call-arg, arg-type]


def _of_object(optimizer: Optimizer) -> Update:
    kind = type(optimizer).__name__
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError(
            "hooks on the optimizer's step, which workers would not call",
            where=f"optimizer {kind}",
            hint="remove them, or do what they do in the loop",
        )
    found = [_of_group(kind, k, group) for k, group in enumerate(optimizer.param_groups)]
    for k, update in enumerate(found):
        if update != found[0]:
            raise UnsupportedError(
                "the optimizer's groups have different settings, and workers have one group",
                where=f"optimizer {kind}: group {k}",
                by=_difference(found[0], update),
                hint="give all groups the same settings, or take placewright.place(..., "
                "training=True), which has groups",
            )
    if found[0].rule.group(found[0].settings).get("dampening"):
        raise UnsupportedError(
            "dampening counts from the second step of each parameter on, which plans may divide",
            where=f"optimizer {kind}",
            hint="dampening=0",
        )
    return found[0]


def _of_group(kind: str, position: int, group: Mapping[str, Any]) -> Update:
    numbers, whole, fixed = numbered(group, f"optimizer {kind}: group {position}")
    # Of schedulers: what they begin with, and no setting of the update.
    names = [name for name in numbers if name != "initial_lr"]
    rule = UpdateRule(kind, tuple(names), tuple(n for n in whole if n in names), fixed, {})
    return Update(rule, tuple(rule.settings_of(group)))


def _difference(one: Update, other: Update) -> str:
    ours, theirs = (u.rule.group(u.settings) for u in (one, other))
    return ", ".join(
        f"{key} {theirs.get(key)!r}, in the first {ours.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )


def current_settings(optimizer: Optimizer, placed: Update) -> Tensor:
    """The numbers of an optimizer object now, to be fed with a batch.

    Raises `InputError`: it asks for another update than the one that is `placed`.
    """
    # Schedulers warn where they step before an optimizer that they have not seen a step of.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    now = update_of(optimizer)
    if (now.rule.fixed, now.moments) != (placed.rule.fixed, placed.moments):
        raise InputError(
            "the optimizer's settings ask for another update than when the model was placed",
            where=f"optimizer {placed.rule.kind}",
            by=_difference(placed, now),
            hint=_AGAIN,
        )
    return torch.tensor(placed.rule.settings_of(optimizer.param_groups[0]), dtype=torch.float64)


def check_parameters(optimizer: Optimizer, model: nn.Module, name: str) -> None:
    """Raise `InputError` unless an optimizer has a model's trained parameters and no others."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    strange = len(held - set(map(id, named.values())))
    missing = [path for path, p in named.items() if p.requires_grad and id(p) not in held]
    if strange or missing:
        raise InputError(
            "the optimizer does not have the parameters of the model that are trained",
            where=f"model {name}, optimizer {type(optimizer).__name__}",
            by=f"without {missing[0]!r}" if missing else f"with {strange} of another model",
            hint="make it from model.parameters() of this model; freeze by requires_grad_(False) "
            "what is not trained",
        )


def refuse_trained_loss(model: nn.Module, loss_fn: Loss | None) -> None:
    """Refuse a loss that is to be trained: these workers update parameters of the model alone.

    Raises `UnsupportedError`: it names the parameter.
    """
    known = set(map(id, model.parameters()))
    for loss in modules_in(loss_fn):
        own = [(name, value) for name, value in loss.named_parameters() if id(value) not in known]
        trained = [name for name, value in own if value.requires_grad]
        if trained:
            raise UnsupportedError(
                "the loss has parameters of its own, which this training would leave as they are",
                where=f"loss {type(loss).__name__}: {trained[0]!r}",
                hint="make them parameters of the model, freeze them by requires_grad_(False), or "
                "take placewright.place(..., training=True), which trains them",
            )


def optimizer_states(optimizer: Optimizer, model: nn.Module, placed: Update) -> dict[str, Tensor]:
    """Copies of the states of an optimizer object, by the names of a file of training state."""
    found = {}
    keys = (*placed.moments, *(["step"] if placed.counts_steps else []))
    for name, parameter in model.named_parameters():
        # Without the methods of a watched state, which fetch first.
        kept = dict.get(optimizer.state, parameter, {})
        for key in keys:
            value = kept.get(key)
            if value is not None:
                copied = torch.as_tensor(value).detach().clone()
                found[f"{OPTIMIZER}{key}:model.{name}"] = copied.contiguous()
    return found


def write_states(optimizer: Optimizer, model: nn.Module, states: Mapping[str, Tensor]) -> None:
    """Give an optimizer object the states of workers; none where no step has been done."""
    for name, parameter in model.named_parameters():
        suffix = f":model.{name}"
        kept = {
            key.removeprefix(OPTIMIZER).removesuffix(suffix): value.to(
                parameter.device if value.dim() else value.device
            )
            for key, value in states.items()
            if key.startswith(OPTIMIZER) and key.endswith(suffix)
        }
        if kept and float(kept.get("step", 1.0)) > 0:
            optimizer.state[parameter] = kept


def divided(update: Update, parameters: Sequence[nn.Parameter], group: Any) -> Optimizer:
    """ZeRO 1: each replica keeps the states of some parameters, updates these and sends them."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind = KINDS[update.rule.kind]
    return ZeroRedundancyOptimizer(parameters, kind, process_group=group, **update.arguments())
