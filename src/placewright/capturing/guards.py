"""Guards: what a captured step assumes of Python, compared before every call in microseconds.

A trace reads modes, attributes (the probability of a dropout, a configuration), hooks, global
variables, plain tensors, and settings of the process. A program is right as long as they stay. So
all of them are written down when a step has been captured, as `torch.compile` does, flat: one
comparison of identities in C over all values, and of lengths, versions and addresses. Where that
fails, what has changed is found out and named::

    unchanged()  ->  changes()  ->  weights       taken over: workers start from the new values
                                    modes,        captured again
                                    attributes
                                    gradients     frozen and trained parameters: captured again
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from placewright.capturing.checks import PARAMETER_HOOKS
from placewright.capturing.isolation import executed_code, reads_memory_of, watch
from placewright.capturing.program_calls import tracing_settings
from placewright.capturing.python_state import (
    Container,
    Globals,
    PythonState,
    base_of,
    flags_kept,
    is_own,
    set_by_hooks,
    set_mode,
)
from placewright.capturing.read_watch import read_newest
from placewright.capturing.source import Loss, modules_in
from placewright.errors import InputError

_VERSION, _TRAINED = attrgetter("_version"), attrgetter("requires_grad")
_CONTENTS = attrgetter("cell_contents")

_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, property, staticmethod, classmethod)
"""Values of classes, and of global variables of packages, that are not compared: nobody replaces
them, and there are many."""

_SAMPLED, _WHOLE = 256, 2048
"""Bytes in the middle of a weight that are compared; one of up to `_WHOLE` bytes is as a whole."""

_HOOKS = tuple(map(attrgetter, PARAMETER_HOOKS))

_OF_EVERY_MODULE = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
"""Attributes that PyTorch gives each module: its mode, and containers of hooks."""

MOST_ARRAY_BYTES, ARRAY_ELEMENTS = 1 << 20, 4096
"""Arrays of NumPy have no version: they are compared byte by byte, larger ones by so many elements
at equal distances."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is no longer as it was when a step was captured.

    Attributes
    ----------
    weights
        Parameters and buffers with other values, by name.
    gradients
        Parameters that require a gradient now and did not, or the other way round.
    modes
        Whether a module is in another mode than the step was captured in.
    settings
        Whether a setting of the process is another one: default dtype, autocast, precision.
    attributes
        Everything else, as messages name it.
    """

    weights: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    modes: bool = False
    settings: bool = False
    attributes: tuple[str, ...] = ()

    @property
    def of_code(self) -> bool:
        """Whether the step that was captured is another one now."""
        return bool(self.gradients or self.modes or self.settings or self.attributes)

    def __str__(self) -> str:
        parts = [*self.attributes[:3]]
        parts += ["the mode of a module"] * self.modes
        parts += ["a setting of PyTorch (default dtype, autocast, precision)"] * self.settings
        parts += [f"requires_grad of {name!r}" for name in self.gradients[:3]]
        parts += [f"the values of {name!r}" for name in self.weights[:3]]
        return ", ".join(parts)


class Guards:
    """The state of a model, its loss and its process when a step was captured.

    Parameters
    ----------
    training
        Whether that step trains, which says what the modes of the modules mean.
    """

    def __init__(self, model: nn.Module, loss_fn: Loss | None = None, *, training: bool) -> None:
        self.model, self.loss_fn, self.training = model, loss_fn, training
        self.since: tuple[str, ...] = ()
        self._renew()
        self._first = self.key
        watch(model, self)

    def follow(self) -> Changes:
        """What has changed; the present state is what is compared with from now on."""
        if self.unchanged():
            return Changes()
        changes = self.changes()
        self.since += (*changes.attributes, *(f"requires_grad of {n!r}" for n in changes.gradients))
        self._renew()
        return changes

    def _renew(self) -> None:
        self._containers = self._reached()
        self._modes = effective_modes(self.model, training=self.training)
        self._settings = tracing_settings()
        self._modules = list(self.model.modules())
        self._classes = list(map(type, self._modules))
        self._members = {**_named(self.model), **_named_of_loss(self.loss_fn)}
        self._flat = _Flat.of(self._containers, self._members.values(), trains=self.training)
        self._sums: list[int] = []

    def extend(self) -> None:
        """Watch what newly executed code reads, too, from its present state on."""
        known = {container.place for container in self._containers.containers}
        tensors = {id(tensor) for tensor, _, _ in self._containers.tensors}
        found = self._reached()
        self._containers.containers += [c for c in found.containers if c.place not in known]
        self._containers.tensors += [t for t in found.tensors if id(t[0]) not in tensors]
        self._flat.add([c for c in found.containers if c.place not in known])
        self._flat.add_plain([t for t, _, _ in found.tensors if id(t) not in tensors])
        self._flat.add_arrays(found.arrays)
        self._containers.texts |= found.texts
        self._flat.add_texts(found.texts)

    def _reached(self) -> PythonState:
        """What the code that ran in traces can reach."""
        roots = (self.model, *modules_in(self.loss_fn), self.loss_fn)
        found = PythonState.of(*roots, executed=executed_code(self.model))
        own = {id(x) for part in (self.model, *modules_in(self.loss_fn)) for x in part.parameters()}
        others = (x for x in found.parameters if id(x) not in own)
        read = [x for x in others if reads_memory_of(self.model, x)]  # a teacher's, say
        found.tensors += [(x, x._version, None) for x in read]
        return found

    def demand_as_captured(self, where: str, hint: str) -> None:
        """Raise `InputError` where a step that was captured at the beginning is another one now."""
        self.follow()
        if self.since or self.key != self._first:
            by = ", ".join(dict.fromkeys(self.since)) or "a mode, or a setting of PyTorch"
            raise changed_model(by, where, hint)

    @property
    def key(self) -> tuple[Any, ...]:
        """Modes and settings, by which a step that was captured before is found again."""
        return self._modes, self._settings

    def members(self) -> Iterable[Tensor]:
        """Parameters and buffers when the step was captured."""
        return self._members.values()

    def take_weights(self) -> None:
        """Compare with the present values of parameters and buffers from now on."""
        self._flat.take_members()
        self.note_bytes()

    def note_bytes(self) -> None:
        """Have `same_bytes` compare with the present values of parameters and buffers."""
        self._sums = self._checksums()

    def same_bytes(self) -> bool:
        """Whether every byte of parameters and buffers is as it was noted, if it was.

        Notices all that is written through ``.data`` or an array of NumPy, of which `unchanged`
        sees a sample; it reads all of them, which takes up to a second per gigabyte.
        """
        return not self._sums or self._checksums() == self._sums

    def _checksums(self) -> list[int]:
        with torch._C.DisableTorchFunctionSubclass():  # of what is here: no read of the newest
            return list(map(_checksum, self.members()))

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        read_newest(self._members.values())
        try:
            same = self._flat.same() and list(map(type, self._modules)) == self._classes
            return same and tracing_settings() == self._settings
        except KeyError:  # an attribute has been deleted
            return False

    def changes(self) -> Changes:
        """What has changed."""
        read_newest(self._members.values())
        now = {**_named(self.model), **_named_of_loss(self.loss_fn)}
        known = dict(self._flat.seen(self._members))
        both = [name for name in now if name in known]
        sums = dict(zip(self._members, self._sums, strict=False))
        return Changes(
            weights=tuple(
                n
                for n in both
                if known[n].has_other_values(now[n]) or (n in sums and _checksum(now[n]) != sums[n])
            ),
            gradients=tuple(n for n in both if now[n].requires_grad != known[n].trained)
            if self.training
            else (),
            modes=effective_modes(self.model, training=self.training) != self._modes,
            settings=tracing_settings() != self._settings,
            attributes=tuple(dict.fromkeys(self._changed_attributes(now.keys() ^ known.keys()))),
        )

    def _changed_attributes(self, others: Any) -> Iterator[str]:
        yield from (f"parameter or buffer {name!r}" for name in sorted(others))
        hooked = {id(tensor) for tensor in self._flat.hooked()}
        yield from (f"a hook on {n!r}" for n, x in self._members.items() if id(x) in hooked)
        for name, value in self._flat.variables.items():
            if os.environ.get(name) != value:
                yield f"the environment variable {name}"
        for module, before in zip(self._modules, self._classes, strict=True):
            if type(module) is not before:
                yield f"the class of a module, {before.__name__}"
        weights = {id(tensor) for tensor in self._members.values()}
        own = {id(vars(module)) for module in self.model.modules()}  # whose modes are `_modes`
        for container in self._containers.containers:
            if container.is_changed():
                moded = container.of_module and id(container.holder) not in own
                yield from _changed_keys(container, weights, moded=moded)
        for tensor, version, _ in self._containers.tensors:
            if tensor._version != version and id(tensor) not in weights:
                yield _plain(tensor)
        for tensor, place in zip(self._flat.others, self._flat.places, strict=True):
            if tensor.data_ptr() != place:
                yield _plain(tensor)
        for what, array, content in self._flat.arrays:
            if _array_bytes(array) != content:
                yield what


def changed_model(by: str, where: str, hint: str) -> InputError:
    """The error where a model is another one than what was captured of it."""
    what = "the model, or a setting that it is computed with, has changed since it was placed"
    return InputError(what, where=where, by=by, hint=hint)


def effective_modes(model: nn.Module, *, training: bool) -> tuple[bool, ...]:
    """The mode of every module in a step; see `placewright.capturing.python_state.set_mode`."""
    with flags_kept(model):
        set_mode(model, training=training)
        return tuple(module.training for module in model.modules())


@dataclass(slots=True)
class _Flat:
    """All that is compared, in flat lists.

    `values`: methods that give the values of dicts, lists and variables; `expected`: those values.
    `cells`, `contents`: variables of closures, and their values.
    `empty`: containers that were empty, hooks mostly.
    `others`, `places`: tensors that are no members, and where they were in memory.
    `views`: some elements of every weight, as ``weight.data.clamp_()`` leaves no other trace.
    `unhooked`: parameters that are trained, which have no hooks when a step is captured.
    `variables`: environment variables that code reads, ``None`` for one that is not set.
    """

    values: list[Callable[[], Any]] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    cells: list[CellType] = field(default_factory=list)
    contents: list[Any] = field(default_factory=list)
    sized: list[Any] = field(default_factory=list)
    length: int = 0
    empty: list[Any] = field(default_factory=list)
    sets: list[tuple[set[Any], set[Any]]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    members: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)
    sampled: list[bytes] = field(default_factory=list)
    arrays: list[tuple[str, Any, bytes]] = field(default_factory=list)
    unhooked: list[Tensor] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)
    trains: bool = True

    @classmethod
    def of(cls, state: PythonState, members: Any, *, trains: bool) -> _Flat:
        flat = cls(trains=trains)
        flat.add(state.containers)
        flat.members = list(members)
        flat.trained = list(map(_TRAINED, flat.members))
        flat.unhooked = [tensor for tensor in flat.members if trains and tensor.requires_grad]
        flat.add_texts(state.texts)
        flat.add_tensors(flat.members)
        flat.take_members()
        flat.add_plain([tensor for tensor, _, _ in state.tensors])
        flat.add_arrays(state.arrays)
        return flat

    def take_members(self) -> None:
        """Compare with the present values of parameters and buffers from now on."""
        counted = sum(not tensor.is_inference() for tensor in self.members)
        self.versions[:counted] = map(_VERSION, self.tensors[:counted])
        self.addresses = list(map(Tensor.data_ptr, self.members))
        self.views = [view for view in map(_sample, self.members) if view is not None]
        self.sampled = [view.tobytes() for view in self.views]

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Compare their versions from now on."""
        counted = [tensor for tensor in tensors if not tensor.is_inference()]
        self.tensors += counted
        self.versions += map(_VERSION, counted)

    def add_plain(self, tensors: Sequence[Tensor]) -> None:
        """Compare tensors that are neither parameters nor buffers from now on."""
        self.add_tensors(tensors)
        known = set(map(id, self.members))
        others = [x for x in tensors if id(x) not in known and x.layout is torch.strided]
        self.others += others
        self.places += map(Tensor.data_ptr, others)
        for tensor in others:
            if (view := _sample(tensor)) is not None:
                self._watch(_plain(tensor), view)

    def add_arrays(self, arrays: Iterable[tuple[Any, str, Any]]) -> None:
        """Compare arrays, which messages name so, from now on."""
        known = {id(array) for _, array, _ in self.arrays}
        for array, path, _ in arrays:
            if id(array) not in known:
                self._watch(f"the array {path}", array)

    def _watch(self, what: str, array: Any) -> None:
        """Compare an array from now on; messages name it as `what`."""
        self.arrays.append((what, array, _array_bytes(array)))

    def add_texts(self, texts: Iterable[str]) -> None:
        """Compare the environment variables of these names."""
        named = (text for text in texts if text.isascii() and text.isidentifier())
        self.variables |= {name: os.environ.get(name) for name in named}

    def add(self, containers: Iterable[Container]) -> None:
        """Compare what these containers hold."""
        for container in containers:
            self._add(container)

    def _add(self, container: Container) -> None:
        holder, content = container.holder, container.content
        if isinstance(content, set) and content:
            self.sets.append((holder, content))
            return
        if isinstance(holder, dict | list | deque | set):
            if not content:
                self.empty.append(holder)
                return
            self.sized.append(holder)
            self.length += len(holder)
            if container.of_module and isinstance(holder, dict):
                # Without the dicts of hooks, which are containers of their own.
                content = {k: v for k, v in content.items() if k not in _OF_EVERY_MODULE}
                read = partial(itemgetter(*content, "training"), holder)
                self.values.append(read)
                self.expected += (*content.values(), holder["training"])
                return
            of_all: Any = dict.values if isinstance(holder, dict) else base_of(holder).__iter__
            self.values.append(of_all.__get__(holder))
            self.expected += content.values() if isinstance(content, dict) else content
            return
        kept = {k: v for k, v in content.items() if _compared(holder, v)}
        if kept and isinstance(holder, CellType):
            self.cells.append(holder)
            self.contents += kept.values()
        elif kept:
            if isinstance(holder, MappingProxyType):
                self.sized.append(holder)
                self.length += len(holder)
            self.values.append(_reader(holder, tuple(kept)))
            self.expected += kept.values()

    def same(self) -> bool:
        """Whether nothing has changed; of weights whose newest values are elsewhere, those here."""
        with torch._C.DisableTorchFunctionSubclass():
            return self._same()

    def _same(self) -> bool:
        return (
            all(map(is_, chain.from_iterable(map(call, self.values)), self.expected))
            and all(map(is_, map(_CONTENTS, self.cells), self.contents))
            and sum(map(len, self.sized)) == self.length
            and not any(self.empty)
            and list(map(_VERSION, self.tensors)) == self.versions
            and list(map(Tensor.data_ptr, self.members)) == self.addresses
            and list(map(Tensor.data_ptr, self.others)) == self.places
            and (not self.trains or list(map(_TRAINED, self.members)) == self.trained)
            and (not self.unhooked or not any(any(map(h, self.unhooked)) for h in _HOOKS))
            and [view.tobytes() for view in self.views] == self.sampled
            and (not self.sets or all(now == then for now, then in self.sets))
            and (not self.arrays or all(_array_bytes(a) == then for _, a, then in self.arrays))
            and (not self.variables or self._same_variables())
        )

    def _same_variables(self) -> bool:
        return all(os.environ.get(name) == then for name, then in self.variables.items())

    def hooked(self) -> Iterator[Tensor]:
        """Parameters that are trained and have got a hook, which workers would not call."""
        return (x for x in self.unhooked if any(hooks(x) for hooks in _HOOKS))

    def seen(self, members: Mapping[str, Tensor]) -> Iterator[tuple[str, _Seen]]:
        """What each member was, by name."""
        versions = {id(t): v for t, v in zip(self.tensors, self.versions, strict=True)}
        pairs = zip(self.addresses, self.trained, strict=True)
        pairs_of_bytes = zip(self.views, self.sampled, strict=True)
        samples = {view.base.ctypes.data: (view, then) for view, then in pairs_of_bytes}
        for (name, tensor), (address, trained) in zip(members.items(), pairs, strict=True):
            view, content = samples.get(address, (None, b""))
            same = view is None or view.tobytes() == content
            yield name, _Seen(tensor, versions.get(id(tensor), 0), address, trained, same)


class _Seen(NamedTuple):
    """A parameter or buffer when the step was captured; `same`: its sample is that of then."""

    tensor: Tensor
    version: int
    address: int
    trained: bool
    same: bool

    def has_other_values(self, now: Tensor) -> bool:
        """Whether the member `now` has, or may have, other values."""
        if now is not self.tensor or now.data_ptr() != self.address or not self.same:
            return True
        return not now.is_inference() and now._version != self.version


def _sample(tensor: Tensor) -> Any:
    """A view of `_SAMPLED` bytes in the middle of a dense tensor; ``None`` for others."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.numel()
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    raw = tensor.detach().view(-1).view(torch.uint8).numpy()
    if len(raw) <= _WHOLE:
        return raw[:]
    first = len(raw) // 2 - _SAMPLED // 2
    return raw[first : first + _SAMPLED]


def _checksum(tensor: Tensor) -> int:
    """Of all bytes of a tensor on the CPU; 0 for others."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.numel():
        return 0
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().data)


def _plain(tensor: Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} that is no buffer"


def _array_bytes(array: Any) -> bytes:
    """What is compared of an array."""
    if not isinstance(array, np.ndarray):
        return bytes(array)
    if array.nbytes <= MOST_ARRAY_BYTES:
        return bytes(array.tobytes())
    return bytes(array.flat[:: array.size // ARRAY_ELEMENTS + 1].tobytes())


def _compared(holder: Any, value: Any) -> bool:
    """Whether a value of a class, a cell or global variables is: not the code of packages."""
    return not isinstance(value, _CODE) or isinstance(holder, CellType) or is_own(holder)


def _reader(holder: Any, names: tuple[str, ...]) -> Callable[[], Any]:
    """Gives values of variables, a class or slots; a missing one is `None`.

    Without a frame of Python, which would take most of the time.
    """
    if isinstance(holder, Globals):
        return partial(map, holder.variables.get, names)
    if isinstance(holder, type):
        return partial(map, holder.__dict__.get, names)
    if isinstance(holder, ContextVar):
        return lambda: [holder.get(None)]
    if isinstance(holder, MappingProxyType):
        return partial(map, holder.get, names)
    return lambda: [getattr(holder, name, None) for name in names]


def _named(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _named_of_loss(loss_fn: Loss | None) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for k, module in enumerate(modules_in(loss_fn)):
        found |= {f"loss_fn.{k}.{name}": value for name, value in _named(module).items()}
    return found


def _changed_keys(container: Container, weights: set[int], *, moded: bool) -> Iterator[str]:
    """Names in a container whose value is another one, and not merely an equal number.

    `moded`: whether it is a module whose mode is an attribute like others.
    """
    now, then = container.now(), container.content
    if not isinstance(then, dict):
        yield container.path
        return
    computed = set_by_hooks(then)
    for key in dict.fromkeys((*then, *now)):
        old, new = then.get(key, _MISSING), now.get(key, _MISSING)
        if new is old or (key == "training" and not moded):
            continue
        if isinstance(container.holder, Globals | type) and not _compared(container.holder, old):
            continue
        replaced = isinstance(new, Tensor) and id(old) in weights
        if not replaced and key not in computed and not _equal(old, new):
            yield f"{container.path}.{key}".rstrip(".")


_MISSING = object()

_PLAIN = (str, bytes, int, float, complex, bool, type(None), tuple, frozenset, torch.dtype)


def _equal(old: Any, new: Any) -> bool:
    """Whether both are plain and equal."""
    if type(old) is not type(new) or not isinstance(old, _PLAIN):
        return False
    try:
        return bool(old == new)
    except (RuntimeError, ValueError):  # tuples of tensors or arrays
        return False
