"""A user's optimizer object becomes one update rule per parameter, or is refused by name.

Whether an optimizer works tensor by tensor is found out by trying it: a copy of it updates a few
small parameters all at once, and each alone by the rule that a worker would have. Both must agree
to the last bit. So any class may be used that passes, and one that mixes tensors, draws random
numbers, needs a closure or keeps something outside of its state is named before anything runs.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from placewright.capturing.lowering import spec_of
from placewright.capturing.update_rule import (
    PLAIN,
    UPDATE,
    UpdateRule,
    numbered,
    plain_step,
    rebuilt,
    refuse_step_hooks,
    rule_of,
)
from placewright.errors import InputError, UnsupportedError
from placewright.graph.graph import Program, Ref, TensorSpec, input_name

_STEPS = 3
"""Steps of a trial: some classes make part of their state in the second one."""

_ROWS = 4
"""Size of a trial's parameters in each dimension, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterRule:
    """How one parameter is updated.

    `group`: its group's position.
    `state`: specs of the tensors in its state, by `UpdateRule.tensors`.
    """

    group: int
    rule: UpdateRule
    state: tuple[TensorSpec, ...]


def parameter_rules(
    optimizer: Optimizer, parameters: Mapping[str, Tensor]
) -> dict[str, ParameterRule]:
    """The rule of every parameter that the optimizer has.

    `parameters`: those of the model, by key.

    Raises `UnsupportedError`: the optimizer does not work tensor by tensor, or workers cannot make
    one of its class.
    Raises `InputError`: it has parameters of another model, or settings that cannot be sent.
    """
    name = optimizer_name(optimizer)
    kind, attributes = importable(type(optimizer)), _plain_attributes(optimizer)
    keys = {id(value): key for key, value in parameters.items()}
    rules = []
    for position, group in enumerate(optimizer.param_groups):
        numbers, whole, fixed = numbered(group, f"{name}: group {position}")
        rules.append(UpdateRule(kind, tuple(numbers), tuple(whole), fixed, attributes))
    refuse_step_hooks(optimizer, name)
    _check_alone(optimizer, rules)
    found: dict[str, ParameterRule] = {}
    known: dict[tuple[int, TensorSpec], ParameterRule] = {}
    for position, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in keys:
                raise InputError(
                    "the optimizer has a parameter that the model does not have",
                    where=f"{name}: group {position}",
                    by=f"shape {tuple(parameter.shape)}",
                    hint="make the optimizer from the parameters of the model that is placed",
                )
            case = (position, spec_of(parameter))
            if case not in known:
                known[case] = _with_state(optimizer, rules[position], parameter, position)
            found[keys[id(parameter)]] = known[case]
    return found


def optimizer_name(optimizer: Optimizer) -> str:
    """For messages."""
    return f"optimizer {type(optimizer).__name__}"


def importable(kind: type) -> str:
    """``package.module:Class``; `UnsupportedError` where a worker could not import it."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    found: Any = None
    if kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__:
        try:
            found = import_module(kind.__module__)
            for part in kind.__qualname__.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            found = None
    if found is not kind:
        raise UnsupportedError(
            "workers cannot import the class of the optimizer",
            where=f"optimizer {kind.__name__}",
            by=f"it is {name}",
            hint="define it at the top level of a module of its own, and import it from there",
        )
    return name


def _plain_attributes(optimizer: Optimizer) -> dict[str, Any]:
    base = vars(Optimizer([torch.zeros(())], {}))  # its hooks, defaults and groups
    return {k: v for k, v in vars(optimizer).items() if k not in base and isinstance(v, PLAIN)}


def _twin(optimizer: Optimizer) -> Optimizer:
    """Another object with the same attributes.

    ``copy.copy`` would lose all but groups and state. A scheduler puts a ``step`` of its own into
    the object, which would step the original.
    """
    made = type(optimizer).__new__(type(optimizer))
    vars(made).update({k: v for k, v in vars(optimizer).items() if k != "step"})
    return made


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """A small parameter that stands for a real one, and what its state begins with."""

    rule: UpdateRule
    settings: Mapping[str, Any]
    value: Tensor
    state: Mapping[str, Any]

    def alone(self) -> tuple[Optimizer, Tensor]:
        """A worker's optimizer for a parameter of its own."""
        parameter = self.value.clone().requires_grad_()
        made = rebuilt(self.rule, self.settings)
        made.param_groups = [{**self.settings, "params": [parameter]}]
        made.state = defaultdict(dict, {parameter: self.own_state()} if self.state else {})
        return made, parameter

    def own_state(self) -> dict[str, Any]:
        """A copy of `state`."""
        return {key: _copied(value) for key, value in self.state.items()}


def _samples(optimizer: Optimizer, rules: Sequence[UpdateRule]) -> list[list[_Sample]]:
    """By group, two parameters of every small shape."""
    draw = torch.Generator().manual_seed(0)
    found: list[list[_Sample]] = []
    for rule, group in zip(rules, optimizer.param_groups, strict=True):
        settings = rule.group(rule.settings_of(group))
        shapes = {tuple(min(n, _ROWS) for n in p.shape): p for p in group["params"]}
        found.append(
            [
                _Sample(
                    rule,
                    settings,
                    torch.randn(shape, generator=draw).to(like.dtype),
                    _small_state(optimizer.state.get(like, {}), like.shape, shape),
                )
                for shape, like in shapes.items()
                for _ in range(2)
            ]
        )
    return found


def _small_state(
    state: Mapping[str, Any], shape: Sequence[int], small: Sequence[int]
) -> dict[str, Any]:
    """The state of a parameter cut down to a small one; empty where that is not possible."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1:
            if tuple(value.shape) != tuple(shape) or value.is_meta:
                return {}
            value = value[tuple(slice(0, n) for n in small)]
        found[key] = value
    return found


def _check_alone(optimizer: Optimizer, rules: Sequence[UpdateRule]) -> None:
    """Raise unless small parameters are updated alike all at once and each alone."""
    name, samples = optimizer_name(optimizer), _samples(optimizer, rules)
    joint, together = _twin(optimizer), list[Tensor]()
    joint.param_groups, joint.state = [], defaultdict(dict)
    for group, members in zip(optimizer.param_groups, samples, strict=True):
        parameters = [sample.value.clone().requires_grad_() for sample in members]
        joint.param_groups.append({**group, "params": parameters})
        for parameter, sample in zip(parameters, members, strict=True):
            if sample.state:
                joint.state[parameter] = sample.own_state()
        # In the order of `alone`: group by group.
        together += parameters
    alone = [sample.alone() for members in samples for sample in members]
    with torch.random.fork_rng(devices=[]):
        before = _shared(joint)
        _try_steps(joint, together, alone, name)
        after = _shared(joint)
    if before != after:
        changed = sorted(k for k in before | after if before.get(k) != after.get(k))
        raise UnsupportedError(
            "the optimizer keeps something outside of the state of its parameters",
            where=name,
            by=f"a step changes {', '.join(changed)}",
            hint="keep it in self.state[parameter]",
        )


def _try_steps(
    joint: Optimizer,
    together: Sequence[Tensor],
    alone: Sequence[tuple[Optimizer, Tensor]],
    name: str,
) -> None:
    draw = torch.Generator().manual_seed(1)
    for step in range(1, _STEPS + 1):
        for one, (_, other) in zip(together, alone, strict=True):
            one.grad = torch.randn(one.shape, generator=draw).to(one.dtype)
            other.grad = one.grad.clone()
        before = torch.get_rng_state()
        _try_step(joint.step, name, alone=False)
        if not torch.equal(before, torch.get_rng_state()):
            raise UnsupportedError(
                "the optimizer draws random numbers, which workers would draw in another order",
                where=name,
                hint="use one that draws none",
            )
        for single, _ in alone:
            _try_step(plain_step(single), name, alone=True)
        for one, (_, other) in zip(together, alone, strict=True):
            if not torch.equal(one.detach(), other.detach()):
                raise UnsupportedError(
                    "the optimizer does not update each tensor by itself",
                    where=name,
                    by=f"step {step} gives a parameter of shape {tuple(one.shape)} other values "
                    "beside others than alone",
                    hint="workers update the parameters that are placed on them: use an optimizer "
                    "that works tensor by tensor, such as AdamW, or average in a loss",
                )


def _shared(optimizer: Optimizer) -> dict[str, Any]:
    """Plain attributes and settings, which a step must leave alone."""
    plain = {f"self.{k}": v for k, v in _plain_attributes(optimizer).items()}
    # Fused classes check their parameters once and remember that they did.
    plain.pop("self._need_device_dtype_check_for_fused", None)
    for k, group in enumerate(optimizer.param_groups):
        plain |= {f"group {k}'s {name!r}": v for name, v in group.items() if name != "params"}
    return plain


def _try_step(step: Callable[[], Any], name: str, *, alone: bool) -> None:
    try:
        with torch.no_grad():
            step()
    except TypeError as error:
        if "closure" not in str(error):
            raise _fails(error, name, alone=alone) from error
        raise UnsupportedError(
            "the optimizer evaluates the loss by itself, by a closure",
            where=name,
            by=str(error),
            hint="a placed step has one forward and one backward pass: use an optimizer whose "
            "step() takes no closure, such as AdamW",
        ) from error
    except Exception as error:
        raise _fails(error, name, alone=alone) from error


def _fails(error: Exception, name: str, *, alone: bool) -> UnsupportedError:
    text = " ".join(str(error).split())[:200]
    return UnsupportedError(
        "the optimizer cannot be carried to workers"
        if alone
        else "the optimizer cannot update a small dense tensor",
        where=name,
        by=f"step() raised {type(error).__name__}: {text}",
        hint="it may use nothing but its groups, plain attributes and self.state[parameter]"
        if alone
        else "it must work on any parameter that has a dense gradient",
    )


def _with_state(
    optimizer: Optimizer, rule: UpdateRule, like: Tensor, position: int
) -> ParameterRule:
    """The rule with what its state is for a parameter of this size."""
    spec, name = spec_of(like), optimizer_name(optimizer)
    value = torch.empty_strided(spec.shape, spec.stride, dtype=like.dtype).zero_()
    settings = rule.group(rule.settings_of(optimizer.param_groups[position]))
    state = _small_state(optimizer.state.get(like, {}), spec.shape, spec.shape)
    single, parameter = _Sample(rule, settings, value, state).alone()
    tensors: dict[str, TensorSpec] = {}
    counts: dict[str, None] = {}
    # Twice: some classes make part of their state in the second step only.
    for _ in range(2):
        parameter.grad = torch.full_like(value, 0.5)
        _try_step(plain_step(single), name, alone=True)
        for key, kept in single.state[parameter].items():
            if isinstance(kept, Tensor):
                tensors[key] = spec_of(kept)
            elif isinstance(kept, bool | int | float):
                counts[f"{key} {type(kept).__name__}"] = None
            elif kept is not None:
                raise UnsupportedError(
                    f"the state {key!r} of a parameter is a {type(kept).__name__}",
                    where=name,
                    hint="keep tensors and numbers in self.state[parameter]",
                )
    whole = replace(rule, tensors=tuple(tensors), counts=tuple(counts))
    return ParameterRule(position, whole, tuple(tensors.values()))


def settings_input(group: int) -> str:
    """The program input that holds the numbers of a group."""
    return input_name("setting", f"group.{group}")


def state_input(key: str, name: str) -> str:
    """The program input that holds a tensor of a parameter's state."""
    return input_name("state", f"{key}/{name}")


NOTES = "notes"

FIRST, HOLD = input_name("setting", "first"), input_name("setting", "hold")
"""Not 0 in the first batch of several whose gradients are added up; in all but the last."""

SCALE, INVERSE = input_name("setting", "scale"), input_name("setting", "inverse_scale")
"""Of the loss, where a scaler is used."""


def updates_in(program: Program) -> Iterator[tuple[str, UpdateRule, str]]:
    """Parameter's key, rule and settings input of every update by a rule."""
    for call in program.instructions:
        if call.target == UPDATE:
            parameter, settings = call.args[0], call.args[3]
            assert isinstance(parameter, Ref)
            assert isinstance(settings, Ref)
            yield parameter.name.partition(":")[2], rule_of(call.args), settings.name


def check_settings(program: Program, optimizer: Optimizer) -> None:
    """Raise where the optimizer's groups ask for another update than what was captured.

    Raises `InputError`: a setting that is no number has changed (``nesterov``), or a number has
    that decides what state there is (``momentum`` of 0).
    """
    rules = {(rule.text(), settings): rule for _, rule, settings in updates_in(program)}
    for (_, name), rule in rules.items():
        position = int(name.rpartition(".")[2])
        group = optimizer.param_groups[position]
        where = f"{optimizer_name(optimizer)}: group {position}"
        numbers, _, fixed = numbered(group, where)
        known, now = {**rule.fixed, **dict.fromkeys(rule.numbers)}, dict.fromkeys(numbers) | fixed
        others = [key for key in {**known, **now} if known.get(key, "") != now.get(key, "")]
        if others:
            raise _other_update(where, f"{', '.join(others)} changed")
        if not group["params"]:
            continue
        like = min(group["params"], key=lambda parameter: parameter.numel())
        plain = replace(rule, tensors=(), counts=())
        state = _with_state(_stateless(optimizer), plain, like, position).rule
        if (state.tensors, state.counts) != (rule.tensors, rule.counts):
            kept, needed = ", ".join(rule.tensors) or "none", ", ".join(state.tensors) or "none"
            raise _other_update(where, f"it needs the state {needed}, the placed step keeps {kept}")


def _stateless(optimizer: Optimizer) -> Optimizer:
    made = _twin(optimizer)
    made.state = defaultdict(dict)
    return made


def _other_update(where: str, by: str) -> InputError:
    return InputError(
        "the optimizer's settings ask for another update than when the model was placed",
        where=where,
        by=by,
        hint="finish this trainer and place the model with the optimizer as it is now; learning "
        "rates, weight decays and other numbers may change at any time",
    )


def current_settings(program: Program, optimizer: Optimizer) -> dict[str, Tensor]:
    """The numbers of all groups as they are now, by program input.

    Raises `InputError`: a setting is no number any more.
    """
    rules = {settings: rule for _, rule, settings in updates_in(program)}
    found = {}
    for name, rule in rules.items():
        group = optimizer.param_groups[int(name.rpartition(".")[2])]
        found[name] = torch.tensor(rule.settings_of(group), dtype=torch.float64)
    return found


def optimizer_state(
    program: Program, optimizer: Optimizer, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the optimizer's state holds already, by program input."""
    found: dict[str, Tensor] = {}
    for key, rule, _ in updates_in(program):
        kept = optimizer.state.get(parameters[key], {})
        notes = [float(kept.get(name) is not None) for name in rule.tensors]
        for name in rule.tensors:
            if kept.get(name) is not None:
                found[state_input(key, name)] = kept[name].detach()
        for count in rule.counts:
            value = kept.get(count.rpartition(" ")[0])
            notes += [0.0, 0.0] if value is None else [1.0, float(value)]
        found[state_input(key, NOTES)] = torch.tensor(notes, dtype=torch.float64)
    return found


def write_optimizer_state(
    program: Program,
    optimizer: Optimizer,
    parameters: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
) -> None:
    """Put the state that workers had into the optimizer, so that ``state_dict()`` has it."""
    for key, rule, _ in updates_in(program):
        if state_input(key, NOTES) not in state:
            continue
        notes = state[state_input(key, NOTES)].tolist()
        tensors = [state[state_input(key, name)] for name in rule.tensors]
        kept = {k: _copied(value) for k, value in rule.state_of(tensors, notes).items()}
        if kept:
            optimizer.state[parameters[key]] = kept
