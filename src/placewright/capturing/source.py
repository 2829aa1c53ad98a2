"""ModelSource: model, inputs and loss, from the zoo or a user's factory function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from placewright.capturing import zoo
from placewright.capturing.named_state import parameters_of
from placewright.capturing.recipe import TrainingRecipe
from placewright.errors import (
    InputError,
    PlacewrightError,
    Terminated,
    UnknownNameError,
    described,
)
from placewright.interpreter import import_from, inductor_cache
from placewright.io.arguments import Count, checked, described_value

ZOO = "zoo:"


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
            own = self.recipe.resolved(lambda: list(parameters_of(self).values()))
            object.__setattr__(self, "recipe", own)


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
        Take the loss; the mean square of the outputs stands in where the factory gives none.
    weights
        ``False`` builds zoo models on the meta device: shapes without memory, enough to plan.
    seed
        Weights and inputs are drawn from it; the caller's random state is left as it was.

    Raises
    ------
    InputError
        No such module or factory, the factory raised, or returned something else.
    """
    os.environ.update(inductor_cache())
    make = zoo.factory(source.removeprefix(ZOO)) if source.startswith(ZOO) else _factory(source)
    device = "cpu" if weights or not source.startswith(ZOO) else "meta"
    if batch is None and training and source.startswith(ZOO):
        batch = zoo.TRAINING_BATCH
    sizes = {} if batch is None else {"batch": batch}
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        made = _call(make, sizes, source)
    model, inputs, loss_fn, targets = _unpack(made, source)
    if training and loss_fn is None:
        loss_fn = mean_square
    name = source.removeprefix(ZOO).rpartition(":")[2]
    return ModelSource(model, inputs, loss_fn, targets, name)


@checked
def mean_square(outputs: Any, targets: Any = None) -> Tensor:
    """Mean square of every floating-point output, summed: a loss where none was given."""
    leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    if not leaves:
        raise InputError(
            "the model has no floating-point output to make a loss of",
            where="outputs of mean_square()",
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
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
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


def _call(make: Callable[..., Any], sizes: dict[str, int], source: str) -> Any:
    try:
        return make(**sizes)
    except (PlacewrightError, Terminated):
        raise
    except (Exception, SystemExit) as error:
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
