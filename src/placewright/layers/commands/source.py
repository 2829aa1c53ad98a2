"""SOURCE of wing 2: a model, a problem file, a published input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    scheme, colon, _ = source.partition(":")
    if colon and scheme not in SCHEMES and not Path(source).exists():
        if on is None and scheme != "zoo" and "." not in scheme:
            raise UnknownNameError("format", scheme, (*SCHEMES, "zoo"), where=source)
        return _model(source, console, on, batch, exact=exact)
    if on is not None:
        hint = "leave --on out, or name a model: zoo:NAME, package.module:factory"
        raise InputError("has its own workers", where=source, by=f"got --on {on}", hint=hint)
    from placewright.files import read

    found = read(source) if colon and scheme in SCHEMES else _file(source)
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
