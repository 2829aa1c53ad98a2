"""Check the arguments of public functions and classes against their annotations.

`checked` decorates a function, a method, or a class: its constructor. What does not fit is an
`InputError` (a name: `UnknownNameError`) that names the argument and the value and says what is
accepted, before anything is computed. What fits is handed on as the annotation says: a number of
NumPy as Python's, a text as the member of an enum, a list as a tuple.

Numbers are zero or more and finite, unless a `Range` says otherwise or the default is none of
that (``math.inf``, NaN, -1). Defaults themselves are not checked.

pydantic's ``validate_call`` is not used: it copies containers, refuses NumPy's numbers where it is
strict, takes ``"3"`` for 3 where it is not, and imports what stands under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import numbers
import operator
import os
import re
import sys
from collections import abc
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, wraps
from importlib import import_module
from importlib.util import resolve_name
from itertools import cycle, islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from placewright.errors import InputError, MissingDependencyError, UnknownNameError

Target = TypeVar("Target")
Check: TypeAlias = Callable[[Any], Any]
"""Takes a value and returns it as its annotation says, or raises `_RefusedError`."""

LARGEST = 2.0**53
"""Whole numbers beyond it cannot be told from their neighbours as floating-point numbers."""

LONGEST_NAME = 255
"""Bytes of a file's name that Linux takes."""

MOST_CHECKED = 10_000
"""Entries of a container that are looked at: of more, these and no others."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a parameter may be: ``price: Annotated[float, Range(-1, 1)]``.

    Without one a number must be zero or more, and finite.
    `above`: `low` itself is excluded. `unknown`: NaN is accepted, for what is not known.
    """

    low: float = 0.0
    high: float = sys.float_info.max
    above: bool = False
    unknown: bool = False

    def __contains__(self, value: float) -> bool:
        if value != value:
            return self.unknown
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        lower = "" if self.low == -math.inf else f"{'>' if self.above else '>='} {self.low:g}"
        upper = "" if self.high >= LARGEST else f"{' and ' if lower else ''}<= {self.high:g}"
        return lower + upper + (", or NaN where unknown" if self.unknown else "")


@dataclass(frozen=True, slots=True)
class OneOf:
    """The texts that a parameter may be: ``optimizer: Annotated[str, OneOf("adam", "sgd")]``."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


Share: TypeAlias = Annotated[float, Range(0, 1)]
"""A parameter that is a share or a probability."""

Count: TypeAlias = Annotated[int, Range(1)]
"""A parameter of which there must be one at least."""

Positive: TypeAlias = Annotated[float, Range(above=True)]
"""A number above zero, and finite."""

Unlimited: TypeAlias = Annotated[float, Range(0, math.inf)]
"""A number of zero or more that ``math.inf`` may stand for."""

AnyNumber: TypeAlias = Annotated[float, Range(-math.inf, math.inf)]
"""A number of any size and sign, and infinite ones."""

SecondsOrUnknown: TypeAlias = Annotated[float, Range(0, math.inf, unknown=True)]
"""Seconds that may be infinite, or NaN for what is not known."""

NumberOrUnknown: TypeAlias = Annotated[float, Range(-math.inf, math.inf, unknown=True)]
"""`AnyNumber`, or NaN for what is not known."""


class _RefusedError(Exception):
    """`accepted`: what would fit, in words. `names`: what a text could have been.

    `entry`: which entry of a container is refused, and `given`: what it is.
    """

    entry = ""
    given: tuple[Any, ...] = ()

    def __init__(self, accepted: str, names: Collection[str] = ()) -> None:
        self.accepted, self.names = accepted, names
        super().__init__(accepted)

    def inside(self, key: Any, value: Any) -> _RefusedError:
        """The same, of a container that holds `value` under a key or a number."""
        return self._of(f"[{key}]" if isinstance(key, int) else f".{key}", value)

    def as_key(self, key: Any) -> _RefusedError:
        """The same, of a mapping that has the key."""
        return self._of(" (a key)", key)

    def _of(self, entry: str, value: Any) -> _RefusedError:
        self.entry, self.given = entry + self.entry, self.given or (value,)
        return self


def checked(target: Target) -> Target:
    """Check the arguments of a function or method, or of a class' constructor.

    A class' methods are checked where they are decorated themselves: planners and runs call many
    of them in loops.
    """
    if isinstance(target, type):
        init = _checked_function(vars(target)["__init__"], target.__name__, target)
        target.__init__ = init  # type: ignore[misc]
        return target
    function: Any = target
    title = function.__qualname__.rpartition("<locals>.")[2]
    made: Target = _checked_function(function, f"{title}()")
    return made


def _checked_function(function: Any, title: str, owner: type | None = None) -> Any:
    """The function behind checks, which are made at its first call.

    Annotations may name what is defined or imported later.
    """
    checks: dict[str, Check] | None = None
    in_order: list[Check] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checks, in_order
        if checks is None:
            made = _checks(function, owner)
            in_order = [made[name] for name in _positional(function)]
            checks = made  # last: other threads may be here
        try:
            given = [check(value) for check, value in zip(in_order, args)]  # noqa: B905
            for name, value in kwargs.items():
                if name in checks:
                    kwargs[name] = checks[name](value)
        except _RefusedError:
            error = _refusal(function, title, checks, args, kwargs)
        else:
            try:
                return function(*given, *args[len(given) :], **kwargs)
            except ModuleNotFoundError as missing:
                raise MissingDependencyError.of(missing, title) or missing from None
        raise error

    return call


def _positional(function: Any) -> list[str]:
    """Names of the parameters that may be given without them, in order."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _refusal(
    function: Any,
    title: str,
    checks: Mapping[str, Check],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> InputError:
    """What the user reads of the first argument that is refused."""
    given = dict(zip(_positional(function), args, strict=False)) | dict(kwargs)
    for name, value in given.items():
        try:
            checks.get(name, _as_given)(value)
        except _RefusedError as found:
            refused = found
            break
    label = given.get("name") if function.__name__ == "__init__" else None
    named = f" {label!r}" if isinstance(label, str) and name != "name" else ""
    where, value = f"{name}{refused.entry} of {title}{named}", (*refused.given, value)[0]
    if isinstance(value, str) and refused.names:
        return UnknownNameError(name, value, refused.names, where=where)
    default = inspect.signature(function).parameters[name].default
    plain = isinstance(default, str | int | float | tuple | NoneType)
    usual = f", or leave it out for {default!r}" if plain else ""
    by, hint = f"got {described_value(value)}", f"give {refused.accepted}{usual}"
    return InputError(f"must be {refused.accepted}", where=where, by=by, hint=hint)


def described_value(value: Any) -> str:
    """A value in at most sixty characters; its type where it is not plain."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
    if isinstance(value, int | float | NoneType | Path) or _is_numpy(value, "generic"):
        return repr(value)[:60]
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if _is_numpy(value, "ndarray"):
        return f"{name} of shape {value.shape}, {value.dtype}"
    builtin = isinstance(value, list | tuple | dict | set | frozenset)
    return f"{name} of length {len(value)}" if builtin and isinstance(value, Sized) else name


def _checks(function: Any, owner: type | None) -> dict[str, Check]:
    """The check of each parameter that has a name."""
    modules = [function.__module__, *(each.__module__ for each in (owner.__mro__ if owner else ()))]
    names, found = _Names(modules), {}
    for name, parameter in inspect.signature(function).parameters.items():
        note = parameter.annotation
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if isinstance(note, str):
            note = eval(note, {}, names)
        unknown = note is parameter.empty
        found[name] = _as_given if unknown else _check(note, _usual(parameter.default))
    return found


def _usual(default: Any) -> Range:
    """Zero or more and finite, or what the default needs."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return Range()
    if math.isnan(default):
        return Range(unknown=True)
    return Range(0.0 if default >= 0 else -math.inf, max(Range().high, default))


class _Names(dict[str, Any]):
    """What names in annotations stand for, those under ``TYPE_CHECKING`` too."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def __missing__(self, name: str) -> Any:
        for module in self.modules:
            found = getattr(sys.modules.get(module), name, self)
            if found is not self:
                return found
        if hasattr(builtins, name):
            return getattr(builtins, name)
        for module in self.modules:
            if name in _late_imports(module):
                return _later(*_late_imports(module)[name])
        return Any


@cache
def _late_imports(module: str) -> dict[str, tuple[str, str]]:
    """Names that a module's source imports under ``TYPE_CHECKING``: module and name there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # without its source all of them are taken as they are
        return {}
    package = sys.modules[module].__package__ or ""
    found: dict[str, tuple[str, str]] = {}
    for block in (node for node in tree.body if isinstance(node, ast.If)):
        for node in block.body:
            if isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                found |= {each.asname or each.name: (source, each.name) for each in node.names}
            elif isinstance(node, ast.Import):
                found |= {each.asname or each.name: (each.name, "") for each in node.names}
    return found


class _LaterType(type):
    """The type of stand-ins for what is not imported where it is annotated.

    A class, so that it may stand in ``X | None`` and ``Sequence[X]``; ``torch.nn.Module`` is a
    stand-in's attribute. It is looked up once a value is given: a module of ours is imported then,
    and of another one that nobody has imported nothing can be an instance.
    """

    home: tuple[str, str]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module, inner = cls.home
        return _later(module, f"{inner}.{name}" if inner else name)

    def __getitem__(cls, _: Any) -> Any:
        return cls


@cache
def _later(module: str, name: str) -> Any:
    """A stand-in for what a module has under a name."""
    return _LaterType(name or module, (), {"home": (module, name)})


def _loaded(module: str, name: str) -> Any:
    if module.startswith("placewright.") and module not in sys.modules:
        with suppress(ImportError):  # a package that it needs is not there: nor is an instance
            import_module(module)
    found = sys.modules.get(module)
    for part in name.split(".") if name else []:
        found = getattr(found, part, None)
    return found


def _check(note: Any, limits: Range) -> Check:
    """The check that an annotation stands for; what it does not know is taken as it is."""
    origin, inner = get_origin(note), get_args(note)
    if origin is Annotated:
        extra: dict[type, Any] = {type(each): each for each in inner[1:]}
        if OneOf in extra:
            return _one_of(extra[OneOf].names)
        if int in extra:
            return _array((*get_args(inner[0]), None, None)[1], extra[int])
        return _check(inner[0], extra.get(Range, limits))
    if origin in (Union, UnionType):
        return _union(inner, limits)
    if origin is Literal:
        return _one_of(inner)
    if getattr(origin, "__name__", "") == "ndarray":
        return _array(inner[1])
    if origin is tuple:
        return _tuple(inner, limits)
    if origin is abc.Callable:
        return _callable(inner[0])
    kind = origin or note
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in (int, float):
        return _number(kind, limits)
    if not isinstance(kind, type) or kind is object:
        return _as_given
    if isinstance(kind, _LaterType):
        return _of_later(kind, limits)
    if issubclass(kind, Enum):
        return _member(kind)
    if issubclass(kind, abc.Iterable) and inner:
        return _container(kind, [_check(each, limits) for each in inner])
    return _protocol(kind) if getattr(kind, "_is_protocol", False) else _instance(kind)


def _is_numpy(value: Any, kind: str) -> bool:
    """Whether it is an object of a class of NumPy, which is not imported for the question."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, kind))


def _as_given(value: Any) -> Any:
    return value


def _truth(value: Any) -> bool:
    if isinstance(value, bool) or _is_numpy(value, "bool_"):
        return bool(value)
    raise _RefusedError("True or False")


def _text(value: Any) -> str:
    """A text without what neither files nor other processes take."""
    if type(value) is str and value.isidentifier():
        return value
    if not isinstance(value, str):
        raise _RefusedError("a text")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise _RefusedError("a text that UTF-8 can hold") from None
    if "\0" in value:
        raise _RefusedError("a text without a NUL character")
    return str(value)


def _path(value: Any) -> Path:
    """A path, or an object of the user's own that stands for one."""
    if isinstance(value, type) or not isinstance(value, os.PathLike):
        raise _RefusedError("a path")
    return Path(_named_file(os.fspath(value)))


def _named_file(value: Any) -> str:
    """A path as a text."""
    name = _text(value)
    if not name or max(map(len, os.fsencode(name).split(b"/"))) > LONGEST_NAME:
        raise _RefusedError(f"a path, each name in it of at most {LONGEST_NAME} bytes")
    return name


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _RefusedError("bytes")
    return value


def _class(value: Any) -> type:
    if not isinstance(value, type):
        raise _RefusedError("a class")
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise _RefusedError("None")


_PLAIN: dict[Any, Check] = {
    Any: _as_given,
    bool: _truth,
    str: _text,
    Path: _path,
    os.PathLike: _path,
    bytes: _bytes,
    None: _nothing,
    NoneType: _nothing,
    type: _class,
}


def _number(kind: type, limits: Range) -> Check:
    whole = kind is int
    kind_taken: Any = numbers.Integral if whole else numbers.Real  # those of NumPy too
    accepted = f"{'a whole' if whole else 'a'} number {limits}".rstrip()

    low, high, plain = limits.low, min(limits.high, LARGEST), kind

    def check(value: Any) -> Any:
        if type(value) is plain and low < value < high:  # type: ignore[operator]  # the usual case, in a tenth of the time
            return value
        if isinstance(value, bool) or not isinstance(value, kind_taken):
            raise _RefusedError(accepted)
        try:
            found = int(value) if isinstance(value, numbers.Integral) else float(value)
            if not whole and abs(found) > LARGEST:
                found = float(found)  # arrays of numbers that NumPy has no type for are no use
            if float(found) in limits and not (whole and abs(found) >= 2**63):
                return found
        except OverflowError:
            pass
        raise _RefusedError(accepted + (" and < 2^63" if whole and value >= 2**63 else ""))

    return check


def _one_of(values: Sequence[Any]) -> Check:
    accepted = "one of " + ", ".join(repr(each) for each in values)
    names = [each for each in values if isinstance(each, str)]

    def check(value: Any) -> Any:
        for each in values:
            if (type(each) is type(value) or isinstance(value, str)) and each == value:
                return each
        raise _RefusedError(accepted, names)

    return check


def _member(kind: type[Enum]) -> Check:
    named = {each.value: each for each in kind}
    refuse = _one_of(tuple(named))

    def check(value: Any) -> Any:
        return value if isinstance(value, kind) else named[refuse(value)]

    return check


def _union(parts: Sequence[Any], limits: Range) -> Check:
    """The first part that takes a value.

    A text beside an enum must be one of its names, a text beside a path is one.
    """
    enums = any(isinstance(part, type) and issubclass(part, Enum) for part in parts)
    checks = [_check(part, limits) for part in parts if not (enums and part is str)]
    if any((get_origin(part) or part) in (Path, os.PathLike) for part in parts):
        checks = [_named_file if check is _text else check for check in checks]
    optional = NoneType in parts

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        refusals = []
        for each in checks:
            try:
                return each(value)
            except _RefusedError as refused:
                refusals.append(refused)
        for found in refusals:
            if found.entry:  # a container of the right kind: only this part was meant
                raise found
        names = [name for found in refusals for name in found.names]
        raise _RefusedError(" or ".join(r.accepted for r in refusals), names)

    return check


def _instance(kind: type) -> Check:
    name = kind.__name__

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise _RefusedError(f"a {name}")

    return check


def _of_later(kind: _LaterType, limits: Range) -> Check:
    made: dict[Any, Check] = {}

    def check(value: Any) -> Any:
        found = _loaded(*kind.home)
        if found is None:
            raise _RefusedError(f"a {kind.__name__.rpartition('.')[2]}")
        if not made:
            made[found] = _check(found, limits)
        return next(iter(made.values()))(value)

    return check


def _protocol(kind: Any) -> Check:
    """An object that has what the protocol asks for, and takes what it is called with."""
    asked = {name for each in kind.__mro__[:-1] for name in (*vars(each), *_notes(each))}
    asked = {name for name in asked if name[0] != "_"}
    own_call = next(
        (vars(each)["__call__"] for each in kind.__mro__ if "__call__" in vars(each)), None
    )
    takes = inspect.signature(own_call) if own_call else None
    wanted = f" (an object with {', '.join(sorted(asked))})" if asked else ""

    def check(value: Any) -> Any:
        if isinstance(value, type) or not all(hasattr(value, name) for name in asked):
            raise _RefusedError(f"a {kind.__name__}{wanted}")
        if takes is not None:
            names = list(takes.parameters.values())[1:]
            loose = [None for p in names if p.kind is not p.KEYWORD_ONLY]
            _takes(value, loose, {p.name: None for p in names if p.kind is p.KEYWORD_ONLY})
        return value

    return check


def _notes(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(kind).get("__annotations__", {})
    return found


def _callable(parameters: Any) -> Check:
    loose = parameters if isinstance(parameters, list) else None

    def check(value: Any) -> Any:
        _takes(value, loose, {})
        return value

    return check


def _takes(value: Any, loose: list[Any] | None, named: dict[str, Any]) -> None:
    """Refuse what cannot be called so.

    A class can often be, with what is meant for its objects (``loss_fn=nn.MSELoss``): it is taken
    only where nothing is handed over, to make an object.
    """
    inner = [f"{len(loose)} argument{'s' * (len(loose) != 1)}"] if loose else []
    inner += [f"the keywords {', '.join(named)}"] if named else []
    accepted = f"a function of {' and '.join(inner) or 'no arguments'}"
    if not callable(value) or (isinstance(value, type) and (loose or named)):
        raise _RefusedError("a function" if loose is None else accepted)
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):  # of C: nothing is known before it is called
        return
    try:
        if loose is not None:
            signature.bind(*loose, **named)
    except TypeError:
        raise _RefusedError(accepted) from None


def _tuple(inner: Sequence[Any], limits: Range) -> Check:
    """A tuple, which may be given as a list."""
    many = len(inner) == 2 and inner[1] is ...
    checks = [_check(note, limits) for note in (inner[:1] if many else inner)]

    kinds = set(inner[:1] if many and inner[0] not in (int, float, str) else ())

    def check(value: Any) -> Any:
        if kinds and type(value) is tuple and kinds.issuperset(map(type, value)):
            return value  # the usual case, at once
        if not isinstance(value, tuple | list) or (not many and len(value) != len(checks)):
            raise _RefusedError("a tuple" if many else f"a tuple of {len(checks)}")
        if len(value) > MOST_CHECKED:
            check(value[:MOST_CHECKED])
            return tuple(value)
        made: list[Any] = []
        try:
            for one, entry in zip(cycle(checks), value):
                made.append(one(entry))
        except _RefusedError as refused:
            raise refused.inside(len(made), entry) from None
        same = type(value) is tuple and all(map(operator.is_, made, value))
        return value if same else tuple(made)

    return check


def _container(kind: Any, inner: Sequence[Check]) -> Check:
    """Mappings, sequences and sets with their entries; what is read once is not looked into."""
    once = not issubclass(kind, Collection)
    mapping = issubclass(kind, Mapping)
    title = kind.__name__.lower()
    name = f"an {title}" if title[0] in "aeiou" else f"a {title}"
    not_meant = str | bytes | bytearray | memoryview | type

    def check(value: Any) -> Any:
        if _is_numpy(value, "ndarray") and value.ndim == 0:
            raise _RefusedError(name)
        if _is_numpy(value, "ndarray") and value.dtype.kind in "iufb":
            value = value.tolist()
        if not isinstance(value, kind) or isinstance(value, not_meant):
            raise _RefusedError(name)
        if once:
            return value
        pairs = value.items() if mapping else enumerate(value)
        for key, entry in islice(pairs, MOST_CHECKED):
            try:
                inner[-1](entry)
            except _RefusedError as refused:
                raise refused.inside(key, entry) from None
            if mapping:
                try:
                    inner[0](key)
                except _RefusedError as refused:
                    raise refused.as_key(key) from None
        return value

    return check


def _array(note: Any, axes: int = 0) -> Check:
    """An array of whole numbers, of numbers or of truths; nested lists of them.

    `axes`: how many it has; 0 for any number but none.
    """
    import numpy as np

    kind = np.dtype((get_args(note) or (np.float64,))[0]).type
    takes, words = {
        np.int64: ("iuf", "an array of whole numbers"),
        np.bool_: ("b", "an array of True and False"),
    }.get(kind, ("iuf", "an array of numbers"))
    words += f" with {axes} axis" if axes == 1 else f" with {axes} axes" if axes else ""
    usual, least, most = np.dtype(kind), axes or 1, axes or 64

    def check(value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype is usual and least <= value.ndim <= most:
            return value
        if not isinstance(value, np.ndarray | list | tuple):
            raise _RefusedError(words)
        if np.ma.is_masked(value):  # what is behind the mask would be taken
            raise _RefusedError(f"{words}, none of them masked")
        try:
            given = np.asarray(value)
            if (given.size and given.dtype.kind not in takes) or not given.ndim >= (axes or 1):
                raise _RefusedError(words)
            if axes and given.ndim != axes and given.size:
                raise _RefusedError(words)
            with np.errstate(invalid="ignore"):
                made = np.asarray(given, dtype=kind)
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise _RefusedError(f"{words}, its rows of one length") from None
        if kind is np.int64 and given.dtype.kind in "uf" and not (made == given).all():
            raise _RefusedError(f"{words} below 2^63")
        return made

    return check


def environment_number(name: str, most: int, hint: str) -> int:
    """The whole number from 0 to `most` that an environment variable states.

    Raises `InputError`: it states something else, or is not set.
    """
    given = os.environ.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", given) or int(given) > most:
        raise InputError(
            f"is no whole number from 0 to {most}", where=name, by=f"got {given[:40]!r}", hint=hint
        )
    return int(given)
