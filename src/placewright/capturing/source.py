"""ModelSource: a model with its inputs and loss, and their tensors under the names of a program.

TrainingRecipe: what a training step does with the gradients.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from placewright.capturing import zoo
from placewright.capturing.containers import leaves_of
from placewright.errors import (
    InputError,
    PlacewrightError,
    Terminated,
    UnknownNameError,
    UnsupportedError,
    described,
)
from placewright.interpreter import import_from, inductor_cache
from placewright.io.arguments import Count, OneOf, Positive, checked, described_value

ZOO = "zoo:"

Loss = Callable[[Any, Any], Any]


class Member(NamedTuple):
    """A parameter or buffer.

    `key`: its name in a program: that in the model, after ``loss_fn.`` that in the loss.
    `path`: its name in `ModelAndLoss`.
    """

    key: str
    path: str
    value: Tensor


class ModelAndLoss(nn.Module):
    """Model and loss in one: a loss may have parameters, and may read the model's.

    A call returns ``then(outputs, targets)``.
    """

    def __init__(self, model: nn.Module, loss_fn: Loss | None, then: Loss | None = None) -> None:
        super().__init__()
        self.model, self.then, self.training = model, then, model.training
        losses = modules_in(loss_fn)
        self.loss_fn = losses[0] if len(losses) == 1 else nn.ModuleList(losses)

    def forward(self, inputs: Any, targets: Any) -> Any:
        """Run the model, then `then` on its outputs."""
        assert self.then is not None
        if isinstance(inputs, dict):
            return self.then(self.model(**inputs), targets)
        return self.then(self.model(*inputs), targets)

    def stand_in(self, values: Mapping[str, Tensor]) -> None:
        """Let code take `values`, by path, for the parameters and buffers that they replace.

        It may ask whether one is a parameter, and for what libraries have set on it.
        """
        for members in (self.named_parameters, self.named_buffers):
            for path, own in members(remove_duplicate=False):
                if path in values:
                    vars(values[path]).update(vars(own))
                    if isinstance(own, nn.Parameter):
                        values[path]._is_param = True
                    elif isinstance(own, nn.Buffer):
                        values[path]._is_buffer = True  # type: ignore[attr-defined]


def modules_in(loss_fn: Loss | None) -> list[nn.Module]:
    """The modules that a loss is, is a method of, is made from or closes over."""
    if isinstance(loss_fn, nn.Module):
        return [loss_fn]
    if isinstance(loss_fn, functools.partial):
        given = (loss_fn.func, *loss_fn.args, *loss_fn.keywords.values())
    else:
        cells = getattr(loss_fn, "__closure__", None) or ()
        given = (getattr(loss_fn, "__self__", None), *map(_content, cells))
    return [value for value in given if isinstance(value, nn.Module)]


def copied(model: nn.Module, loss_fn: Loss | None) -> tuple[nn.Module, Loss | None]:
    """A model and its loss that share no tensor with the given ones.

    A loss that closes over the model closes over the copy.
    """
    # Hooks of pruned and weight-normed models keep what they compute as an attribute, which a deep
    # copy refuses; their copies compute it again at the next call.
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, memo), _copied_loss(loss_fn, memo)


def _copied_loss(loss_fn: Loss | None, memo: dict[int, Any]) -> Loss | None:
    if isinstance(loss_fn, functools.partial):
        given = (loss_fn.args, loss_fn.keywords)
        args, keywords = copy.deepcopy(given, memo)
        return functools.partial(copy.deepcopy(loss_fn.func, memo), *args, **keywords)
    cells = getattr(loss_fn, "__closure__", None) or ()
    if not isinstance(loss_fn, FunctionType) or not modules_in(loss_fn):
        return copy.deepcopy(loss_fn, memo)
    contents = [_content(cell) for cell in cells]
    kept = [copy.deepcopy(c, memo) if isinstance(c, nn.Module) else c for c in contents]
    made = FunctionType(
        loss_fn.__code__,
        loss_fn.__globals__,
        loss_fn.__name__,
        loss_fn.__defaults__,
        tuple(CellType(content) for content in kept),
    )
    made.__kwdefaults__ = loss_fn.__kwdefaults__
    return made


def as_arguments(inputs: Any, model: str) -> Any:
    """Inputs as a tuple or list of positional arguments, or a dict of keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return dict(inputs)
    if not isinstance(inputs, tuple | list):
        raise InputError(
            "inputs must be a tuple, a list, a dict by names or a tensor",
            where=f"model {model}",
            by=f"got {type(inputs).__name__}",
            hint="give what the model is called with: a tensor, arguments in order, or by name",
        )
    return inputs


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


@checked
@dataclass(frozen=True, slots=True, eq=False)
class ModelSource:
    """A model with its inputs, loss and targets.

    Attributes
    ----------
    inputs
        A tuple or list of positional arguments, a dict of keyword arguments, or one tensor.
    loss_fn
        ``loss_fn(outputs, targets) -> scalar``, ``None`` without one.
    recipe
        What a training step does with the gradients; ``None``: as the capture is asked to.
    """

    model: nn.Module
    inputs: Any
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    targets: Any = None
    name: str = ""
    recipe: TrainingRecipe | None = None

    def __post_init__(self) -> None:
        """A recipe that only names its optimizer gets one object, which all users share."""
        if self.recipe is not None:
            own = self.recipe.resolved(lambda: list(self.parameters().values()))
            object.__setattr__(self, "recipe", own)

    def with_recipe(
        self,
        optimizer: str | torch.optim.Optimizer | TrainingRecipe = "adam",
        lr: float = 1e-3,
        micro_batches: int | None = None,
    ) -> ModelSource:
        """The same with a recipe; one that it has already stays, but for its micro-batches."""
        recipe = self.recipe or recipe_of(optimizer, lr)
        if micro_batches is not None:
            recipe = replace(recipe, micro_batches=micro_batches)
        return replace(self, recipe=recipe)

    @property
    def arguments(self) -> Any:
        """The inputs as a tuple or list of positional arguments, or a dict by keyword."""
        return as_arguments(self.inputs, type(self.model).__name__)

    def members(self) -> tuple[list[Member], list[Member]]:
        """Parameters and buffers of model and loss, each tensor once.

        Raises `UnsupportedError`: two have one name.
        """
        whole = ModelAndLoss(self.model, self.loss_fn)
        return self._named(whole.named_parameters()), self._named(whole.named_buffers())

    def _named(self, tensors: Any) -> list[Member]:
        members = [Member(path.removeprefix("model."), path, value) for path, value in tensors]
        twice = [key for key, times in Counter(m.key for m in members).items() if times > 1]
        if twice:
            raise UnsupportedError(
                "the model and the loss have a parameter or buffer of one name",
                where=f"model {type(self.model).__name__}, {twice[0]!r}",
                hint="give the model's part 'loss_fn' another name",
            )
        return members

    def parameters(self) -> dict[str, Tensor]:
        """The parameters of model and loss by their names in a program."""
        return {member.key: member.value for member in self.members()[0]}

    def values(self) -> dict[tuple[str, str], object]:
        """Parameters, buffers, inputs and targets by role and key."""
        parameters, buffers = self.members()
        groups: dict[str, list[tuple[str, object]]] = {
            "parameter": [(m.key, m.value) for m in parameters],
            "buffer": [(m.key, m.value) for m in buffers],
            "input": leaves_of(self.arguments),
            "target": leaves_of(self.targets),
        }
        return {(role, key): value for role, held in groups.items() for key, value in held}

    def aliases(self) -> dict[str, list[str]]:
        """Every name of each parameter and buffer of the model, by the name in a program."""
        named = (
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        )
        by_tensor: dict[int, list[str]] = {}
        for name, value in named:
            by_tensor.setdefault(id(value), []).append(name)
        return {names[0]: names for names in by_tensor.values()}


def source_of(
    model: Any,
    inputs: Any = None,
    loss_fn: Loss | None = None,
    targets: Any = None,
    *,
    training: bool,
    where: str,
) -> ModelSource:
    """A model with what it is fed, in training with a loss; a `ModelSource` is taken as it is.

    `where`: what the user has called.

    Raises `InputError`: it is no module, or comes without inputs.
    """
    if isinstance(model, ModelSource):
        return replace(model, loss_fn=model.loss_fn or default_loss) if training else model
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        raise InputError(
            "a torch.nn.Module is placed",
            where=f"{where}({name})",
            hint="give the model itself, or what placewright.load_model returns; wrap a function "
            "into a module whose forward calls it",
        )
    if inputs is None:
        raise InputError(
            "the model's inputs are missing",
            where=f"{where}({name})",
            hint="give an example: a tensor, a tuple or list of arguments, or a dict",
        )
    if training and loss_fn is None:
        loss_fn = default_loss
    return ModelSource(model, inputs, loss_fn, targets, name)


@checked
def load_model(
    source: str,
    batch: Count | None = None,
    training: bool = False,
    *,
    weights: bool = True,
    seed: int = 0,
) -> ModelSource:
    """Build the model that `source` names.

    Parameters
    ----------
    source
        ``zoo:resnet50``, ``package.module:factory`` or ``folder/file.py:factory``; a factory
        takes no arguments (or the keyword `batch`) and returns ``(model, inputs)`` or
        ``(model, inputs, loss_fn, targets)``.
    batch
        Samples per step; where ``None`` the factory's own default, for training a model of the
        zoo `zoo.TRAINING_BATCH`.
    training
        Take the loss; that of `default_loss` where the factory gives none.
    weights
        ``False`` builds zoo models on the meta device: shapes without memory, enough to plan.
    seed
        Weights and inputs are drawn from it; the caller's random state is left as it was.

    Raises
    ------
    InputError
        No such module or factory, the factory raised, or returned something else.
    """
    device = "cpu" if weights or not source.startswith(ZOO) else "meta"
    if batch is None and training and source.startswith(ZOO):
        batch = zoo.TRAINING_BATCH
    sizes = {} if batch is None else {"batch": batch}
    with torch.device(device):
        made = call_factory(source, sizes, seed=seed)
    model, inputs, loss_fn, targets = _unpack(made, source)
    if training and loss_fn is None:
        loss_fn = default_loss
    name = source.removeprefix(ZOO).rpartition(":")[2]
    return ModelSource(model, inputs, loss_fn, targets, name)


def call_factory(source: str, sizes: Mapping[str, int] = MappingProxyType({}), *, seed: int) -> Any:
    """What the factory returns that `source` names, with random numbers drawn from `seed`.

    Raises `InputError`: no such module or factory, or the factory raised.
    """
    os.environ.update(inductor_cache())
    make = zoo.factory(source.removeprefix(ZOO)) if source.startswith(ZOO) else _factory(source)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _call(make, sizes, source)


@checked
def default_loss(outputs: Any, targets: Any = None) -> Tensor:
    """The loss where none is given: the model's own, else the mean square of the outputs, summed.

    A model's own is what it returns as ``loss``, as those of Transformers do that get labels, or
    the one number that it returns.
    """
    own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(own, Tensor) and own.dim() == 0 and own.is_floating_point():
        return own
    leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    if not leaves:
        raise InputError(
            "the model has no floating-point output to make a loss of",
            where="outputs of default_loss()",
            by=f"got {described_value(outputs)}",
            hint="return (model, inputs, loss_fn, targets) from the factory",
        )
    return torch.stack([x.square().mean() for x in leaves]).sum()


def _factory(source: str) -> Callable[..., Any]:
    path, _, name = source.partition(":")
    if not path or not name:
        raise InputError(
            f"model {source!r} is neither zoo:NAME, package.module:factory nor FILE.py:factory",
            hint=f"zoo models: {', '.join(zoo.FACTORIES)}",
        )
    made = getattr(_module(path), name, None)
    if made is None:
        public = [key for key in vars(_module(path)) if not key.startswith("_")]
        raise UnknownNameError("factory", name, public, where=f"module {path}")
    if not callable(made):
        hint = "name a function of no arguments that returns (model, inputs)"
        raise InputError(f"{name!r} is not a function", where=f"module {path}", hint=hint)
    return made  # type: ignore[no-any-return]


def _module(path: str) -> ModuleType:
    here = os.getcwd()
    if path.endswith(".py"):
        here, path = _folder_and_module(Path(path))
    try:
        return import_from(here, path)
    except ModuleNotFoundError as error:
        raise InputError(
            f"no module named {error.name!r}",
            where=f"model {path}",
            hint=f"run from the directory that holds it (now {here}) or install it",
        ) from error
    except (Terminated, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the user's code raises, `sys.exit` too
        raise InputError(
            f"importing it raised {described(error)}",
            where=f"module {path}",
            hint=f"it must import without running anything: try `python -c 'import {path}'`",
        ) from error


def _folder_and_module(file: Path) -> tuple[str, str]:
    """Folder and module name of a Python file; refused where another module has that name."""
    if not file.is_file():
        raise InputError("no such file", where=f"model {file}", hint=f"now in {os.getcwd()}")
    known = getattr(sys.modules.get(file.stem), "__file__", None)
    if file.stem in sys.modules and (known is None or not file.samefile(known)):
        raise InputError(
            f"a module {file.stem!r} is imported already, from {known or 'Python itself'}",
            where=f"model {file}",
            hint="give the file another name",
        )
    return str(file.parent.absolute()), file.stem


def _call(make: Callable[..., Any], sizes: Mapping[str, int], source: str) -> Any:
    try:
        return make(**sizes)
    except (PlacewrightError, Terminated, KeyboardInterrupt):
        raise
    except BaseException as error:
        hint = "a factory takes no arguments; give it the keyword `batch` to use --batch"
        raise InputError(
            f"the factory raised {described(error)}",
            where=f"model {source}",
            hint=hint if isinstance(error, TypeError) else "call it in a Python shell to see why",
        ) from error


def _unpack(made: Any, source: str) -> tuple[nn.Module, Any, Any, Any]:
    got = type(made).__name__
    if isinstance(made, tuple):
        got = "(" + ", ".join(type(part).__name__ for part in made) + ")"
    if isinstance(made, tuple) and made and _is_tensorflow(made[0]):
        raise InputError(
            "the factory returns a model of TensorFlow",
            where=f"model {source}",
            by=f"got {got}",
            hint=f"give it as tensorflow:{source}",
        )
    if not isinstance(made, tuple) or len(made) not in (2, 4) or not isinstance(made[0], nn.Module):
        raise InputError(
            "the factory must return (model, inputs) or (model, inputs, loss_fn, targets)",
            where=f"model {source}",
            by=f"got {got}",
            hint="the model is a torch.nn.Module",
        )
    if len(made) == 4 and made[2] is not None and not callable(made[2]):
        raise InputError("loss_fn is not callable", where=f"model {source}", by=f"got {got}")
    model, inputs, loss_fn, targets = made if len(made) == 4 else (*made, None, None)
    return model, inputs, loss_fn, targets


def _is_tensorflow(model: Any) -> bool:
    return any(
        kind.__module__.split(".")[0] in ("keras", "tensorflow") for kind in type(model).__mro__
    )


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
