"""Parameters of learned planners in safetensors files, with what they were learned for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, MissingDependencyError
from placewright.io.boundary import open_file
from placewright.io.stored import write_file

FORMAT = "placewright-policy"
VERSION = 1
LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Schema:
    """Identity of the planner and problem that parameters belong to; others are refused.

    Attributes
    ----------
    planner
        Its name, with the profile where that changes the network.
    features
        Names or a version of the features, in order.
    shape
        Sizes on which parameters depend: groups, devices, hidden units.
    problem
        Hash of the problem, where parameters make sense for that one only.
    """

    planner: str
    features: str
    shape: str = ""
    problem: str = ""


def save_parameters(
    path: str | Path, parameters: Mapping[str, Any], schema: Schema, **facts: Any
) -> Path:
    """Write parameters, their schema and `facts` (JSON data) to one safetensors file, atomically.

    Raises `InputError`: the file cannot be written.
    Raises `MissingDependencyError`: safetensors is not installed.
    """
    save = _safetensors().save
    arrays = {name: np.array(value, order="C") for name, value in parameters.items()}
    head = {"format": FORMAT, "version": VERSION, "schema": asdict(schema), "facts": facts}
    return write_file(path, save(arrays, metadata={FORMAT: json.dumps(head)}))


def load_parameters(path: str | Path, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and facts of a checkpoint.

    Raises `InputError`: no file, no safetensors file, a damaged one, or one of another planner,
    other features, sizes or another problem.
    Raises `MissingDependencyError`: safetensors is not installed.
    """
    load, where = _safetensors().load, str(path)
    data = _bytes(path)
    try:
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header = json.loads(head["__metadata__"][FORMAT])
        arrays = dict(load(data))
        found, facts = Schema(**header["schema"]), dict(header["facts"])
        version = int(header["version"])
    except Exception as error:  # whatever a damaged file makes of a parser
        raise InputError(
            "is no checkpoint of a learned planner, or a damaged one",
            where=where,
            by=f"{type(error).__name__}: {error}"[:120],
            hint="write it again with `placewright operators train`",
        ) from None
    _check(found, version, schema, where)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InputError(
            "holds parameters that are not finite",
            where=where,
            by=", ".join(name for name, a in arrays.items() if not np.isfinite(a).all())[:120],
            hint="train again, with a smaller learning rate",
        )
    return arrays, facts


def check_parameters(
    given: Mapping[str, Any], needed: Mapping[str, tuple[int, ...]], planner: str
) -> None:
    """Raise `InputError` if a parameter that a planner needs is missing or of another shape."""
    for name, shape in needed.items():
        got = tuple(np.shape(given[name])) if name in given else None
        if got != shape:
            raise InputError(
                f"the checkpoint is damaged: its parameter {name!r} does not fit",
                where=f"planner {planner!r}",
                by=f"{'missing' if got is None else f'shape {got}'}, needs shape {shape}",
                hint="write it again with `placewright operators train`",
            )


def _check(found: Schema, version: int, wanted: Schema, where: str) -> None:
    if version != VERSION:
        raise InputError(
            "is a checkpoint of another version",
            where=where,
            by=f"version {version}, this is {VERSION}",
            hint="train again",
        )
    for key, got in asdict(found).items():
        need = asdict(wanted)[key]
        if got != need:
            raise InputError(
                f"is a checkpoint for another {_WORDS[key]}",
                where=where,
                by=f"has {_short(got)}, needs {_short(need)}",
                hint="train one for this source and these parameters, or leave it out",
            )


_WORDS = {
    "planner": "planner",
    "features": "set of features",
    "shape": "size of network",
    "problem": "problem",
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 48 else text[:45] + "...")


def _bytes(path: str | Path) -> bytes:
    try:
        with open_file(path) as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise InputError(
                "is too large for a checkpoint of a learned planner",
                where=str(path),
                by=f"{Path(path).stat().st_size} bytes, at most {LARGEST_BYTES}",
                hint="name the file that `placewright operators train` wrote",
            )
        return data
    except OSError as error:
        raise InputError(
            "the checkpoint cannot be read",
            where=str(path) or "its path is empty",
            by=str(error.strerror or error),
            hint="name a file that `placewright operators train` wrote",
        ) from None


def _safetensors() -> Any:
    try:
        from safetensors import numpy
    except ImportError:
        raise MissingDependencyError("safetensors", extra="torch", purpose="a checkpoint") from None
    return numpy
