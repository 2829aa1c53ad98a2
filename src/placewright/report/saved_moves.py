"""The page of a saved plan of wing 3."""

from __future__ import annotations

from pathlib import Path

from placewright.report.saved_result import (
    Data,
    saved_candidates,
    saved_facts,
    saved_name,
    saved_provenance,
    saved_title,
)
from placewright.report.sheet import facts, heading, section, sheet
from placewright.report.svg import tag, text
from placewright.report.text import plain_table


def saved_moves_page(data: Data, path: Path) -> str:
    """The page of wing 3's plan file.

    Raises
    ------
    InputError
        A field that is missing or wrong.
    """
    from placewright.io.boundary import validate
    from placewright.samples.formats.schema import SamplePlanFile

    plan = validate(SamplePlanFile, data, where=str(path)).plan
    rows = [(m.source, m.target, m.sample_class or "", str(m.samples)) for m in plan.moves]
    told = f"{sum(m.samples for m in plan.moves)} samples move, the most first."
    rows.sort(key=lambda row: -int(row[-1]))
    table = plain_table(("from", "to", "class", "samples"), rows, "   r")
    return sheet(
        saved_title(data, path),
        heading(saved_name(data, path), f"samples plan, from {path.name}"),
        facts(saved_facts(data)),
        section("Moves", told, tag("pre", text(table), class_="scroll")),
        saved_candidates(data),
        saved_provenance(data),
    )
