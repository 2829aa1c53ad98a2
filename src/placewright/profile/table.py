"""ProfileTable: measured seconds that can be kept in a file and used again."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from placewright.arrays import FloatArray
from placewright.errors import InputError
from placewright.graph.graph import Graph


@dataclass(slots=True)
class ProfileTable:
    """Seconds by operator name for each graph, method, and number of cores or model of GPU.

    Attributes
    ----------
    entries
        Key of `profile_key` -> operator name -> seconds.
    machine
        Where it was measured.
    """

    entries: dict[str, dict[str, float]] = field(default_factory=dict)
    machine: str = field(default_factory=platform.platform)

    def seconds(self, key: str, graph: Graph) -> FloatArray:
        """Seconds of every operator of the graph, shape (operators,), NaN where not measured."""
        kept = self.entries[key]
        return np.array([kept.get(op.name, np.nan) for op in graph.operators])

    def add(self, key: str, graph: Graph, seconds: FloatArray) -> None:
        """Keep a measurement; what is NaN could not be measured and is left out."""
        pairs = zip(graph.operator_names, seconds, strict=True)
        self.entries[key] = {n: float(s) for n, s in pairs if not np.isnan(s)}

    def write(self, path: str | Path) -> Path:
        """Write as JSON."""
        target = Path(path)
        content = {"schema_version": 1, "machine": self.machine, "entries": self.entries}
        target.write_text(json.dumps(content, indent=1))
        return target

    @staticmethod
    def read(path: str | Path) -> ProfileTable:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            The file is missing or not a profile; names the field.
        """
        try:
            data = _ProfileFile.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            raise InputError("cannot read the profile", where=str(path), by=str(error)) from None
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(part) for part in first["loc"])
            raise InputError(first["msg"], where=f"{path}: {at or 'file'}") from None
        entries = {key: dict(seconds) for key, seconds in data.entries.items()}
        return ProfileTable(entries, data.machine)


class _ProfileFile(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: int
    machine: str
    entries: Mapping[str, Mapping[str, NonNegativeFloat]]


def profile_key(graph: Graph, method: str, where: int | str) -> str:
    """One key per graph (by what its operators are called and are), method, and cores or GPU."""
    digest = hashlib.sha256()
    for op in graph.operators:
        digest.update(f"{op.name}\0{op.kind}\0{op.signature}\0{op.outputs}\n".encode())
    return f"{graph.name}/{digest.hexdigest()[:16]}/{method}/{where}"
