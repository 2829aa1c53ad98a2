"""``dag:FILE.json``: task graphs on heterogeneous nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.io.stored import read_data, stem
from placewright.numerics.arrays import FloatArray
from placewright.operators.problem import Links, OperatorProblem

_SECTIONS = {
    "nodes": ("name", "speed"),
    "links": ("source", "target", "speed"),
    "tasks": ("name", "cost"),
    "dependencies": ("source", "target", "size"),
}


@checked
def read_dag(path: str | Path | Mapping[str, Any], links: str = "free") -> OperatorProblem:
    """Read a task graph: a file, JSON or YAML, or its content as a dict.

    ``nodes`` (name, speed), ``links`` (undirected pairs, speed), ``tasks`` (name, cost, and
    ``kind`` where it is known), ``dependencies`` (source, target, size). Time on a node is
    cost / speed, a transfer takes size / speed; every dependency is a tensor of its own; an
    undirected link is two directed ones, each a channel of its own.

    Parameters
    ----------
    links
        ``free`` (textbook list scheduling) or ``contended``.

    Raises
    ------
    InputError
        Missing or bad fields, unknown names, cycles; names file and field.
    """
    if links not in list(Links):
        raise UnknownNameError("kind of links", links, list(Links))
    path, data = (Path("dag"), path) if isinstance(path, Mapping) else (Path(path), _load(path))
    columns = {section: _columns(path, data, section) for section in _SECTIONS}
    nodes, tasks = columns["nodes"], columns["tasks"]
    latency, per_byte, channel, channels = _links(path, nodes, columns["links"])
    source, target, size = _dependencies(path, tasks, columns["dependencies"])
    names = tasks[0]
    return OperatorProblem(
        name=stem(path),
        operator_names=tuple(names),
        device_names=tuple(nodes[0]),
        compute_s=np.divide.outer(tasks[1], nodes[1]),
        tensor_names=_tensor_names(columns["dependencies"]),
        tensor_producer=source,
        tensor_bytes=size,
        consumer_offsets=np.arange(len(source) + 1),
        consumers=target,
        latency_s=latency,
        seconds_per_byte=per_byte,
        channel=channel,
        channel_names=channels,
        resident_bytes=np.zeros(len(names)),
        memory_bytes=np.full(len(nodes[0]), np.inf),
        colocation=np.arange(len(names)),
        pinned=np.full(len(names), -1),
        links=Links(links),
        operator_kinds=_kinds(path, data["tasks"]),
        dimensionless=True,
    )


def _load(path: str | Path) -> Mapping[str, Any]:
    data, _ = read_data(path)
    if not isinstance(data, dict):
        raise InputError("expected an object at the top", where=str(path))
    return data


def _columns(path: Path, data: Mapping[str, Any], section: str) -> list[Any]:
    """One list per field of a section; names as strings, numbers as an array, checked."""
    rows = data.get(section)
    if not isinstance(rows, list):
        raise InputError(f"{section!r} is missing or no list", where=str(path))
    return [_column(path, section, rows, key) for key in _SECTIONS[section]]


def _column(path: Path, section: str, rows: Sequence[Any], key: str) -> Any:
    try:
        values = [row[key] for row in rows]
    except (KeyError, TypeError):
        at = next(i for i, r in enumerate(rows) if not isinstance(r, dict) or key not in r)
        raise InputError(f"{key!r} is missing", where=f"{path}: {section}[{at}]") from None
    if key in ("speed", "cost", "size"):
        return _numbers(path, section, key, values)
    wrong = [i for i, value in enumerate(values) if not isinstance(value, str)]
    if wrong:
        at = wrong[0]
        raise InputError(
            f"{key!r} must be a string", where=f"{path}: {section}[{at}]", by=f"got {values[at]!r}"
        )
    return values


def _kinds(path: Path, tasks: Sequence[Any]) -> tuple[str, ...]:
    """Kinds of the tasks, empty where no task has one."""
    kinds = [task.get("kind", "") for task in tasks]
    for at, kind in enumerate(kinds):
        if not isinstance(kind, str):
            where = f"{path}: tasks[{at}]"
            raise InputError("'kind' must be a string", where=where, by=f"got {kind!r}")
    return tuple(kinds) if any(kinds) else ()


def _numbers(path: Path, section: str, key: str, values: Sequence[Any]) -> FloatArray:
    """Finite and not negative; a speed above zero."""
    for at, value in enumerate(values):
        good = isinstance(value, int | float) and not isinstance(value, bool)
        fits = good and 0 <= value <= sys.float_info.max  # an integer has no end; NaN never fits
        if not (fits and (value > 0 or key != "speed")):
            least = "> 0" if key == "speed" else ">= 0"
            raise InputError(
                f"{key!r} must be a finite number {least}",
                where=f"{path}: {section}[{at}]",
                by=f"got {value!r}",
            )
    return np.array(values, dtype=np.float64)


def _indices(path: Path, where: str, names: Iterable[str], index: Mapping[str, int]) -> Any:
    """Positions of names that must exist."""
    found = [index.get(name, -1) for name in names]
    if -1 in found:
        at = found.index(-1)
        name = list(names)[at]
        section, _, kind = where.partition(" ")
        raise UnknownNameError(kind, name, index, where=f"{path}: {section}[{at}]")
    return np.array(found, dtype=np.int64)


def _index(path: Path, section: str, names: Sequence[str]) -> dict[str, int]:
    index = {name: i for i, name in enumerate(names)}
    if len(index) < len(names):
        twice = next(name for i, name in enumerate(names) if index[name] != i)
        raise InputError(f"name {twice!r} is used twice", where=f"{path}: {section}")
    if not index:
        raise InputError("at least one is needed", where=f"{path}: {section}")
    return index


def _links(path: Path, nodes: list[Any], links: list[Any]) -> tuple[Any, Any, Any, tuple[str, ...]]:
    """Latency, seconds per unit, channel of every ordered pair; channel names."""
    index = _index(path, "nodes", nodes[0])
    m = len(index)
    ends = [_indices(path, "links node", links[x], index) for x in (0, 1)]
    latency, per_byte = np.full((m, m), np.inf), np.full((m, m), np.inf)
    channel = np.full((m, m), -1)
    names: list[str] = []
    for at, (a, b, speed) in enumerate(zip(*ends, links[2], strict=True)):
        if a == b or channel[a, b] >= 0:
            what = "a link must join two nodes" if a == b else "the pair is linked twice"
            raise InputError(what, where=f"{path}: links[{at}]")
        for i, j in ((a, b), (b, a)):
            latency[i, j], per_byte[i, j], channel[i, j] = 0.0, 1.0 / speed, len(names)
            names.append(f"{nodes[0][i]}->{nodes[0][j]}")
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(per_byte, 0.0)
    return latency, per_byte, channel, tuple(names)


def _dependencies(path: Path, tasks: list[Any], rows: list[Any]) -> tuple[Any, Any, Any]:
    index = _index(path, "tasks", tasks[0])
    source = _indices(path, "dependencies task", rows[0], index)
    target = _indices(path, "dependencies task", rows[1], index)
    return source, target, rows[2]


def _tensor_names(rows: list[Any]) -> tuple[str, ...]:
    """``source->target``; a dependency listed again gets its number."""
    names = [f"{source}->{target}" for source, target in zip(rows[0], rows[1], strict=True)]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}#{at}" for at, name in enumerate(names))
