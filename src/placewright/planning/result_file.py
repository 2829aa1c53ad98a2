"""Result files: what the files of every wing have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placewright.io.boundary import FileModel
from placewright.planning.candidates import Outcome, Status
from placewright.planning.contract import Direction


class CandidateEntry(FileModel):
    """One planner's answer."""

    planner: str
    value: float | None
    status: Status
    outcome: Outcome | None = None
    runtime_s: float
    measured_s: float | None = None
    note: str = ""
    baseline: bool = False


class ResultFile(FileModel):
    """All but the plan, which a wing adds; nothing of it is needed to read a plan back."""

    schema_version: Literal[1] = 1
    problem: str = ""
    problem_hash: str = ""
    planner: str = ""
    objective: str = ""
    value: float | None = None
    unit: str = ""
    direction: Direction = Direction.MINIMISE
    lower_bound: float | None = None
    upper_bound: float | None = None
    gap: float | None = None
    status: str = ""
    runtime_s: float = 0.0
    compile_s: float = 0.0
    seed: int = 0
    placewright: str = ""
    python: str = ""
    note: str = ""
    bounds: dict[str, float | None] = Field(default_factory=dict)
    candidates: tuple[CandidateEntry, ...] = ()
