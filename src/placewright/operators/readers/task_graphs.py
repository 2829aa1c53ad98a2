"""Task graphs of published collections.

- ``dag:FILE.json``: task graphs on heterogeneous nodes.
- ``wfcommons:FILE.json``: scientific workflows, on a cluster of your choice.
- ``stg:FILE.stg``: the Standard Task Graph Set, on devices of your choice.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from placewright.errors import InputError, UnknownNameError, check_known
from placewright.io.arguments import Range, checked
from placewright.io.boundary import errors_in, validate
from placewright.io.stored import read_data, stem, stored_text
from placewright.numerics.arrays import FloatArray
from placewright.operators.problem import Links, OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster


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
    check_known("kind of links", links, list(Links))
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


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _TaskModel(BaseModel):
    """Published files carry more than is read."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class FileEntry(_TaskModel):
    """A file, and until schema 1.4 what a task does with it."""

    name: Annotated[str, Field(validation_alias=AliasChoices("id", "name"))]
    nbytes: Annotated[
        Amount | None, Field(validation_alias=AliasChoices("sizeInBytes", "size"))
    ] = None
    link: str = ""
    path: str = ""

    @property
    def place(self) -> str:
        """Its name, behind its folder's: two of one name in two folders are two files."""
        return self.path + self.name


class TaskEntry(_TaskModel):
    """A task; its time and its files are here until schema 1.4."""

    id: str = ""
    name: str = ""
    type: str = ""
    seconds: Annotated[
        Amount | None, Field(validation_alias=AliasChoices("runtimeInSeconds", "runtime"))
    ] = None
    parents: list[str] = []
    children: list[str] = []
    files: list[FileEntry] = []
    inputs: Annotated[list[str], Field(alias="inputFiles")] = []
    outputs: Annotated[list[str], Field(alias="outputFiles")] = []


class PartEntry(_TaskModel):
    """The specification, or the execution."""

    tasks: list[TaskEntry]
    files: list[FileEntry] = []


class WorkflowEntry(_TaskModel):
    """Two parts from schema 1.5 on; before that tasks alone."""

    specification: PartEntry | None = None
    execution: PartEntry | None = None
    tasks: Annotated[list[TaskEntry], Field(validation_alias=AliasChoices("tasks", "jobs"))] = []


class WorkflowFile(_TaskModel):
    """An instance of WfCommons."""

    name: str = ""
    workflow: WorkflowEntry


@dataclass(frozen=True, slots=True)
class _Task:
    """A task in one form, whatever the schema."""

    seconds: float
    kind: str
    parents: list[str]
    inputs: list[str]
    outputs: list[str]


@checked
def read_wfcommons(path: str | Path, cluster: Cluster) -> OperatorProblem:
    """Read a workflow of WfCommons (doi 10.1016/j.future.2021.09.043), schemas 1.0 to 1.5.

    Measured seconds are divided by the speed of each device. A file that a task writes is a tensor
    which goes to all tasks that read it, of the size that its writer says (until schema 1.4, where
    readers may say another one); files that no task writes are everywhere. A child that
    reads nothing of its parent waits for zero bytes; either of the two may name the other.

    Raises
    ------
    InputError
        A missing or bad field, a parent or a file that is not there; names the file.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(WorkflowFile, data, where=where, text=text)
    with errors_in(where):
        tasks, sizes = _read(entry.workflow)
        return _problem(entry.name or stem(path), tasks, sizes, cluster)


def _problem(
    name: str, tasks: Mapping[str, _Task], sizes: Mapping[str, float], cluster: Cluster
) -> OperatorProblem:
    builder = OperatorProblem.builder(cluster, name)
    for label, task in tasks.items():
        builder.add_operator(label, task.seconds, kind=task.kind)
    readers: dict[str, list[str]] = {}
    for label, task in tasks.items():
        for file in task.inputs:
            readers.setdefault(file, []).append(label)
    fed = set()
    for label, task in tasks.items():
        for file in task.outputs:
            some = [reader for reader in readers.get(file, ()) if reader != label]
            fed |= {(label, reader) for reader in some}
            if some and file not in sizes:
                hint = "give its bytes, 0 where it takes no time to send"
                raise InputError("has no size", where=f"file {file!r}", hint=hint)
            builder.add_tensor(label, some, sizes.get(file, 0.0), name=f"{label}:{file}")
    for label, task in tasks.items():
        for parent in dict.fromkeys(task.parents):
            if (parent, label) not in fed:
                builder.add_tensor(parent, label, 0.0)
    return builder.build()


def _read(entry: WorkflowEntry) -> tuple[dict[str, _Task], dict[str, float]]:
    """Tasks by name, and bytes of files by name."""
    if entry.specification is None:
        files = [file for task in entry.tasks for file in task.files]
        files.sort(key=lambda file: file.link.lower().startswith("out"))  # the writer's size counts
        rows = [
            (task, task.seconds, _linked(task, "in"), _linked(task, "out")) for task in entry.tasks
        ]
    else:
        files = entry.specification.files
        ran = entry.execution.tasks if entry.execution is not None else []
        seconds = {task.id or task.name: task.seconds for task in ran}
        _refuse_two("task", "times", [(task.id or task.name, task.seconds) for task in ran])
        _refuse_two("file", "sizes", [(file.place, file.nbytes) for file in files])
        rows = [
            (task, seconds.get(task.id or task.name), task.inputs, task.outputs)
            for task in entry.specification.tasks
        ]
    tasks: dict[str, _Task] = {}
    for task, took, inputs, outputs in rows:
        label = task.id or task.name
        if not label or label in tasks:
            what = "is there twice" if label else "has neither id nor name"
            raise InputError(what, where=f"task {label!r}", hint=_CORRECT)
        if took is None:
            hint = "an instance needs the seconds that each task took (runtimeInSeconds)"
            raise InputError("has no seconds", where=f"task {label!r}", hint=hint)
        tasks[label] = _Task(took, task.type or task.name, [], inputs, outputs)
    _join([task for task, *_ in rows], tasks)
    sizes = {file.place: file.nbytes for file in files if file.nbytes is not None}
    return tasks, sizes


def _refuse_two(kind: str, what: str, given: Sequence[tuple[str, float | None]]) -> None:
    """Refuse names that are given twice with other numbers."""
    for name, count in Counter(name for name, _ in dict.fromkeys(given)).items():
        if count > 1:
            by = ", ".join(str(number) for other, number in given if other == name)
            raise InputError(f"has two {what}", where=f"{kind} {name!r}", by=by[:60], hint=_CORRECT)


_CORRECT = "correct it in the file"


def _join(entries: Sequence[TaskEntry], tasks: Mapping[str, _Task]) -> None:
    """Give every task its parents, by id or by name, also those that only name it as a child."""
    named: dict[str, list[str]] = {label: [label] for label in tasks}
    for task in entries:
        if task.name not in tasks:
            named.setdefault(task.name, []).append(task.id)

    def known(kind: str, name: str, where: str) -> str:
        check_known(kind, name, named, where=where)
        if len(named[name]) > 1:
            by, hint = ", ".join(named[name][:8]), f"name the {kind} by its id"
            raise InputError(
                f"{name!r} is the name of several tasks", where=where, by=by, hint=hint
            )
        return named[name][0]

    for task in entries:
        label = task.id or task.name
        where = f"task {label!r}"
        tasks[label].parents.extend(known("parent", name, where) for name in task.parents)
    for task in entries:
        label = task.id or task.name
        for name in task.children:
            tasks[known("child", name, f"task {label!r}")].parents.append(label)


def _linked(task: TaskEntry, way: str) -> list[str]:
    """Names of the files that a task reads (``in``) or writes (``out``), each once."""
    linked = (file for file in task.files if file.link.lower().startswith(way))
    return list(dict.fromkeys(file.place for file in linked))


Devices = Annotated[int, Range(1, 1024)]


@checked
def read_stg(
    path: str | Path,
    cluster: Cluster | None = None,
    *,
    devices: Devices | None = None,
    bytes_per_unit: float = 1.0,
) -> OperatorProblem:
    """Read a task graph in the format of Tobita and Kasahara (doi 10.1002/jos.116).

    The first number is that of the tasks without the dummies at both ends. A line per task has its
    number, its time, the number of its predecessors, and those, each followed by the units that it
    sends where the file has communication. What follows ``#`` is a comment.

    Parameters
    ----------
    cluster
        Times are divided by the speed of each device.
    devices
        Without a cluster: so many devices alike, between which a unit takes one unit of time; 2 if
        left out.
    bytes_per_unit
        Of communication.

    Raises
    ------
    InputError
        A line with too few or too many numbers, a task that is missing; names file and line.
    """
    if cluster is not None and devices is not None:
        by, hint = f"got {devices} beside a cluster", "leave one of the two out"
        raise InputError("the cluster has its own devices", where="devices", by=by, hint=hint)
    where, alike = str(path), [f"p{d}" for d in range(devices or 2)]
    builder = OperatorProblem.builder(alike if cluster is None else cluster, stem(path))
    if cluster is None:
        builder.link_all(bandwidth=bytes_per_unit)
    lines = list(_lines(stored_text(path), where))
    if not lines or len(lines[0][1]) != 1:
        raise InputError("must begin with the number of tasks", where=where, hint=_LOOK)
    count = int(lines[0][1][0])
    if count != lines[0][1][0]:
        by = f"got {lines[0][1][0]:g}"
        raise InputError("has no whole number of tasks", where=lines[0][0], by=by, hint=_LOOK)
    if len(lines) - 1 not in (count, count + 2):
        by = f"{len(lines) - 1} lines for {count} tasks and two dummies"
        raise InputError("has the wrong number of tasks", where=where, by=by, hint=_LOOK)
    sent: dict[tuple[int, int], float] = {}
    for ends, units in _predecessors(lines):
        sent[ends] = sent.get(ends, 0.0) + units  # a predecessor that is named twice: one tensor
    with errors_in(where):
        for _, row in lines[1:]:
            builder.add_operator(f"t{int(row[0])}", row[1])
        for (source, target), units in sent.items():
            builder.add_tensor(f"t{source}", f"t{target}", units * bytes_per_unit)
        return builder.build(links=Links.FREE, dimensionless=cluster is None)


def _lines(text: str, where: str) -> Iterator[tuple[str, list[float]]]:
    """Where each line is, and its numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        at = f"{where}:{number}"
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            by = line.strip()[:60]
            raise InputError("must be numbers", where=at, by=by, hint=_LOOK) from None
        if any(not 0 <= x < 2**53 for x in numbers):
            raise InputError("must be numbers >= 0", where=at, by=line.strip()[:60], hint=_LOOK)
        if numbers:
            yield at, numbers


def _predecessors(
    lines: list[tuple[str, list[float]]],
) -> Iterator[tuple[tuple[int, int], float]]:
    """What each task sends to which, in the order of the lines."""
    for at, row in lines[1:]:
        rest = row[3:]
        parts = int(row[2]) if len(row) > 2 else -1
        if any(x % 1 for x in (row[0], *row[2:3])):
            by = f"got {row[0]:g}, {row[2] if len(row) > 2 else 0:g}"
            raise InputError("has no whole numbers of tasks", where=at, by=by, hint=_LOOK)
        if len(rest) not in (parts, 2 * parts):
            by = f"{len(rest)} numbers after {max(parts, 0)} predecessors"
            raise InputError("has the wrong length", where=at, by=by, hint=_LOOK)
        units = rest[1::2] if len(rest) == 2 * parts else [0.0] * parts
        before = rest[::2] if len(rest) == 2 * parts else rest
        for source, size in zip(before, units, strict=True):
            if source % 1:
                by = f"got {source:g}"
                raise InputError("has no whole number of a task", where=at, by=by, hint=_LOOK)
            yield (int(source), int(row[0])), size


_LOOK = "compare with the format: number, time, number of predecessors, predecessors"
