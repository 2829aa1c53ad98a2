"""SOURCE of wing 2: a problem file, a measured plan, a published input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from placewright.errors import InputError, UnknownNameError
from placewright.layers.plan import LayerPlan
from placewright.layers.problem import LayerProblem

if TYPE_CHECKING:
    from placewright.cli.console import Console

SCHEMES = ("strategy", "piper")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A problem, and the plan that came with it, if one did."""

    problem: LayerProblem
    plan: LayerPlan | None = None


def find_source(source: str, console: Console) -> Source:
    """What SOURCE names.

    Raises
    ------
    InputError
        No such file or format, or a field in it is wrong.
    """
    scheme, colon, rest = source.partition(":")
    if colon and scheme == "strategy":
        from placewright.io.boundary import UnknownFieldWarning
        from placewright.layers.readers.strategy import read_strategy

        with console.noted(UnknownFieldWarning):
            return Source(*read_strategy(rest))
    if colon and scheme == "piper":
        return Source(_piper(rest))
    if colon and scheme == "zoo":
        raise InputError(
            "is a model, whose layers are not measured yet",
            where=source,
            hint=f"placewright layers run {source} --on CLUSTER measures, plans and trains it",
        )
    if colon and not Path(source).exists():
        raise UnknownNameError("format", scheme, SCHEMES, where=source)
    from placewright.layers.files import read_problem

    try:
        return Source(read_problem(source))
    except InputError as error:
        if ": layer_names" not in error.where:
            raise
        hint = f"a measured plan is given as strategy:{source}, Piper's input as piper:{source}"
        raise InputError(error.what, where=error.where, by=error.by, hint=hint) from None


def _piper(rest: str) -> LayerProblem:
    """``FILE?devices=K&memory=16GiB``."""
    from placewright.io.units import BYTES, parse
    from placewright.layers.readers.piper import read_piper

    path, _, query = rest.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for key in given:
        if key not in ("devices", "memory"):
            raise UnknownNameError("option", key, ("devices", "memory"), where=rest)
    devices, memory = given.get("devices"), given.get("memory")
    if devices is not None and not devices.isdecimal():
        raise InputError("devices must be a whole number", where=rest, by=f"got {devices!r}")
    return read_piper(
        path,
        devices=None if devices is None else int(devices),
        memory_bytes=None if memory is None else parse(memory, BYTES),
    )
