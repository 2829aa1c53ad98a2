"""Planners of other distributions: the documented example, installed on a path of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewright.operators.conformance import named_instances
from placewright.operators.planners import planners, portfolio
from placewright.planning.solving import solve
from placewright.testing import PlannerConformance
from tests.published import ROOT

GROUP = "placewright.operators.planners"


def install(folder: Path) -> None:
    """What pip would install: the module of the page on planners, and its metadata."""
    page = (ROOT / "docs" / "how-to" / "write-a-planner.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    entry = re.search(r"^greedy = \"(.*)\"$", page, re.MULTILINE)
    assert code is not None
    assert entry is not None
    assert f'"{GROUP}"' in page
    (folder / "greedy_plugin.py").write_text(code.group(1), encoding="utf-8")
    info = folder / "greedy_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ngreedy = {entry.group(1)}\n")


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("greedy_plugin", None)


def test_the_plug_in_is_a_planner_like_any_other() -> None:
    """In the list, in the portfolio of ``auto``, and by its name."""
    problem = named_instances()["diamond"]
    assert planners(problem)["greedy"].name == "greedy"
    assert "greedy" in portfolio(problem)
    assert solve(problem, "greedy").planner == "greedy"


class TestGreedy(PlannerConformance):
    """The kit, inherited as the page says."""

    named = "greedy"
