"""Parameters and buffers of a model and of its loss, under the names that a program gives them."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from placewright.errors import UnsupportedError

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource

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


def named_state(model: nn.Module, loss_fn: Loss | None = None) -> tuple[list[Member], list[Member]]:
    """Parameters and buffers, each tensor once; `UnsupportedError` for a name used twice."""
    whole = ModelAndLoss(model, loss_fn)
    return _members(whole.named_parameters(), model), _members(whole.named_buffers(), model)


def parameters_of(source: ModelSource) -> dict[str, Tensor]:
    """The parameters of a model and its loss by key."""
    return {m.key: m.value for m in named_state(source.model, source.loss_fn)[0]}


def _members(named: Any, model: nn.Module) -> list[Member]:
    members = [Member(path.removeprefix("model."), path, value) for path, value in named]
    _check_distinct([member.key for member in members], model)
    return members


def _check_distinct(keys: Sequence[str], model: nn.Module) -> None:
    twice = [key for key, times in Counter(keys).items() if times > 1]
    if twice:
        raise UnsupportedError(
            "the model and the loss have a parameter or buffer of one name",
            where=f"model {type(model).__name__}, {twice[0]!r}",
            hint="give the model's part 'loss_fn' another name",
        )


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
