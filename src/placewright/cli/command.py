"""Commands for typer: a verb's own parameters, and the options that every verb has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any

from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    PlannerOption,
    QuietOption,
    ReportOption,
    SeedOption,
    TimeLimitOption,
    TraceOption,
    VerboseOption,
)

SHARED: Mapping[str, Any] = {
    "planner": PlannerOption,
    "time_limit": TimeLimitOption,
    "seed": SeedOption,
    "report": ReportOption,
    "trace": TraceOption,
    "format": FormatOption,
    "output": OutputOption,
    "quiet": QuietOption,
    "verbose": VerboseOption,
}
"""Options that a wing's own verb gets by naming a parameter so."""

COMMON: Mapping[str, Any] = {"format": "table", "output": None, "quiet": False, "verbose": 0}
"""Parameters of every command, with their defaults: the fields of `Console`."""


def console_command(verb: Callable[..., None], help_text: str = "") -> Callable[..., None]:
    """`verb` as a command: its first parameter, the console, is made of the common options.

    A verb that names one of them itself only changes its default.
    """
    own = _parameters(verb)
    passed = [p.name for p in own if p.name not in COMMON]

    def command(**given: Any) -> None:
        verb(_console(given), **{name: given[name] for name in passed})

    return _with_signature(command, own, help_text or cleandoc(verb.__doc__ or ""))


def source_command(
    verb: Callable[..., None], load: Callable[..., Any], help_text: str
) -> Callable[..., None]:
    """`verb` as a command that also takes the parameters of `load`, which is its second one."""
    source, own = _parameters(load), _parameters(verb, skip=2)

    def command(**given: Any) -> None:
        console = _console(given)
        chosen = {p.name: given[p.name] for p in source}
        loaded = partial(load, console, **chosen)
        verb(console, loaded, **{p.name: given[p.name] for p in own})

    return _with_signature(command, [*source, *own], help_text)


def _console(given: Mapping[str, Any]) -> Console:
    return Console(**{name: given[name] for name in COMMON})


def _with_signature(
    command: Callable[..., None], parameters: Sequence[Parameter], help_text: str
) -> Callable[..., None]:
    """Give `command` the signature and the docstring that typer reads."""
    named = {p.name for p in parameters}
    common = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SHARED[name])
        for name, default in COMMON.items()
        if name not in named
    ]
    every = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*parameters, *common)]
    command.__signature__ = Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    command.__doc__ = help_text
    return command


def _parameters(function: Callable[..., Any], skip: int = 1) -> list[Parameter]:
    """Those after the first `skip`, their annotations evaluated; `SHARED` ones by name."""
    found = list(signature(function).parameters.values())[skip:]
    return [p.replace(annotation=_annotation(function, p)) for p in found]


def _annotation(function: Callable[..., Any], parameter: Parameter) -> Any:
    written = parameter.annotation
    if isinstance(written, str):  # as `from __future__ import annotations` leaves it
        written = eval(written, function.__globals__)
    declared = hasattr(written, "__metadata__")
    return written if declared else SHARED.get(parameter.name, written)
