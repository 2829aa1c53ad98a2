"""SOURCE of wing 2: a model, a problem file, a published input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from placewright.errors import InputError, UnknownNameError
from placewright.layers.plan import Strategy
from placewright.layers.problem import LayerProblem

if TYPE_CHECKING:
    from placewright.cli.console import Console

SCHEMES = ("piper",)


def find_problem(
    source: str,
    console: Console,
    on: str | None = None,
    batch: int | None = None,
    *,
    exact: bool = True,
) -> LayerProblem:
    """What SOURCE names; `on` and `exact` are for models.

    Raises
    ------
    InputError
        No such file or format, or a field in it is wrong.
    """
    scheme, colon, rest = source.partition(":")
    if colon and scheme not in SCHEMES and not Path(source).exists():
        if on is None and scheme != "zoo" and "." not in scheme:
            raise UnknownNameError("format", scheme, (*SCHEMES, "zoo"), where=source)
        return _model(source, console, on, batch, exact=exact)
    if on is not None:
        hint = "leave --on out, or name a model: zoo:NAME, package.module:factory"
        raise InputError("has its own workers", where=source, by=f"got --on {on}", hint=hint)
    found = _piper(rest) if colon and scheme == "piper" else _file(source)
    return found if batch is None else found.replace(global_batch=batch)


def _model(
    source: str, console: Console, on: str | None, batch: int | None, *, exact: bool
) -> LayerProblem:
    """Costs of a model's layers, computed."""
    from placewright.capturing.source import load_model
    from placewright.cluster.files import load_cluster
    from placewright.layers.execution.analytic_problem import layer_problem

    if on is None:
        raise InputError(
            "is a model, and needs the workers that it is to be trained on",
            where=source,
            hint="--on CLUSTER, a file or a preset such as edge-duo",
        )
    cluster = load_cluster(on)
    with console.meter(f"computing costs of the layers of {source}"):
        model = load_model(source, batch, training=True)
        problem = layer_problem(model, cluster=cluster, exact=exact)
    whole = {x.layer: x.reason for x in problem.refusals if x.strategy is Strategy.DATA}
    if whole:
        layer, reason = next(iter(whole.items()))
        console.note(
            f"{len(whole)} of {problem.n} layers have to see the whole batch, which rules out "
            f"data parallelism and micro-batches ({problem.layer_names[layer]}: {reason}); "
            "--approximate accepts parts of it"
        )
    return problem


def _file(source: str) -> LayerProblem:
    from placewright.layers.files import read_problem

    try:
        return read_problem(source)
    except InputError as error:
        if ": layer_names" not in error.where:
            raise
        hint = f"Piper's input is given as piper:{source}"
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
