"""What every saved plan says about itself, as parts of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placewright.planning.result import Candidate, Status
from placewright.report.candidates import Contest
from placewright.report.sheet import definitions, section
from placewright.report.text import percent, seconds

Data = dict[str, Any]
"""Checked by the wing's schema."""


def saved_name(data: Data, path: Path) -> str:
    """Of the problem, or of the file."""
    return str(data.get("problem") or path.stem)


def saved_title(data: Data, path: Path) -> str:
    """Of the page."""
    return f"{saved_name(data, path)}: {seconds(_number(data.get('value')))}"


def saved_facts(data: Data) -> Iterator[tuple[str, str, str]]:
    """Value, bound, gap, status and planner."""
    yield "predicted", seconds(_number(data.get("value"))), "lead"
    yield "lower bound", seconds(_number(data.get("lower_bound"))), ""
    yield "gap", percent(_number(data.get("gap"))), ""
    yield "status", str(data.get("status", "-")), ""
    yield "planner", str(data.get("planner", "-")), ""


def saved_candidates(data: Data) -> str:
    """The table of all that was tried, empty where it was one."""
    tried = tuple(
        Candidate(
            str(c["planner"]),
            _number(c["value"]),
            Status(c["status"]),
            _number(c["runtime_s"]),
            str(c.get("note", "")),
        )
        for c in data.get("candidates") or []
    )
    if len(tried) < 2:
        return ""
    value, bound = (_number(data.get(key)) for key in ("value", "lower_bound"))
    contest = Contest(tried, str(data.get("planner", "")), value, bound)
    return section("Candidates", "Every plan that was tried, by one judge.", contest.table())


def saved_provenance(data: Data) -> str:
    """Whatever else is one word or number."""
    words = {k: str(v) for k, v in data.items() if not isinstance(v, dict | list)}
    return section("Provenance", "", definitions(words))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
