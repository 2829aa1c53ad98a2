"""Verbs of the command line as operations of the service.

They are read from the functions that typer makes commands of, so that a verb or a wing that is
added to the command line is an operation of the service, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import Parameter as Declared
from inspect import cleandoc, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from placewright.io.output import output_file
from placewright.service.operations import (
    EXCLUDED_CHOICES,
    EXCLUDED_OPTIONS,
    Kind,
    Operation,
    Option,
    Text,
)

Verbs = Iterable[tuple[tuple[str, ...], Callable[..., None]]]
"""Path of each verb, such as ``("operators", "plan")``, and the function that typer reads."""

CONSOLE = ("format", "quiet", "verbose")
"""Options of terminals alone."""


def operations_of(verbs: Verbs) -> list[Operation]:
    """Every verb as an operation, in the order of the command line."""
    return [_operation(path, function) for path, function in verbs]


def _operation(path: tuple[str, ...], function: Callable[..., None]) -> Operation:
    parameters = signature(function, eval_str=True).parameters.values()
    own = {".".join((*path, each.name)): each for each in parameters if each.name not in CONSOLE}
    kept = [each for name, each in own.items() if name not in EXCLUDED_OPTIONS]
    text = _plain(cleandoc(function.__doc__ or ""))
    summary = " ".join(text.partition("\n\n")[0].split())
    return Operation(path, summary, text, tuple(map(_option, kept)))


def _option(declared: Declared) -> Option:
    """An option as typer reads it: its type, and the object beside it in `Annotated`."""
    kind = declared.annotation
    info = kind.__metadata__[0] if get_origin(kind) is Annotated else None
    bare = _without_none(kind.__origin__ if info is not None else kind)
    required = declared.default in (Declared.empty, ...)
    metavar = (getattr(info, "metavar", None) or "").strip("[]")
    written = getattr(info, "callback", None) is output_file or metavar == "FOLDER"
    flags = _flags(declared.name, info, bare)
    return Option(
        name=declared.name,
        flag=flags[0],
        off=flags[1],
        type=_as_text(bare),
        kind=_kind(bare, metavar, argument=not flags[0]),
        default=None if required else declared.default,
        required=required,
        help=_plain(getattr(info, "help", None) or ""),
        metavar=metavar,
        written=written,
        limits=(getattr(info, "min", None), getattr(info, "max", None)),
    )


def _flags(name: str, info: Any, kind: Any) -> tuple[str, str]:
    """The long flag of an option, and of its opposite; empty for an argument."""
    if type(info).__name__ == "ArgumentInfo":
        return "", ""
    first = getattr(info, "default", None)
    declared = getattr(info, "param_decls", None) or ()
    written = [*([first] if isinstance(first, str) else []), *declared]
    long = [each for each in written if each.startswith("--")]
    dashed = name.replace("_", "-")
    if not long:
        return f"--{dashed}", f"--no-{dashed}" if kind is bool else ""
    on, _, off = long[0].partition("/")
    return on, off


def _kind(kind: Any, metavar: str, argument: bool) -> Kind:
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    if metavar == "CLUSTER":
        return "cluster"
    if metavar in ("SOURCE", "MODEL"):
        return "source"
    if inner is Path:
        return "file"
    if argument and metavar == "NAME":
        return "name"
    if inner is bool:
        return "flag"
    if inner in (int, float):
        return "number"
    return "choice" if get_origin(inner) is Literal else "text"


def _as_text(kind: Any) -> Any:
    """The type in a request: files are names, texts have an end."""
    if get_origin(kind) is list:
        return list[_as_text(get_args(kind)[0])]  # type: ignore[misc]
    if get_origin(kind) is Literal:
        return Literal[tuple(each for each in get_args(kind) if each not in EXCLUDED_CHOICES)]
    return Text if kind in (Path, str) else kind


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return next(each for each in get_args(kind) if each is not NoneType)


def _plain(text: str) -> str:
    """Help without rich's tags."""
    return re.sub(r"\[/?(?:bold|cyan)\]", "", text)
