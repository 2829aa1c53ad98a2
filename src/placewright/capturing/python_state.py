"""PythonState: what a model's code can change in Python, kept before a trace, put back after it.

A forward pass may leave things behind: a cache, a count, a mask by length, a weight computed anew,
on a module, in an object that it holds, in a global variable, on a class or in an ``lru_cache``.
During a trace those are fakes, which would break the user's model afterwards. So every container
that the code of the model and the loss can reach is copied (one level; what it holds is a container
of its own) and filled again. `in_mode` does that around a trace or a call, and restores the mode,
training or evaluation, that the model was in.
"""

from __future__ import annotations

import array
import functools
import site
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx, nn

from placewright.capturing.source import Loss, modules_in

MOST_CONTAINERS = 50_000
"""Far more than a model with its configuration has; the rest is not looked at."""

LARGE_BYTES = 1 << 26
"""Plain tensors and arrays up to this size are copied, so that changes in place can be undone."""

_LIBRARIES = {
    *("torch", "numpy", "numba", "placewright", "builtins", *sys.stdlib_module_names),
    *("_pytest", "pluggy"),
}
"""Packages whose own functions, classes and objects are not looked into.

Assertions of a test's model name pytest, which knows all that its plug-ins and tests have made.
"""

_NEVER_COMPUTED_WITH = {"tqdm", "threading", "logging"}
"""Packages whose objects and classes, derived ones too, no forward pass computes with.

They change meanwhile: a progress bar's thread notes each second that it woke up.
"""

_PLAIN_HOLDERS = {"types", "argparse", "collections", "weakref", "_thread"}
"""Those of them whose objects hold what a user puts into them."""

ARRAYS = (np.ndarray, array.array, bytearray)
"""They have no version, and are no containers of objects."""

CACHE: Any = type(functools.lru_cache(lambda: None))
"""Class of functions with an ``lru_cache``."""

_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)

Number: TypeAlias = int | float


@dataclass(slots=True, eq=False)
class Container:
    """A place that holds values by key, and a copy of what it held.

    `path`: names it in messages.
    `holder`: a dict, list, set, deque, class, cell, context variable or slotted object.
    `of_module`: whether they are the attributes of a module.
    """

    path: str
    holder: Any
    content: Any
    of_module: bool = False

    @property
    def place(self) -> Any:
        """By which it is the same place in another look at what code reaches."""
        holder = self.holder
        if isinstance(holder, Globals):
            return id(holder.variables), frozenset(holder.names)
        return id(holder)

    def now(self) -> Any:
        """What it holds now."""
        return _content(self.holder)

    def is_changed(self) -> bool:
        """Whether it holds other objects than then."""
        return not _identical(self.now(), self.content)

    def restore(self) -> None:
        """Fill it as it was."""
        if self.is_changed():
            _fill(self.holder, self.content)

    def changed_keys(self) -> list[Any]:
        """Keys whose values are others now; ``None`` for a container without keys."""
        if not self.is_changed():
            return []
        if not isinstance(self.content, dict):
            return [None]
        then, now = self.content, self.now()
        return [k for k in {**then, **now} if then.get(k, now) is not now.get(k, then)]

    def value_of(self, key: Any) -> Any:
        """The value of a key now; all values of a container without keys."""
        now = self.now()
        return now.get(key) if isinstance(now, dict) else list(now)

    def restore_keys(self, keys: list[Any]) -> None:
        """Put some values back; those that were not there are taken out."""
        if keys and isinstance(self.content, dict):
            kept = {key: self.content[key] for key in keys if key in self.content}
            others = {key: value for key, value in self.now().items() if key not in keys}
            _fill(self.holder, {**others, **kept})
        elif keys:
            self.restore()

    def named(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values; none for containers without keys."""
        yield from self.content.items() if isinstance(self.content, dict) else ()

    def is_grown(self) -> bool:
        """Whether it is a list or a deque with more entries."""
        return isinstance(self.holder, list | deque) and len(self.now()) > len(self.content)

    def lengthen(self, now: list[Any], length: int) -> None:
        """Fill a list up with its last entry; what has most entries keeps so many."""
        _fill(self.holder, [*now, *[now[-1]] * (length - len(now))])

    def changed_numbers(self) -> Iterator[tuple[Any, Number, Number]]:
        """Key, number then and number now of every number that has changed."""
        if not isinstance(self.content, dict) or not self.is_changed():
            return
        now = self.now()
        for key, old in self.named():
            new = now.get(key)
            if _is_number(old) and _is_number(new) and old != new and key != "training":
                yield key, old, new

    def new_numbers(self) -> Iterator[tuple[Any, Number]]:
        """Key and value of every number that was not there."""
        if isinstance(self.content, dict) and self.is_changed():
            for key, value in self.now().items():
                if key not in self.content and _is_number(value):
                    yield key, value

    def put(self, key: Any, value: Any) -> None:
        """Set one value."""
        _fill(self.holder, {**self.now(), key: value})


@dataclass(slots=True, eq=False)
class PythonState:
    """All containers that the code of some modules and functions can reach.

    `tensors`: plain tensors (no parameters, no buffers) with their versions and copies.
    `parameters`: of any module.
    `caches`: functions with an ``lru_cache``, and how often they had been computed.
    `texts`: strings in code that reads environment variables, some of which are their names.
    `arrays`: arrays of NumPy and of Python, how messages name them, and copies.
    """

    containers: list[Container] = field(default_factory=list)
    tensors: list[tuple[Tensor, int, Tensor | None]] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    caches: list[tuple[Any, int]] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    arrays: list[tuple[Any, str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, *roots: Any, executed: Set[CodeType] | None = None) -> PythonState:
        """Of what `roots` reach: modules, losses, functions; with `executed` by that code only."""
        state = cls()
        walk = _Walk(state, executed)
        for root in roots:
            walk.add(root, _name_of_root(root))
        walk.run()
        return state

    def restore(self) -> None:
        """Put everything back; functions that were cached meanwhile forget what they have."""
        for container in self.containers:
            container.restore()
        self._restore_data()
        for k, (function, misses) in enumerate(self.caches):
            if function.cache_info().misses != misses:
                function.cache_clear()
                self.caches[k] = function, 0

    def restore_changing(self, between: PythonState, is_temporary: Callable[[Any], bool]) -> None:
        """Put back what has changed until `between` and again since then, plain tensors and arrays.

        What has changed only until then is a cache, and stays as it was there, but for temporary
        values.
        """
        again = {(box.place, key) for box in between.containers for key in box.changed_keys()}
        between.restore()
        for box in self.containers:
            box.restore_keys(
                [
                    key
                    for key in box.changed_keys()
                    if (box.place, key) in again or is_temporary(box.value_of(key))
                ]
            )
        self._restore_data()

    def _restore_data(self) -> None:
        for tensor, version, content in self.tensors:
            if tensor._version != version and content is not None:
                with torch.no_grad():
                    tensor.copy_(content)
        for held, _, content in self.changed_arrays():
            held[... if isinstance(held, np.ndarray) else slice(None)] = content

    def changed_arrays(self) -> Iterator[tuple[Any, str, Any]]:
        """Those of `arrays` that hold other numbers now."""
        for held, path, content in self.arrays:
            if content is not None and _bytes(held) != _bytes(content):
                yield held, path, content

    def changed_numbers(self) -> list[tuple[Container, Any, Number, Number]]:
        """Numbers that are others now: container, key, then, now."""
        found = []
        for container in self.containers:
            found += [(container, *change) for change in container.changed_numbers()]
        return found

    def new_numbers(self) -> list[tuple[Container, Any, Number]]:
        """Numbers that were not there: container, key, value."""
        return [(box, *new) for box in self.containers for new in box.new_numbers()]


_BY_TEXT = {"globals", "getattr", "vars", "modules", "import_module", "__dict__"}
"""Names in code that reads variables by their names as texts."""


class _Walk:
    """Looks into one object after another, each once."""

    def __init__(self, state: PythonState, executed: Set[CodeType] | None) -> None:
        self.executed = None if executed is None else set(executed)
        self.state, self.seen, self.kept = state, set[int](), list[Any]()
        self.pending: list[tuple[Any, str]] = []

    def add(self, value: Any, path: str) -> None:
        """Look into it later, if there is anything inside."""
        if not isinstance(value, _LEAVES) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.kept.append(value)  # alive, so that no other object gets its id
            self.pending.append((value, path))

    def run(self) -> None:
        """Look into everything."""
        while self.pending and len(self.state.containers) < MOST_CONTAINERS:
            value, path = self.pending.pop()
            self._look(value, path)

    def _look(self, value: Any, path: str) -> None:
        kind = value if isinstance(value, type) else type(value)
        if any(_package(base) in _NEVER_COMPUTED_WITH for base in kind.__mro__):
            return
        if isinstance(value, _FUNCTIONS):
            self._function(value, path)
        elif isinstance(value, CACHE):
            self.state.caches.append((value, value.cache_info().misses))
            self._cached(value.__wrapped__, path)
        elif isinstance(value, ARRAYS):
            self._array(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, nn.Module):
            self._module(value, path)
        elif isinstance(value, Tensor):
            self._tensor(value, path)
        else:
            self._object(value, path)

    def _module(self, module: nn.Module, path: str) -> None:
        self.seen.update(id(vars(module).get(name)) for name in _OF_FILES)
        self._hold(path, vars(module), of_module=True)
        self.add(type(module), type(module).__name__)
        for name, inner in module._modules.items():
            self.add(inner, f"{path}.{name}" if path != _MODEL else f"module {name!r}")

    def _object(self, value: Any, path: str) -> None:
        """Containers of Python and objects of the user's classes."""
        if isinstance(value, tuple | frozenset):
            for k, part in enumerate(value):
                self.add(part, f"{path}[{k}]")
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords), path)
        elif isinstance(value, staticmethod | classmethod):
            self.add(value.__func__, path)
        elif isinstance(value, property):
            self.add((value.fget, value.fset), path)
        elif isinstance(value, ContextVar):
            self._hold(f"context variable {value.name!r}", value)
        elif isinstance(value, MappingProxyType):
            self._hold(path, value)
        elif isinstance(value, dict | list | set | deque):
            self._hold(path, value)
            if hasattr(value, "__dict__"):
                self._hold(path, vars(value))
        elif not _of_library(type(value)) or type(value).__module__ in _PLAIN_HOLDERS:
            if (own := _attributes(value)) is not None:
                self._hold(path, own)
            if _slots(type(value)):
                self._hold(path, value)
            self.add(type(value), type(value).__name__)

    def _class(self, kind: type, path: str) -> None:
        for base in kind.__mro__:
            if not _of_library(base):
                self._hold(path, base)
        self.add(type(kind), type(kind).__name__)

    def _cached(self, function: Any, path: str) -> None:
        """What results are cached of, which need not be executed again."""
        own = isinstance(function, FunctionType) and is_own(function)
        if own and self.executed is not None:
            self.executed |= {function.__code__}
        self.add(function, path)

    def _function(self, function: Any, path: str) -> None:
        if isinstance(function, MethodType | BuiltinFunctionType):
            self.add(function.__self__, path)
            if not isinstance(function, MethodType):
                return
            function = function.__func__
        if not isinstance(function, FunctionType) or _of_library(function):
            return
        ran = self.executed is None or function.__code__ in self.executed
        if ran or vars(function):  # which other code may read
            self._hold(path, vars(function))
        if not ran:
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._hold(f"variable {name!r} of {path}", cell)
        self.add((function.__defaults__, function.__kwdefaults__), path)
        names = set(_names(function.__code__))
        if names & {"environ", "getenv"}:
            self.state.texts.update(_texts(function.__code__))
        if names & _BY_TEXT:
            names.update(_texts(function.__code__))
        self._variables(function.__globals__, names)
        imported = filter(None, map(sys.modules.get, names))
        self._modules([*map(function.__globals__.get, names), *imported], names, set())

    def _modules(self, values: Iterable[Any], names: set[str], seen: set[int]) -> None:
        """Variables that code names of the Python modules among some values, and of theirs."""
        for value in values:
            if isinstance(value, ModuleType) and not _of_library(value) and id(value) not in seen:
                seen.add(id(value))
                self._variables(vars(value), names)
                self._modules(map(vars(value).get, names), names, seen)

    def _variables(self, variables: dict[str, Any], names: set[str]) -> None:
        """Global variables of a module that code names."""
        used = {name for name in names if name in variables}
        used -= {n for n in used if isinstance(variables[n], ModuleType)}
        if used:
            path = f"global variable of {variables.get('__name__', '?')}"
            self._hold(path, Globals(variables, used))

    def _hold(self, path: str, holder: Any, *, of_module: bool = False) -> None:
        content = _content(holder)
        self.state.containers.append(Container(path, holder, content, of_module))
        parts = content.items() if isinstance(content, dict) else enumerate(content)
        for key, part in parts:
            if not isinstance(part, _LEAVES):
                self.add(part, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]")

    def _array(self, value: Any, path: str) -> None:
        if isinstance(value, np.ndarray):
            known = value.flags.writeable and value.nbytes <= LARGE_BYTES
            copy = value.copy() if known else None
        else:
            copy = value[:] if len(_bytes(value)) <= LARGE_BYTES else None
        self.state.arrays.append((value, path, copy))

    def _tensor(self, tensor: Tensor, path: str) -> None:
        # Set on it, as libraries do with scales; private ones are notes to themselves.
        if not all(name.startswith("_") for name in vars(tensor)):
            self._hold(path, vars(tensor))
        if tensor.is_inference() or tensor.is_meta:
            return
        if isinstance(tensor, nn.Parameter):
            self.state.parameters.append(tensor)
            return
        small = tensor.layout is torch.strided and tensor.nbytes <= LARGE_BYTES
        copy = tensor.detach().clone() if small else None
        self.state.tensors.append((tensor, tensor._version, copy))


def _bytes(array: Any) -> bytes:
    """All that an array holds."""
    return array.tobytes() if isinstance(array, np.ndarray) else bytes(array)


@dataclass(frozen=True, slots=True, eq=False)
class Globals:
    """Some variables of a Python module."""

    variables: dict[str, Any]
    names: set[str]


_MODEL = "the model"

_OF_FILES = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Attributes of a module that no forward pass reads."""

_LEAVES = (
    *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), CodeType, ModuleType),
    *(torch.dtype, torch.device, torch.Size, torch.Generator),
)


def _name_of_root(root: Any) -> str:
    return _MODEL if isinstance(root, nn.Module) else getattr(root, "__name__", "the loss")


def _of_library(what: Any) -> bool:
    return _package(what) in _LIBRARIES


def _package(what: Any) -> str:
    """The package that an object, a class or a function was made in."""
    module = what.__name__ if isinstance(what, ModuleType) else getattr(what, "__module__", "")
    return str(module or "builtins").partition(".")[0]


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes that code uses, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _texts(code: CodeType) -> Iterator[str]:
    """Strings in code, inner functions included."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *(*site.getsitepackages(), site.getusersitepackages()),
)
"""Folders of installed packages, and of Python's own."""


def is_own(holder: Any) -> bool:
    """Whether a class, a function or variables are of the user's own code.

    Not of a package that was installed, nor of Python itself.
    """
    if isinstance(holder, Globals):
        name = holder.variables.get("__name__")
    else:
        name = getattr(holder, "__module__", None)
    file = getattr(sys.modules.get(name or "builtins"), "__file__", None)
    return name != "builtins" and not str(file or "").startswith(_INSTALLED)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    """Attributes that objects of a class keep in ``__slots__``, by name."""
    return {
        name: member
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }


def _attributes(value: Any) -> dict[str, Any] | None:
    """An object's ``__dict__``, whatever its class makes of names that it does not have.

    Of a ``threading.local`` that of this thread.
    """
    if isinstance(value, threading.local):
        return vars(value)
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def base_of(holder: Any) -> Any:
    """The built-in class of a list, a deque or a set."""
    return next(kind for kind in (list, deque, set) if isinstance(holder, kind))


def _content(holder: Any) -> Any:
    """A copy of what a holder holds: a dict by key, a list or a set.

    Without the methods of subclasses: an item of Transformers' ``ACT2FN``, say, is made when read.
    """
    if isinstance(holder, Globals):
        return {n: holder.variables[n] for n in holder.names if n in holder.variables}
    if isinstance(holder, ContextVar):
        return {"": holder.get(None)}
    if isinstance(holder, MappingProxyType):
        return dict(holder)
    if isinstance(holder, CellType):
        try:
            return {"": holder.cell_contents}
        except ValueError:  # not filled yet
            return {}
    if isinstance(holder, dict):
        return dict(dict.items(holder))
    if isinstance(holder, type):
        return {k: v for k, v in vars(holder).items() if not k.startswith("__")}
    if isinstance(holder, list | deque):
        return [*base_of(holder).__iter__(holder)]
    if isinstance(holder, set):
        return {*set.__iter__(holder)}
    found = {}
    for name, member in _slots(type(holder)).items():
        with suppress(AttributeError):  # it is not set; `getattr` might compute and set it
            found[name] = member.__get__(holder)
    return found


def _identical(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(key in other and value is other[key] for key, value in one.items())
    if isinstance(one, list):
        return all(a is b for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _fill(holder: Any, content: Any) -> None:
    """Make a holder hold exactly this."""
    if isinstance(holder, Globals):
        for name in holder.names:
            if name in content:
                holder.variables[name] = content[name]
            else:
                holder.variables.pop(name, None)
    elif isinstance(holder, ContextVar):
        holder.set(content[""])
    elif isinstance(holder, MappingProxyType):
        pass  # the dict behind it is reached where code changes it
    elif isinstance(holder, CellType):
        if content:
            holder.cell_contents = content[""]
        else:
            del holder.cell_contents
    elif isinstance(holder, dict | set):
        holder.clear()
        holder.update(content)
    elif isinstance(holder, list):
        holder[:] = content
    elif isinstance(holder, deque):
        holder.clear()
        holder.extend(content)
    else:
        _set_attributes(holder, content, setattr)


def _set_attributes(holder: Any, content: dict[str, Any], put: Callable[..., None]) -> None:
    now = _content(holder)
    for name in now.keys() - content.keys():
        delattr(holder, name)
    for name, value in content.items():
        if name not in now or now[name] is not value:
            put(holder, name, value)


def set_by_hooks(attributes: Mapping[str, Any]) -> set[str]:
    """Attributes that hooks of PyTorch (pruning, weight norm) compute anew before every call."""
    hooks = attributes.get("_forward_pre_hooks")
    every = hooks.values() if isinstance(hooks, Mapping) else ()
    named = (getattr(hook, "_tensor_name", getattr(hook, "name", None)) for hook in every)
    return {name for name in named if isinstance(name, str)}


@contextmanager
def in_mode(
    model: nn.Module, loss_fn: Loss | None = None, *, training: bool
) -> Iterator[PythonState]:
    """Set the mode by `set_mode`, and put back all that the code of model and loss changes.

    Yields what is put back, with which a second trace can begin as the first one did.
    """
    with flags_kept(model):
        set_mode(model, training=training)
        state = PythonState.of(model, *modules_in(loss_fn), loss_fn)
        try:
            yield state
        finally:
            state.restore()


def set_mode(model: nn.Module, *, training: bool) -> None:
    """``model.train(training)``, unless the model is in that mode.

    Then each of its modules stays in the mode that the user gave it: a batch norm with frozen
    statistics in a model that is trained, dropout that is on in evaluation. A ``torch.export``
    module stays in the mode that it was exported in.
    """
    if model.training == training:
        return
    try:
        model.train(training)
    except NotImplementedError:
        if not isinstance(model, fx.GraphModule):
            raise


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Put every module back into the mode that it has now."""
    before, flags = model.training, [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        set_mode(model, training=before)
        for module, flag in flags:
            if module.training != flag:
                module.training = flag
