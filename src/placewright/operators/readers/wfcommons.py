"""``wfcommons:FILE.json``: scientific workflows, on a cluster of your choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import checked
from placewright.io.boundary import placed, validate
from placewright.io.stored import read_data, stem
from placewright.operators.problem import OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Loose(BaseModel):
    """Published files carry more than is read."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class FileEntry(_Loose):
    """A file, and until schema 1.4 what a task does with it."""

    name: Annotated[str, Field(validation_alias=AliasChoices("id", "name"))]
    nbytes: Annotated[Amount, Field(validation_alias=AliasChoices("sizeInBytes", "size"))] = 0.0
    link: str = ""


class TaskEntry(_Loose):
    """A task; its time and its files are here until schema 1.4."""

    id: str = ""
    name: str = ""
    type: str = ""
    seconds: Annotated[
        Amount | None, Field(validation_alias=AliasChoices("runtimeInSeconds", "runtime"))
    ] = None
    parents: list[str] = []
    files: list[FileEntry] = []
    inputs: Annotated[list[str], Field(alias="inputFiles")] = []
    outputs: Annotated[list[str], Field(alias="outputFiles")] = []


class PartEntry(_Loose):
    """The specification, or the execution."""

    tasks: list[TaskEntry]
    files: list[FileEntry] = []


class WorkflowEntry(_Loose):
    """Two parts from schema 1.5 on; before that tasks alone."""

    specification: PartEntry | None = None
    execution: PartEntry | None = None
    tasks: Annotated[list[TaskEntry], Field(validation_alias=AliasChoices("tasks", "jobs"))] = []


class WorkflowFile(_Loose):
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
    which goes to all tasks that read it; files that no task writes are everywhere. A child that
    reads nothing of its parent waits for zero bytes.

    Raises
    ------
    InputError
        A missing or bad field, a parent or a file that is not there; names the file.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(WorkflowFile, data, where=where, text=text)
    try:
        tasks, sizes = _read(entry.workflow)
        return _problem(entry.name or stem(path), tasks, sizes, cluster)
    except InputError as error:
        raise placed(error, where) from None


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
            builder.add_tensor(label, some, sizes.get(file, 0.0), name=f"{label}:{file}")
    for label, task in tasks.items():
        for parent in dict.fromkeys(task.parents):
            if parent not in tasks:
                raise UnknownNameError("parent", parent, tasks, where=f"task {label!r}")
            if (parent, label) not in fed:
                builder.add_tensor(parent, label, 0.0)
    return builder.build()


def _read(entry: WorkflowEntry) -> tuple[dict[str, _Task], dict[str, float]]:
    """Tasks by name, and bytes of files by name."""
    if entry.specification is None:
        files = [file for task in entry.tasks for file in task.files]
        rows = [
            (task, task.seconds, _linked(task, "in"), _linked(task, "out")) for task in entry.tasks
        ]
    else:
        files = entry.specification.files
        ran = entry.execution.tasks if entry.execution is not None else []
        seconds = {task.id or task.name: task.seconds for task in ran}
        rows = [
            (task, seconds.get(task.id or task.name), task.inputs, task.outputs)
            for task in entry.specification.tasks
        ]
    names = {task.name: task.id for task, *_ in rows if task.id}
    tasks: dict[str, _Task] = {}
    for task, took, inputs, outputs in rows:
        label = task.id or task.name
        if not label or label in tasks:
            what = "is there twice" if label else "has neither id nor name"
            raise InputError(what, where=f"task {label!r}", hint="correct it in the file")
        if took is None:
            hint = "an instance needs the seconds that each task took (runtimeInSeconds)"
            raise InputError("has no seconds", where=f"task {label!r}", hint=hint)
        parents = [names.get(parent, parent) for parent in task.parents]
        tasks[label] = _Task(took, task.type or task.name, parents, inputs, outputs)
    return tasks, {file.name: file.nbytes for file in files}


def _linked(task: TaskEntry, way: str) -> list[str]:
    """Names of the files that a task reads (``in``) or writes (``out``), each once."""
    return list(dict.fromkeys(file.name for file in task.files if file.link.startswith(way)))
