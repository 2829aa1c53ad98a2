"""Scripts of the how-to pages run as they stand, and are as short as the pages promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs" / "how-to"


def scripts(page: str) -> dict[str, str]:
    """The first Python block of every section."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^#+ ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        if "```python\n" in body:
            found[title] = body.split("```python\n", 1)[1].split("```", 1)[0]
    return found


FIRST_HOUR = scripts("first-hour.md")
NEEDED = {"Draw a schedule": "pandas", "Run a benchmark": "pandas", "Learn a policy": "torch"}


def run(code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute a script in a folder of its own; what it defined."""
    monkeypatch.chdir(folder)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), made)
    return made


def test_there_are_ten_of_at_most_fifteen_lines() -> None:
    """Without the blank lines that the formatter wants."""
    assert len(FIRST_HOUR) == 10
    lines = {title: len(re.findall(r"\S.*", code)) for title, code in FIRST_HOUR.items()}
    assert {title: count for title, count in lines.items() if count > 15} == {}


@pytest.mark.parametrize("title", FIRST_HOUR)
def test_scripts_of_the_first_hour_run(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged, without a warning."""
    if title in NEEDED:
        pytest.importorskip(NEEDED[title])
    made = run(FIRST_HOUR[title], title, tmp_path, monkeypatch)
    if title == "Draw a schedule":
        assert (tmp_path / "schedule.svg").read_text().startswith("<svg xmlns=")
    if title == "Plan for an objective of your own":
        assert made["result"].value <= made["energy"](made["quick"].judgement)


def test_the_search_with_the_judge_finds_no_worse_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEFT's plan, what the search makes of it, and what `auto` makes of that."""
    (code,) = scripts("search-with-the-judge.md").values()
    made = run(code, "search", tmp_path, monkeypatch)
    # The search orders operators by the judge's rule, HEFT's plan has an order of its own.
    start = made["Judge"](made["problem"]).many([made["heft"].plan.placement])[0]
    assert made["value"] <= start
    assert made["result"].value <= made["value"] * (1 + 1e-12)
    assert len(re.findall(r"\S.*", code)) <= 30
