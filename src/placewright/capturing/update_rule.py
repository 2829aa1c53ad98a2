"""UpdateRule: one parameter's update by a user's own optimizer class, as text in a program.

The operation ``placewright.update`` is one operator of the graph per parameter. It runs the real
class on that parameter alone, so that it is placed, profiled and counted like any operator, and
its state (momenta, step counts) lives in program inputs, which migrate and are kept in snapshots.

    placewright.update(parameter, gradient, [state ...], settings, notes, [hold ...], rule)

    settings   float64: the numbers of the parameter's group (learning rate, betas, ...), in the
               order of `UpdateRule.numbers`; fed with every batch, so that schedules take effect
    notes      float64: 1 for every tensor of state that exists already, then for every number in
               the state (a Python step count) 1 and its value, or 0 and 0
    hold       any number that is not 0 skips the update: gradients are still being accumulated,
               or overflowed
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from placewright.capturing.rewrites import define_operation
from placewright.errors import InputError, RunError, UnsupportedError

UPDATE = "placewright.update.default"
ACCUMULATE = "placewright.accumulate.default"
UNSCALE = "placewright.unscale.default"

PLAIN = (bool, int, float, str, type(None))
"""Types of settings and attributes that a rule can hold."""

_NUMBERS: Mapping[str, Any] = {"int": int, "float": float, "bool": bool}

_RULE = -1
"""Position of the rule among the arguments of an update."""


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How a class updates the parameters of one group.

    Attributes
    ----------
    kind
        The class, as ``package.module:Class``.
    numbers
        Names of the group's numbers: ``lr``, ``betas.0``.
    whole
        Those of `numbers` that were integers.
    fixed
        The group's other settings.
    attributes
        Plain attributes of the optimizer itself.
    tensors, counts
        Names of the tensors, and of the numbers, in the state of a parameter; a count's type is
        behind its name: ``step int``.
    """

    kind: str
    numbers: tuple[str, ...]
    whole: tuple[str, ...]
    fixed: Mapping[str, Any]
    attributes: Mapping[str, Any]
    tensors: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()

    def text(self) -> str:
        """As an argument of a program."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> UpdateRule:
        """The rule that `text` made.

        Raises `InputError`: it is none.
        """
        try:
            data = json.loads(text)
            lists = {k: tuple(v) for k, v in data.items() if isinstance(v, list)}
            return cls(**{**data, **lists})
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError("an update without a rule", where=UPDATE, by=text[:80]) from error

    @property
    def note_count(self) -> int:
        """Length of the notes."""
        return len(self.tensors) + 2 * len(self.counts)

    def state_of(self, tensors: Sequence[Tensor], notes: Sequence[float]) -> dict[str, Any]:
        """The state of a parameter, as far as the notes say that it exists."""
        pairs = zip(self.tensors, tensors, notes, strict=False)
        found: dict[str, Any] = {name: tensor for name, tensor, exists in pairs if exists}
        after = notes[len(self.tensors) :]
        for count, exists, value in zip(self.counts, after[::2], after[1::2], strict=True):
            name, _, kind = count.rpartition(" ")
            if exists:
                found[name] = _NUMBERS[kind](value)
        return found

    def group(self, settings: Sequence[float]) -> dict[str, Any]:
        """The group's settings, numbers included."""
        group = {k: tuple(v) if isinstance(v, list) else v for k, v in self.fixed.items()}
        parts: dict[str, list[float]] = {}
        for name, value in zip(self.numbers, settings, strict=True):
            number = int(value) if name in self.whole and value == int(value) else value
            head, dot, _ = name.partition(".")
            if dot:
                parts.setdefault(head, []).append(number)
            else:
                group[name] = number
        return group | {name: tuple(values) for name, values in parts.items()}

    def settings_of(self, group: Mapping[str, Any]) -> list[float]:
        """The numbers of a group as they are now.

        Raises `InputError`: a setting is no number any more.
        """
        found = []
        for name in self.numbers:
            head, _, index = name.partition(".")
            value = group[head][int(index)] if index else group[head]
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    f"{name!r} was a number when the step was captured",
                    where=f"optimizer {self.kind.rpartition(':')[2]}",
                    by=f"now it is {value!r}"[:80],
                    hint="keep it a number, or place the model again",
                )
            found.append(float(value))
        return found


def numbered(group: Mapping[str, Any], where: str) -> tuple[list[str], list[str], dict[str, Any]]:
    """Names of a group's numbers, of those that are integers, and its other settings.

    Raises `InputError`: a setting is neither plain nor a tuple of numbers.
    """
    numbers: list[str] = []
    whole: list[str] = []
    fixed: dict[str, Any] = {}
    for name, value in group.items():
        if name in ("params", "param_names"):
            continue
        parts = {name: value}
        if isinstance(value, tuple | list) and value:
            parts = {f"{name}.{k}": part for k, part in enumerate(value)}
        if all(is_number(part) for part in parts.values()):
            numbers += parts
            whole += [part for part, number in parts.items() if isinstance(number, int)]
        elif isinstance(value, PLAIN):
            fixed[name] = value
        elif all(isinstance(part, PLAIN) for part in parts.values()):
            fixed[name] = tuple(value)
        else:
            raise InputError(
                f"the setting {name!r} of a parameter group cannot be sent to workers",
                where=where,
                by=f"it is a {type(value).__name__}",
                hint="make it a number, a tuple of numbers, a string, a bool or None",
            )
    return numbers, whole, fixed


def is_number(value: object) -> bool:
    """Whether it is an integer or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rebuilt(rule: UpdateRule, group: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimizer of the rule's class without parameters of its own.

    It is made around ``__init__``, whose arguments are not known any more: what that left in plain
    attributes and in the group is put in their place.
    """
    kind = optimizer_class(rule.kind)
    made = kind.__new__(kind)
    # The real add_param_group loads torch._dynamo: two seconds and 100 MB in every worker.
    vars(made)["add_param_group"] = lambda group: None
    torch.optim.Optimizer.__init__(made, [torch.zeros(())], dict(group))
    del vars(made)["add_param_group"]
    made.__dict__.update(rule.attributes)
    return made


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """``optimizer.step`` without what PyTorch wraps around it: hooks, gradient mode, torch._dynamo.

    To be called under ``torch.no_grad``.
    """
    step: Any = type(optimizer).step
    while hasattr(step, "__wrapped__") and _TORCH in step.__code__.co_filename:
        step = step.__wrapped__
    return partial(step, optimizer)


_TORCH = str(Path(torch.__file__).parent)


def refuse_step_hooks(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Raise `UnsupportedError` where an optimizer's step has hooks, its own or those of all."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        raise UnsupportedError(
            "hooks on the optimizer's step, which workers would not call",
            where=where,
            hint="remove them, or do what they do in the loop",
        )


@cache
def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer class of that name.

    The name comes from this process or one that has proved itself, or is one of PyTorch's own in a
    graph file (`is_own_optimizer`). It can name nothing but a class of optimizers.

    Raises `RunError`: there is none.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_class(name, str(error)) from error
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise _no_class(name, "that is no torch.optim.Optimizer")
    return found


def is_own_optimizer(name: str) -> bool:
    """Whether a name, without importing what it names, is that of a class in ``torch.optim``."""
    return any(
        isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and name == f"{kind.__module__}:{kind.__qualname__}"
        for kind in vars(torch.optim).values()
    )


def _no_class(name: str, why: str) -> RunError:
    return RunError(
        f"there is no optimizer class {name!r}",
        by=why,
        hint="install the module that defines it on every machine, under the same name",
    )


class Updater:
    """Applies one rule to one parameter after another."""

    def __init__(self, rule: UpdateRule) -> None:
        self.rule = rule
        self.optimizer = rebuilt(rule, rule.group([0.0] * len(rule.numbers)))
        self._step = plain_step(self.optimizer)
        self._settings: list[float] = []
        self._group: dict[str, Any] = {}

    def apply(
        self,
        parameter: Tensor,
        gradient: Tensor,
        state: Sequence[Tensor],
        settings: Tensor,
        notes: Tensor,
    ) -> None:
        """One update, in place."""
        optimizer, numbers = self.optimizer, settings.tolist()
        if numbers != self._settings:
            self._settings, self._group = numbers, self.rule.group(numbers)
        noted = notes.tolist()
        known = self.rule.state_of(state, noted)
        optimizer.param_groups = [{**self._group, "params": [parameter]}]
        # The one object serves all parameters of the rule: groups and state are this one's for the
        # length of a step.
        optimizer.state = defaultdict(dict, {parameter: known})
        parameter.grad = gradient
        try:
            self._step()
        finally:
            parameter.grad = None
            kept = optimizer.state.pop(parameter, {})
            optimizer.param_groups = []
        now = self._kept(kept, state)
        # Mostly they are equal, and a copy into a tensor takes longer than the comparison.
        if now != noted:
            notes.copy_(torch.tensor(now, dtype=notes.dtype))

    def _kept(self, kept: Mapping[str, Any], state: Sequence[Tensor]) -> list[float]:
        """Take over what the class has put into the state, some of it new tensors; the notes."""
        rule = self.rule
        now: list[float] = []
        for name, tensor in zip(rule.tensors, state, strict=True):
            value = kept.get(name)
            # A class that updates its state in place has written into the program's tensor already.
            if value is not None and value is not tensor:
                tensor.copy_(value)
            now.append(float(value is not None))
        for count in rule.counts:
            value = kept.get(count.rpartition(" ")[0])
            now += [0.0, 0.0] if value is None else [1.0, float(value)]
        return now


@cache
def _updater(text: str) -> Updater:
    return Updater(UpdateRule.of_text(text))


def _update(
    parameter: Tensor,
    gradient: Tensor,
    state: Sequence[Tensor],
    settings: Tensor,
    notes: Tensor,
    hold: Sequence[Tensor],
    rule: str,
) -> None:
    if any(flag.item() for flag in hold):
        return
    _updater(rule).apply(parameter, gradient, state, settings, notes)


def _accumulate(into: Tensor, gradient: Tensor, first: Tensor) -> None:
    """Begin with the first gradient, as ``backward`` does where ``.grad`` is None."""
    if first.item():
        into.copy_(gradient)
    else:
        into.add_(gradient)


def _unscale(gradient: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """As ``GradScaler.unscale_`` on one gradient: it without the scale, and 1 if not finite."""
    made, found = gradient.clone(), torch.zeros((), dtype=torch.float32, device=gradient.device)
    torch._amp_foreach_non_finite_check_and_unscale_([made], found, inverse)
    return made, found


define_operation(
    "update(Tensor(a!) parameter, Tensor gradient, Tensor(b!)[] state, Tensor settings,"
    " Tensor(c!) notes, Tensor[] hold, str rule) -> ()",
    _update,
)
define_operation("accumulate(Tensor(a!) into, Tensor gradient, Tensor first) -> ()", _accumulate)
define_operation("unscale(Tensor gradient, Tensor inverse) -> (Tensor, Tensor)", _unscale)


def rule_of(arguments: Sequence[Any]) -> UpdateRule:
    """The rule among the arguments of an update; `InputError` where it is not the last."""
    return UpdateRule.of_text(str(arguments[_RULE]) if arguments else "")
