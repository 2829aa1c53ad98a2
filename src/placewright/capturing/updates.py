"""Update: what workers that share a batch do with gradients, from any way to give an optimizer.

Workers hold whole parameters, or parts of them where a plan divides weights. So only optimizers are
taken that treat each element by itself; their groups may have unlike numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from itertools import repeat
from typing import Any, TypeAlias

import torch

# Optimizers import it as they are made, which takes a second: the fork server does it once for all
# of its workers.
import torch._dynamo
from torch import Tensor, nn
from torch.optim import Optimizer

from placewright.capturing.source import BUILT_IN, Loss, TrainingRecipe, modules_in
from placewright.capturing.update_rule import UpdateRule, numbered, refuse_step_hooks
from placewright.errors import InputError, UnsupportedError, check_known

OPTIMIZER = "optimizer:"
"""Prefix of an optimizer's states in a file of training state: ``optimizer:exp_avg:NAME``."""

GivenOptimizer: TypeAlias = str | type[Optimizer] | Optimizer

Factory: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]
"""Makes an optimizer for the parameters of a model: ``partial(torch.optim.AdamW, lr=1e-4)``."""

KINDS: Mapping[str, type[Optimizer]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}

SETTINGS = f"{OPTIMIZER}settings"
"""Name under which the numbers of a step are fed with its batch."""

SCALE, HOLD = f"{OPTIMIZER}scale", f"{OPTIMIZER}hold"
"""Likewise what the loss is multiplied by, and whether gradients are kept for a later update."""

ACCUMULATED = "accumulated"
"""State of a parameter beside those of its optimizer: gradients that are kept."""

_GROUP = "placewright_group"
"""Key of a group of an optimizer: its position among those of `Update.settings`."""

_ACCUMULATED = f"{OPTIMIZER}{ACCUMULATED}:"

_AGAIN = "finish this trainer, and place the model with the optimizer as it is then"


@dataclass(frozen=True, slots=True)
class Update:
    """A class of `KINDS`, the settings of its groups, and what is done with gradients before it.

    Attributes
    ----------
    settings
        Numbers of each group at first, in the order of `UpdateRule.numbers`.
    groups
        Position of a parameter's group by its name in the model; 0 for names that are not in it.
    clip_value, clip_norm, accumulate
        As of `TrainingRecipe`.
    scaled
        Whether the loss is scaled, by a number that comes with each batch.
    """

    rule: UpdateRule
    settings: tuple[tuple[float, ...], ...]
    groups: Mapping[str, int] = field(default_factory=dict)
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    scaled: bool = False

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the states that are as large as the parameter."""
        group = self.rule.group(self.settings[0])
        if self.rule.kind == "SGD":
            return ("momentum_buffer",) if group["momentum"] else ()
        largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
        return "exp_avg", "exp_avg_sq", *largest

    @property
    def counts_steps(self) -> bool:
        """Whether each parameter has a number of steps."""
        return self.rule.kind != "SGD"

    def arguments(self) -> dict[str, Any]:
        """Of the class' constructor: the settings of the first group."""
        known = signature(KINDS[self.rule.kind]).parameters
        return {k: v for k, v in self.rule.group(self.settings[0]).items() if k in known}

    def made(self, parameters: Iterable[nn.Parameter], names: Iterable[str] = ()) -> Optimizer:
        """An optimizer; a stage without parameters gets one that does nothing.

        `names`: of the parameters in the model; without them all are in the first group.
        """
        held: list[Any] = [*self.grouped(parameters, names)]
        held = held or [nn.Parameter(torch.zeros(()))]
        return KINDS[self.rule.kind](held, **self.arguments())

    def grouped(
        self, parameters: Iterable[nn.Parameter], names: Iterable[str] = ()
    ) -> list[dict[str, Any]]:
        """Groups that some of the parameters are in, each with its position among all of them."""
        found: dict[int, list[nn.Parameter]] = {}
        if len(self.settings) == 1:
            names = repeat("")
        for parameter, name in zip(parameters, names, strict=False):
            found.setdefault(self.groups.get(name, 0), []).append(parameter)
        return [
            {**self.rule.group(self.settings[k]), "params": members, _GROUP: k}
            for k, members in found.items()
        ]

    def set_numbers(self, optimizer: Optimizer, rows: Sequence[Sequence[float]]) -> None:
        """Give the groups of an optimizer that was `made` here other numbers."""
        for group in optimizer.param_groups:
            group.update(self.rule.group(rows[group.get(_GROUP, 0)]))

    def clip(self, gradients: Sequence[Tensor], norm: Callable[[], Tensor] | None = None) -> float:
        """Clip gradients in place; their norm before that, NaN where it is not looked at.

        `norm`: of gradients of all workers; that of these by default.
        """
        if self.clip_value is not None:
            for gradient in gradients:
                gradient.clamp_(-self.clip_value, self.clip_value)
        if self.clip_norm is None:
            return math.nan
        # As `torch.nn.utils.clip_grad_norm_`.
        whole = nn.utils.get_total_norm(gradients) if norm is None else norm()
        factor = (self.clip_norm / (whole + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return float(whole)


def squared_sum(gradients: Iterable[Tensor]) -> Tensor:
    """Sum of the squares of all elements, as float64."""
    squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients]
    return torch.stack([s.to(squares[0].device) for s in squares]).sum() if squares else _NOTHING


_NOTHING = torch.zeros((), dtype=torch.float64)


def update_of(
    given: GivenOptimizer | TrainingRecipe | Update,
    lr: float = 1e-3,
    model: nn.Module | None = None,
) -> Update:
    """What any of the ways to give an optimizer asks for.

    Raises `UnsupportedError`: workers cannot do it; names the class, the setting, or the groups
    that differ in what is no number.

    Parameters
    ----------
    lr
        Of a name or a class.
    model
        Whose parameters an object has; groups with unlike numbers are told apart by their names.
    """
    if isinstance(given, Update):
        return given
    if isinstance(given, TrainingRecipe):
        refuse_options(given, "micro_batches", "outputs")
        made = update_of(given.optimizer, given.lr, model)
        return replace(
            made,
            clip_value=given.clip_value,
            clip_norm=given.clip_norm,
            accumulate=given.accumulate,
            scaled=given.scales,
        )
    if isinstance(given, str):
        check_known("optimizer", given, BUILT_IN)
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
    if given is kind:
        return _of_object(kind([nn.Parameter(torch.zeros(()))], lr=lr))  # type: ignore[call-arg]
    return _of_object(given, model)  # type: ignore[arg-type]


def refuse_options(given: Any, *names: str) -> None:
    """Raise `UnsupportedError` for what a recipe asks for by these names; others are no recipe."""
    usual = {item.name: item.default for item in fields(TrainingRecipe)}
    for name in names if isinstance(given, TrainingRecipe) else ():
        if getattr(given, name) != usual[name] and (name != "scaler" or given.scales):
            raise UnsupportedError(
                f"workers that share a batch do not know {name} here",
                where="TrainingRecipe",
                by=f"{name}={getattr(given, name)}",
                hint="leave it out: the plan has its own"
                if name == "micro_batches"
                else "leave it out, or take placewright.place(..., training=True)",
            )


def _of_object(optimizer: Optimizer, model: nn.Module | None = None) -> Update:
    kind = type(optimizer).__name__
    refuse_step_hooks(optimizer, f"optimizer {kind}")
    found = _of_groups(optimizer)
    for k, update in enumerate(found):
        alike = (update.rule, update.moments) == (found[0].rule, found[0].moments)
        if not alike or (model is None and update != found[0]):
            raise UnsupportedError(
                "the optimizer's groups differ in more than numbers"
                if not alike
                else "the optimizer's groups differ, and the model is not known",
                where=f"optimizer {kind}: group {k}",
                by=_difference(found[0], update),
                hint="give all groups the same settings but for numbers such as lr and "
                "weight_decay, or take placewright.place(..., training=True)",
            )
    if any(update.rule.group(update.settings[0]).get("dampening") for update in found):
        raise UnsupportedError(
            "dampening counts from the second step of each parameter on, which plans may divide",
            where=f"optimizer {kind}",
            hint="dampening=0",
        )
    if model is None or len(found) == 1:
        return found[0]
    names = {id(p): name for name, p in model.named_parameters()}
    groups = {
        names[id(p)]: k
        for k, group in enumerate(optimizer.param_groups)
        for p in group["params"]
        if id(p) in names
    }
    return replace(found[0], settings=tuple(u.settings[0] for u in found), groups=groups)


def _of_groups(optimizer: Optimizer) -> list[Update]:
    """An update for each group. What is no setting of the class (a name, say) is not looked at."""
    kind, found = type(optimizer).__name__, []
    for k, group in enumerate(optimizer.param_groups):
        known = {name: group[name] for name in optimizer.defaults if name in group}
        numbers, whole, fixed = numbered(known, f"optimizer {kind}: group {k}")
        # An integer is a number like any other: of one group lr may be 1, of another 0.5.
        rule = UpdateRule(kind, tuple(numbers), tuple(whole) if k == 0 else (), fixed, {})
        found.append(Update(rule, (tuple(rule.settings_of(group)),)))
    return [replace(u, rule=replace(u.rule, whole=found[0].rule.whole)) for u in found]


def _difference(one: Update, other: Update) -> str:
    ours, theirs = (u.rule.group(u.settings[0]) for u in (one, other))
    return ", ".join(
        f"{key} {theirs.get(key)!r}, in the first {ours.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )


def current_settings(optimizer: Optimizer, placed: Update) -> Tensor:
    """The numbers of an optimizer object's groups now, to be fed with a batch.

    Shape (groups, numbers).
    Raises `InputError`: it asks for another update than the one that is `placed`.
    """
    # Schedulers warn where they step before an optimizer that they have not seen a step of.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    found, kept = _of_groups(optimizer), len(placed.settings)
    for now in found:
        same = (now.rule.fixed, now.moments) == (placed.rule.fixed, placed.moments)
        if not same or (kept == 1 and now.settings != found[0].settings):
            raise InputError(
                "the optimizer's settings ask for another update than when the model was placed",
                where=f"optimizer {placed.rule.kind}",
                by=_difference(found[0] if same else placed, now),
                hint=_AGAIN,
            )
    return torch.tensor([now.settings[0] for now in found[:kept]], dtype=torch.float64)


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
            if key.startswith(OPTIMIZER) and key.endswith(suffix) and _ACCUMULATED not in key
        }
        if kept and float(kept.get("step", 1.0)) > 0:
            optimizer.state[parameter] = kept


def divided(
    update: Update, parameters: Sequence[nn.Parameter], names: Sequence[str], group: Any
) -> Optimizer:
    """ZeRO 1: each replica keeps the states of some parameters, updates these and sends them."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind, grouped = KINDS[update.rule.kind], update.grouped(parameters, names)
    return ZeroRedundancyOptimizer(grouped, kind, process_group=group, **update.arguments())
