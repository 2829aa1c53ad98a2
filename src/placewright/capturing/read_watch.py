"""ReadWatch: tensors that are filled when they are read, as their newest values are elsewhere.

While a trainer is open its workers have the newest weights. To fetch them after every step would
cost more than the step. So they are fetched when something reads a weight: the model in a call, a
copy, an average, a norm, `print`. Until then each weight has a class of its own, through which
PyTorch announces whatever is done with it::

    a step is done     arm()     type(weight) is UnreadParameter
    weight.norm()      fetch()   the newest values are in the weight, and in all others
                       disarm()  type(weight) is nn.Parameter, as if nothing had been; then norm()

Metadata (shapes, devices, `requires_grad`) are read without that. What reads memory in C++ without
an operator of PyTorch is not noticed: modules of TorchScript, transforms of `torch.func` over a
dict of parameters, arrays and views that were taken before the step.
"""

from __future__ import annotations

import copy
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class GradientsWarning(UserWarning):
    """A gradient was read in a process that has none: it is with the workers."""


class ReadWatch:
    """Has tensors filled before they are read.

    Parameters
    ----------
    members
        Gives the tensors that are watched from `arm` on.
    fetch
        Writes the newest values into them; whether they have them now. It may be called by any
        thread, and inside any mode of PyTorch.
    """

    def __init__(self, members: Callable[[], Iterable[Tensor]], fetch: Callable[[], bool]) -> None:
        self._members, self._fetch = members, fetch
        self._held: dict[int, Tensor] = {}

    def arm(self) -> None:
        """Fetch before the next read; at once where a tensor's class leaves no room for that."""
        if self in _ARMED:
            return
        self._held = {id(tensor): tensor for tensor in self._members() if not tensor.is_meta}
        _ARMED.add(self)
        if not all(map(_mark, self._held.values())):
            self.read()

    def disarm(self) -> None:
        """Leave the tensors alone."""
        _ARMED.discard(self)
        for tensor in self._held.values():
            if isinstance(tensor, _Unread) and not any(map(tensor.is_of, _ARMED)):
                _unmark(tensor)
        self._held = {}

    def read(self) -> bool:
        """Fetch now; whether the tensors have the newest values."""
        fetched = self._fetch()
        if fetched:
            self.disarm()
        return fetched

    def holds(self, tensor: Tensor) -> bool:
        """Whether a read of it is noticed."""
        return id(tensor) in self._held


_ARMED: WeakSet[ReadWatch] = WeakSet()


def read_newest(tensors: Iterable[Tensor] | None = None, *, but: ReadWatch | None = None) -> None:
    """Fetch what is newer elsewhere of these tensors, or of all; not what `but` watches."""
    if not _ARMED:  # mostly, and before every call: to look into a `WeakSet` takes a microsecond
        return
    others = [watch for watch in _ARMED if watch is not but]
    if not others:
        return
    named = None if tensors is None else list(tensors)
    for watch in others:
        if named is None or any(map(watch.holds, named)):
            watch.read()


def plain_classes() -> None:
    """Fetch what is newer elsewhere, and give all tensors the classes that tracers know.

    An owner that is in the middle of a step arms its watch again when it is done.
    """
    read_newest()
    for watch in list(_ARMED):
        watch.disarm()


class _Unread:
    """Mixed into the class of a tensor whose newest values are elsewhere."""

    plain: type[Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, _kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if func not in _WITHOUT_VALUES and _all_read((args, keywords)):
            return func(*args, **keywords)
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **keywords)
            if found is None and func == _GRADIENT and args[0].requires_grad:
                _warn_of_gradient(sys._getframe(1))
        return found

    def is_of(self, watch: ReadWatch) -> bool:
        """Whether `watch` notices a read of it."""
        return watch.holds(self)  # type: ignore[arg-type]

    def __deepcopy__(self, memo: Any) -> Any:
        with _as_plain(self):
            return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _as_plain(self):
            return self.__reduce_ex__(protocol)


def _all_read(values: Any) -> bool:
    """Have all tensors in some arguments filled; not those whose owner reads them itself."""
    unread = [leaf for leaf in tree_leaves(values) if isinstance(leaf, _Unread)]
    read_newest(unread)  # type: ignore[arg-type]
    for tensor in unread:
        if isinstance(tensor, _Unread) and not any(map(tensor.is_of, _ARMED)):
            _unmark(tensor)  # its owner is gone
    return not any(isinstance(tensor, _Unread) for tensor in unread)


@contextmanager
def _as_plain(tensor: Any) -> Iterator[None]:
    """A tensor that is about to be copied with its class, filled if its owner does not read it."""
    _all_read((tensor,))
    kind = type(tensor)
    if not issubclass(kind, _Unread):
        yield
        return
    _unmark(tensor)
    try:
        yield
    finally:
        tensor.__class__ = kind


def _mark(tensor: Tensor) -> bool:
    """Give a tensor the class that tells of reads; whether it takes one."""
    if not isinstance(tensor, _Unread):
        try:
            tensor.__class__ = _unread(type(tensor))
        except TypeError:
            return False
    return True


def _unmark(tensor: Any) -> None:
    tensor.__class__ = tensor.plain


@cache
def _unread(kind: type[Tensor]) -> type:
    """A class of tensors, and that it tells of reads.

    Raises `TypeError`: it has an opinion of its own of what is done with its tensors.
    """
    handler: Any = kind.__torch_function__
    if getattr(handler, "__func__", handler) not in _NO_HANDLERS:
        raise TypeError(kind)
    members = {"plain": kind, "__module__": __name__}
    return types.new_class(
        f"Unread{kind.__name__}", (_Unread, kind), {}, lambda n: n.update(members)
    )


_NO_HANDLERS = (
    Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch._C._disabled_torch_function_impl,
)


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


def _setter(name: str) -> Any:
    return getattr(Tensor, name).__set__


_GRADIENT = _getter("grad")

_WITHOUT_VALUES = frozenset(
    [
        *map(_getter, ("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize")),
        *map(_getter, ("requires_grad", "grad", "grad_fn", "is_leaf", "output_nr", "_version")),
        *map(_getter, ("is_meta", "is_cpu", "is_cuda", "is_sparse", "is_quantized", "is_nested")),
        *map(_setter, ("requires_grad", "grad")),
        Tensor.requires_grad_,
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.element_size),
        *(Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_inference),
        *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook),
        *(Tensor.__hash__, Tensor.__len__, Tensor.is_shared, Tensor.storage_offset),
        *(torch.is_floating_point, torch.is_complex, torch.numel, torch.is_inference),
    ]
)


def _warn_of_gradient(reader: types.FrameType | None) -> None:
    """Warn whoever reads a gradient, but for loops that would only reset it."""
    while reader is not None and reader.f_code.co_filename == __file__:
        reader = reader.f_back
    if reader is not None and reader.f_code.co_name != "zero_grad":
        warnings.warn(
            "gradients of a placed training step stay with its workers: .grad is None here, and "
            "what clips or changes it has no effect\n"
            "  next: clip with TrainingRecipe(clip_norm=...) or clip_value=..., and read the norm "
            "in trainer.metrics",
            GradientsWarning,
            stacklevel=3,
        )
