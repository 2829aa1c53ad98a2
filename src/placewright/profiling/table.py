"""ProfileTable: measured seconds that can be kept in a file and used again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from placewright.cluster.detect import cpu_model
from placewright.graph.graph import Graph
from placewright.io.arguments import checked
from placewright.io.boundary import FileModel, parse_json, read_text, validate
from placewright.io.output import output_file
from placewright.io.stored import locked, write_file
from placewright.numerics.arrays import FloatArray
from placewright.profiling.profile_warnings import OtherMachineWarning


def this_machine() -> str:
    """Identifies machines whose measurements can be compared: processor and system."""
    return f"{cpu_model()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"


@checked
@dataclass(slots=True)
class ProfileTable:
    """Seconds by operator name for each graph, method, and number of cores or model of GPU.

    Attributes
    ----------
    entries
        Key of `profile_key` -> operator name -> seconds; without the operators that could not
        be measured. The cost of a message has a key of its own (`message_cost.KEY`).
    machine
        The machine on which it was measured.
    file
        Written with every measurement; ``None`` for a table that is not kept.
    """

    entries: dict[str, dict[str, float]] = field(default_factory=dict)
    machine: str = field(default_factory=this_machine)
    file: Path | None = None

    def seconds(self, key: str, graph: Graph) -> FloatArray:
        """Seconds of every operator of the graph, shape (operators,), NaN where not measured."""
        kept = self.entries[key]
        return np.array([kept.get(op.name, np.nan) for op in graph.operators])

    def add(self, key: str, graph: Graph, seconds: FloatArray) -> None:
        """Keep a measurement, shape (operators,), NaN for those that could not be measured."""
        pairs = zip(graph.operator_names, seconds, strict=True)
        self.keep(key, {n: float(s) for n, s in pairs if not np.isnan(s)})

    def keep(self, key: str, numbers: dict[str, float]) -> None:
        """Keep numbers by name; a file of another machine is left as it is.

        What other processes have added to the file meanwhile stays in it.
        """
        self.entries[key] = numbers
        if self.file is None or self.machine != this_machine():
            return
        with locked(self.file):
            if _has_content(self.file):
                there = _contents(self.file)
                if there.machine != self.machine:
                    return
                self.entries = {**there.entries, **self.entries}
            self.write(self.file)

    @checked
    def write(self, path: str | Path) -> Path:
        """Write as JSON, all or nothing: what was there before stays until the end."""
        content = {"schema_version": 1, "machine": self.machine, "entries": self.entries}
        return write_file(path, json.dumps(content, indent=1))

    @staticmethod
    @checked
    def read(path: str | Path) -> ProfileTable:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            The file is missing or not a profile; names the field.

        Warns
        -----
        OtherMachineWarning
            It was measured on another machine.
        """
        data = _contents(path)
        _warn_of_another_machine(data.machine, str(path))
        return ProfileTable(data.entries, data.machine)

    @staticmethod
    @checked
    def kept(path: str | Path) -> ProfileTable:
        """The table in this file, or an empty one that becomes it with its first measurement.

        Raises
        ------
        InputError
            The file is not a profile, or could not be written.

        Warns
        -----
        OtherMachineWarning
            It was measured on another machine. What it lacks and is measured here stays out of
            the file.
        """
        file = Path(path)
        output_file(file)
        table = ProfileTable.read(file) if _has_content(file) else ProfileTable()
        table.file = file
        return table


class _ProfileFile(FileModel):
    schema_version: Literal[1]
    machine: str
    entries: dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]]


def _has_content(file: Path) -> bool:
    """Whether the file is there, and more than a lock of whoever has not written it yet."""
    return file.exists() and file.stat().st_size > 0


def _contents(path: str | Path) -> _ProfileFile:
    return validate(_ProfileFile, parse_json(read_text(path), where=str(path)), where=str(path))


def _warn_of_another_machine(machine: str, where: str) -> None:
    if machine == this_machine():
        return
    warnings.warn(
        f"{where} was measured on another machine ({machine}) than this one ({this_machine()}); "
        "what it lacks is measured here, and not added to it\n"
        "  next: name another file to measure everything here",
        OtherMachineWarning,
        stacklevel=3,
    )


def profile_key(graph: Graph, method: str, where: int | str) -> str:
    """One key per graph (names, kinds and signatures), method, and number of cores or GPU."""
    digest = hashlib.sha256()
    for op in graph.operators:
        digest.update(f"{op.name}\0{op.kind}\0{op.signature}\0{op.outputs}\n".encode())
    return f"{graph.name}/{digest.hexdigest()[:16]}/{method}/{where}"
