"""Device maps among the other problems: conformance, files, comparison, pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InputError
from placewright.files import read, write
from placewright.io.boundary import validate
from placewright.layers.conformance import random_map
from placewright.layers.devicemap import DEVICE_MAP
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.devicemap.files import (
    VIEWS,
    MapPlanFile,
    problem_json,
    read_problem,
    read_proposal,
)
from placewright.layers.devicemap.judge import MapJudgement, judge
from placewright.layers.devicemap.planners import plan_map
from placewright.layers.devicemap.problem import MapProblem
from placewright.planning.candidates import Status
from placewright.testing import PlannerConformance, WingConformance
from tests.cli.run_cli import run_cli
from tests.layers.devicemap.models import tiny
from tests.layers.devicemap.test_planners import equal, every_plan


class TestWing(WingConformance):
    wing = DEVICE_MAP


class TestExact(PlannerConformance):
    named, wing = "exact", DEVICE_MAP


class TestAccelerate(PlannerConformance):
    named, wing = "accelerate-auto", DEVICE_MAP


def test_compared_with_what_others_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem file, a table of all planners, a plan that is simulated and shown."""
    problem, plan, page = (tmp_path / name for name in ("problem.json", "plan.json", "page.html"))
    write(random_map(9), problem)
    assert read(problem).hash() == random_map(9).hash() == read(f"devicemap:{problem}").hash()
    ran = run_cli(capsys, "layers", "compare", problem, "-o", plan, "-f", "json")
    assert ran.code == 0, ran.err
    assert ran.data["status"] == "OPTIMAL"
    rivals = {each["planner"]: each["baseline"] for each in ran.data["candidates"]}
    assert rivals["exact"] is False
    assert rivals["accelerate-auto"] is rivals["best-single"] is True
    again = run_cli(capsys, "layers", "simulate", problem, plan, "-f", "json")
    assert again.data["value"] == pytest.approx(ran.data["value"])
    assert run_cli(capsys, "show", plan, "--no-open", "-o", page).code == 0
    assert "Who holds which layers" in page.read_text()


def test_equal_plans_are_even() -> None:
    """Of all best ones on the same devices, that whose shares of memory differ least."""
    for seed in range(12):
        problem = random_map(seed)
        alike = equal(3, memory_bytes=float(problem.cluster.devices[0].memory_bytes))
        problem = problem.replace(cluster=alike)
        best = plan_map(problem).best
        if best is None:
            continue
        order = [each.device for each in best.plan.ranges]
        made = (judge(problem, plan) for plan in every_plan(problem))
        rivals = [
            each
            for each in made
            if each.feasible
            and each.value <= best.value * (1 + 1e-9)
            and [x.device for x in each.plan.ranges] == order
        ]
        assert unevenness(best) <= min(map(unevenness, rivals)) * (1 + 1e-6)
    many = plan_map(MapProblem(tiny(14), equal(8, memory_bytes=120.0), 1, memory_share=1.0)).best
    assert many is not None
    counts = [each.end - each.start for each in many.plan.ranges]
    assert len(counts) > 2
    assert max(counts) - min(counts) <= 1


def unevenness(judged: MapJudgement) -> float:
    """Sum of squares of the shares of memory that devices use."""
    room = judged.problem.capacity
    pairs = zip(judged.plan.ranges, judged.costs, strict=True)
    return sum((cost.memory_bytes / float(room[each.device])) ** 2 for each, cost in pairs)


def test_a_map_is_a_result(tmp_path: Path) -> None:
    """With candidates, a page that draws it, and a file that is read back."""
    found = device_map(tiny(14), equal(3, memory_bytes=500.0), context=16)
    assert found.result.value == found.judgement.value
    assert found.result.status is Status.OPTIMAL
    page = found.report(tmp_path / "map.html").read_text()
    assert all(name in page for name in (*found.ranges, "KV caches", "accelerate-auto"))
    data = found.as_json()
    validate(MapPlanFile, data, where="plan")
    assert data["plan"]["ranges"][0]["layers"][0] == "embed"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert read_proposal(path, found.problem).plan == found.judgement.plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": 0}, "context"),
        ({"dtype": "int3"}, "unknown number format"),
        ({"objective": "speed"}, "objective"),
        ({"users": -1}, "users"),
        ({"memory_share": 2}, "memory_share"),
        ({"language_model": {"name": "m", "hidden": 1, "layers": []}}, "layers"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_files_that_are_wrong(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    """By the field."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem_json(random_map(1)) | change))
    with pytest.raises(InputError, match=words):
        read_problem(path)


def test_a_plan_written_by_hand_has_a_page() -> None:
    """Devices and their layers are enough; what is not there is not drawn as nought."""
    ranges = [{"device": "a", "start": 0, "end": 3}, {"device": "b", "start": 3, "end": 4}]
    data = {"schema_version": 1, "value": 1.5, "plan": {"ranges": ranges, "token_s": 0.01}}
    page = VIEWS.saved_page("plan", data, Path("plan.json"))
    assert "10 ms per token of one stream, - tokens/s of all users" in page
    assert VIEWS.parts(data) == {"a": "0 to 2", "b": "3"}
