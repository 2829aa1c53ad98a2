"""Planners with parameters: ``search(effort=1e6)``, a mapping, a file, or an object.

A planner is a frozen dataclass whose fields are its parameters, so that a copy with other fields
is the planner with other parameters. What is given is checked against the fields' types and the
`Range` of numbers in them; nothing of a text is evaluated but literals.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import TypeAdapter, ValidationError

from placewright.errors import (
    InputError,
    PlacewrightError,
    UnknownNameError,
    UnsupportedError,
)
from placewright.io.stored import read_data
from placewright.planning.contract import LARGEST, Planner, Range, TakesEveryProblem

AnyPlanner = TypeVar("AnyPlanner", bound=Planner)

PlannerChoice: TypeAlias = str | Mapping[str, Any] | Planner
"""``"search"``, ``"search(effort=1e6)"``, ``"@planner.yaml"``,
``{"name": "search", "effort": 1e6}``, or a planner."""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Auto(TakesEveryProblem):
    """The wing's portfolio, and what follows it.

    `tolerance`: share by which the value of the chosen plan may exceed that of the best one found
    where it is simpler to deploy; 0 for equally good ones only. ``None``: what the judge is known
    to err by for plans like the best one, as the wing's simplifier states it.
    `steps`: where values are seconds, no further planner is started once planning has taken longer
    than a better plan could save in so many steps.
    """

    tolerance: float | None = None
    steps: Annotated[float, Range(0, math.inf)] = math.inf

    @property
    def name(self) -> str:
        """``auto``."""
        return AUTO

    def __call__(self, problem: Any, context: Any) -> Any:
        """`placewright.solve` runs the planners of the portfolio itself."""
        raise UnsupportedError("auto is no planner of its own", hint="give it to solve")


def auto_of(choice: PlannerChoice) -> Auto | None:
    """``auto`` with its parameters, ``None`` where a planner is chosen.

    Raises `InputError`: parameters that it does not have.
    """
    if isinstance(choice, Auto):
        return _checked(choice)
    named = choice.get("name") if isinstance(choice, Mapping) else choice
    if not isinstance(named, str) or named.partition("(")[0] != AUTO:
        return None
    found = choose({AUTO: Auto()}, choice)[1]
    assert isinstance(found, Auto)
    return found


LONGEST = 10_000
"""Characters of a planner's text."""


def planner_names(text: str) -> list[str]:
    """Planners that commas separate; those between parentheses separate parameters."""
    return [each.strip() for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def choose(planners: Mapping[str, Planner], choice: PlannerChoice) -> tuple[str, Planner]:
    """The planner that is asked for, and its label: the name and what is not its default.

    `planners`: those of the wing, by name, with their default parameters.

    Raises `UnknownNameError`: no planner, or no parameter, of this name.
    Raises `InputError`: no planner, a text that is no call with literals, or a value of another
    type or out of its range.
    """
    choice = opened(choice)
    if isinstance(choice, Mapping):
        return _with(planners, *_of_mapping(choice))
    if not isinstance(choice, str):
        planner = _checked(choice)
        return label(planners, planner), planner
    if choice in planners:
        return choice, planners[choice]
    return _with(planners, *_of_text(planners, choice))


def check_distinct(labels: Sequence[str]) -> None:
    """Raise `InputError` where two planners have one label: their rows could not be told apart."""
    if twice := next((x for k, x in enumerate(labels) if x in labels[:k]), None):
        hint = "name it once, or give planners of your own names of their own"
        raise InputError(f"planner {twice!r} is there twice", where="planners", hint=hint)


def opened(choice: PlannerChoice) -> PlannerChoice:
    """What stands in the file, if a file is named (``"@planner.yaml"``).

    The file is a mapping with the planner's ``name`` and parameters, or has one, or a text, under
    the key ``planner``.
    """
    if not isinstance(choice, str) or not choice.startswith("@"):
        return choice
    where = choice[1:]
    data, _ = read_data(where)
    found = data.get("planner", data) if isinstance(data, dict) else data
    if not isinstance(found, str | dict):
        what = "must be a planner: a mapping with its name and parameters, or a text"
        raise InputError(what, where=where, by=f"got {type(found).__name__}", hint=_LOOK)
    return found


_LOOK = "write `planner: {name: search, effort: 1e6}`"


def _checked(planner: AnyPlanner) -> AnyPlanner:
    """A planner given as an object, with parameters in their ranges.

    Raises `InputError`: it is none, or a parameter is not what its type says.
    """
    if isinstance(planner, type) or not callable(planner) or not hasattr(planner, "name"):
        by = f"got {planner.__name__ if isinstance(planner, type) else type(planner).__name__}"
        raise InputError("is no planner", where="planner", by=by, hint=_GIVE)
    if not is_dataclass(planner):
        return planner
    usual = {f.name: f.default for f in fields(planner)}
    plain = (int, float, str, tuple, list, NoneType)
    own = {k: v for k, v in _defaults(planner).items() if isinstance(v, plain) and v != usual[k]}
    _values(planner, own, f"planner {planner.name!r}")
    return planner


_GIVE = "give its name, a mapping with it, or a planner object such as Search(effort=1e6)"


def label(planners: Mapping[str, Planner], planner: Planner) -> str:
    """``search(effort=1000000.0)``: the name, and parameters that are not those of the list."""
    usual = planners.get(planner.name)
    if type(usual) is not type(planner) or not is_dataclass(planner):
        return planner.name
    pairs = ((key, getattr(planner, key), getattr(usual, key)) for key in _defaults(planner))
    changed = [f"{key}={value!r}" for key, value, default in pairs if repr(value) != repr(default)]
    return planner.name + (f"({', '.join(changed)})" if changed else "")


def _of_mapping(choice: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    given = {str(key): value for key, value in choice.items()}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise InputError("a planner needs its name", by=f"got {name!r}", hint=_LOOK)
    return name, given


def _of_text(planners: Mapping[str, Planner], text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of ``name(field=value, ...)``."""
    if len(text) > LONGEST:
        raise InputError("a planner's text is too long", by=f"{len(text)} of {LONGEST} characters")
    if not text.endswith(")") or "(" not in text:
        return text, {}
    opens = [k for k, letter in enumerate(text) if letter == "("]
    # A name may hold brackets itself: "only:GPU (0)".
    start = next((k for k in opens if text[:k] in planners), opens[0])
    name, where = text[:start], f"planner {text!r}"
    try:
        call = ast.parse(f"_{text[start:]}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_call(where, str(error)) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise _no_call(where, "it is no single call")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise _no_call(where, "a value without the name of its parameter")
    given: dict[str, Any] = {}
    for keyword in call.keywords:
        key = str(keyword.arg)
        if key in given:
            raise _no_call(where, f"{key} is given twice")
        if _is_word(keyword.value):  # reward=measured, checkpoint=post.safetensors
            given[key] = _Word(ast.unparse(keyword.value))
            continue
        try:
            given[key] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise _no_call(where, _no_literal(key)) from None
    return name, given


class _Word(str):
    """A text without quotes: taken where a parameter is a text, or one of some texts."""

    __slots__ = ()


def _is_word(value: ast.expr) -> bool:
    """Whether it is names joined by dots."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name)


def _no_literal(key: str) -> str:
    return f"the value of {key} is no number, quoted text, True, False, None or list of these"


def _no_call(where: str, by: str) -> InputError:
    hint = "write name(parameter=value, ...), as in search(effort=1e6), and paths in quotes"
    return InputError("cannot be read as a planner with parameters", where=where, by=by, hint=hint)


def _with(
    planners: Mapping[str, Planner], name: str, given: Mapping[str, Any]
) -> tuple[str, Planner]:
    """The planner of this name with these parameters, and its label."""
    if name == AUTO and name not in planners:
        hint = "name planners; compare without any runs all of them, plan without one runs auto"
        raise InputError(f"{AUTO} is no single planner", hint=hint)
    if name not in planners:
        raise UnknownNameError("planner", name, [AUTO, *planners])
    planner = planners[name]
    if not given:
        return name, planner
    made = with_parameters(planner, given, f"planner {name!r}")
    return label(planners, made), made


def with_parameters(planner: AnyPlanner, given: Mapping[str, Any], where: str) -> AnyPlanner:
    """`planner` with other parameters, each of its field's type and in its range.

    Raises `UnknownNameError`: no parameter of this name.
    Raises `InputError`: a value of another type or out of its range, or refused by the planner.
    """
    checked = _values(planner, given, where)
    try:
        made: AnyPlanner = replace(planner, **checked)  # type: ignore[type-var]
    except PlacewrightError:
        raise
    except Exception as error:  # of a plug-in's own checks
        by = f"{type(error).__name__}: {error}"
        raise InputError("refuses its parameters", where=where, by=by) from None
    return made


def _values(planner: Planner, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is given, of the fields' types."""
    defaults = _defaults(planner)
    listed = ", ".join(f"{key}={value!r}" for key, value in defaults.items()) or "none"
    types = _types(planner)
    for key, value in given.items():
        if key not in defaults:
            raise UnknownNameError("parameter", key, defaults, where=where, by=f"it has: {listed}")
        text = types.get(key) is str or get_origin(types.get(key)) is Literal
        if isinstance(value, _Word) and not text:
            raise _no_call(where, _no_literal(key))
    return {key: _value(types.get(key, Any), given[key], key, where) for key in given}


def _defaults(planner: Planner) -> dict[str, Any]:
    """Parameters and their values: the dataclass' fields but for the name."""
    if not is_dataclass(planner):
        return {}
    known = (f.name for f in fields(planner) if f.init and f.name != "name")
    return {key: getattr(planner, key) for key in known}


def _types(planner: Planner) -> dict[str, Any]:
    try:
        return get_type_hints(type(planner), include_extras=True)
    except Exception:  # a plug-in's annotations may name what is not imported
        return {}


def _value(kind: Any, value: Any, key: str, where: str) -> Any:
    """`value` as the field's type: strictly, but ``2e7`` is a whole number and a list a tuple."""
    try:
        adapter = TypeAdapter(kind)
    except Exception:  # a plug-in's type that has no schema: its own checks must do
        return value
    tries = [value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
        tries.append(int(value))
    for attempt in tries:
        try:
            found = adapter.validate_json(json.dumps(attempt), strict=True)
        except (ValidationError, TypeError, ValueError, RecursionError):
            continue
        if _in_range(found, kind):
            return found
    shown = repr(value)
    by = f"got {shown if len(shown) <= 60 else shown[:57] + '...'}"
    raise InputError(f"{key} must be {_described(kind)}", where=where, by=by)


def _in_range(value: Any, kind: Any) -> bool:
    """Whether every number in it is in the range that stands in its type."""
    if isinstance(value, list | tuple):
        return all(_in_range(inner, kind) for inner in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    limits = _range(kind) or Range()
    return limits.low <= value <= limits.high and not (isinstance(value, int) and value > LARGEST)


def _range(kind: Any) -> Range | None:
    """The first range in a type."""
    if isinstance(kind, Range):
        return kind
    return next(filter(None, map(_range, get_args(kind))), None)


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
}


def _described(kind: Any, limits: Range | None = None) -> str:
    """A type in words, and the range of numbers."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _described(inner[0], _range(kind))
    if origin in (Union, UnionType):
        return " or ".join(_described(part) for part in inner)
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in inner)
    if origin in (tuple, list) and inner:
        return f"a list of which each is {_described(inner[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(repr(member.value) for member in kind)
    words = _WORDS.get(kind, str(kind))
    return f"{words} {limits or Range()}" if kind in (int, float) else words
