"""dag files: values, and refusals with file and field."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.operators.files import read_problem, write_problem
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.readers.task_graphs import read_dag
from placewright.operators.views import saved_page
from placewright.planning.solving import solve
from placewright.planning.views import compare_table
from placewright.report.text import elapsed, seconds
from tests.published import published

SMALL: dict[str, Any] = {
    "nodes": [{"name": "a", "speed": 1.0}, {"name": "b", "speed": 2.0}],
    "links": [{"source": "a", "target": "b", "speed": 4.0}],
    "tasks": [{"name": "x", "cost": 6.0}, {"name": "y", "cost": 3}, {"name": "z", "cost": 0}],
    "dependencies": [
        {"source": "x", "target": "y", "size": 8.0},
        {"source": "x", "target": "z", "size": 2.0},
    ],
}


def written(tmp_path: Path, **changes: Any) -> Path:
    """SMALL with changes, as a file."""
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL | changes))
    return path


def test_costs_are_divided_by_speeds(tmp_path: Path) -> None:
    """Time is cost / speed; every dependency is a tensor; a link is two channels."""
    problem = read_dag(written(tmp_path))
    assert problem.name == "small"
    assert problem.compute_s.tolist() == [[6, 3], [3, 1.5], [0, 0]]
    assert problem.seconds_per_byte.tolist() == [[0, 0.25], [0.25, 0]]
    assert problem.channel_names == ("a->b", "b->a")
    assert problem.tensor_names == ("x->y", "x->z")
    assert problem.links == "free"
    assert judge(problem, OperatorPlan([0, 1, 1])).value == 6 + 2 + 1.5
    contended = read_dag(written(tmp_path), links="contended")
    sent = judge(contended, OperatorPlan([0, 1, 1])).transfers
    assert sent.end_s.tolist() == [8, 8.5]


def test_numbers_of_a_task_graph_are_shown_without_units(tmp_path: Path) -> None:
    """In every table and on every page, also of the saved problem and plan; clocks have seconds."""
    problem = read_dag(written(tmp_path))
    result = solve(problem, "heft")
    problem_file, plan_file = tmp_path / "p.json", tmp_path / "plan.json"
    write_problem(problem, problem_file)
    result.save(plan_file)
    again = read_problem(problem_file)
    assert again.dimensionless
    assert again.hash() == problem.hash() == problem.replace(dimensionless=False).hash()
    shown = {
        "problem": repr(problem),
        "comparison": compare_table(result, terminal=False),
        "table": repr(result),
        "explanation": str(result.explain("x")),
        "page": result.report(tmp_path / "page.html").read_text(),
        "fragment": result._repr_html_(),
        "problem page": saved_page("problem", json.loads(problem_file.read_text()), problem_file),
        "plan page": saved_page("plan", json.loads(plan_file.read_text()), plan_file),
    }
    clocks = result.runtime_s, result.compile_s, *(c.runtime_s for c in result.candidates)
    took = [elapsed(each) for each in clocks if each > 0]
    for name, text in shown.items():
        rest = reduce(lambda left, real: left.replace(real, ""), took, text)
        found = re.findall(r"\d (?:n|u|m)?s\b|\d (?:[KMGT]i)?B\b", rest)
        assert not found, f"{name}: {found}"
    assert "predicted latency 4.5 by heft" in shown["table"]
    assert seconds(4.5) == "4.5 s"


def test_the_published_files_are_read_whole() -> None:
    """Counts, names and the serial time that stands in the file."""
    path = published("dag/layered_n10000_ccr1.0_s0.json")
    problem, data = read_dag(path), json.loads(path.read_text())
    assert problem.operator_names == tuple(task["name"] for task in data["tasks"])
    assert problem.t == len(data["dependencies"])
    fastest = problem.compute_s.sum(axis=0).min()
    assert fastest == pytest.approx(data["lower_bounds"]["serial_fastest"])
    assert np.isinf(problem.memory_bytes).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": None}, "'tasks' is missing or no list"),
        ({"tasks": []}, "tasks"),
        ({"nodes": [{"name": "a"}, {"name": "b", "speed": 1}]}, r"nodes\[0\]: 'speed' is missing"),
        (
            {"nodes": [{"name": "a", "speed": 0}]},
            r"nodes\[0\]: 'speed' must be a finite number > 0",
        ),
        ({"tasks": [{"name": "x", "cost": -1}]}, r"tasks\[0\]: 'cost' must be .* >= 0 \(got -1\)"),
        ({"tasks": [{"name": "x", "cost": float("nan")}]}, r"tasks\[0\]: 'cost'"),
        ({"tasks": [{"name": "x", "cost": "6"}]}, r"tasks\[0\]: 'cost'"),
        ({"tasks": [{"name": 3, "cost": 6}]}, r"tasks\[0\]: 'name' must be a string"),
        ({"tasks": ["x"]}, r"tasks\[0\]: 'name' is missing"),
        ({"tasks": [{"name": "x", "cost": 6}] * 2}, "'x' is used twice"),
        ({"dependencies": [{"source": "x", "target": "yy", "size": 1}]}, "did you mean 'y'"),
        ({"tasks": [{"name": "x", "cost": 10**400}]}, "the number 10.* is too large"),
        ({"dependencies": [{"source": "x", "target": "y"}]}, r"dependencies\[0\]: 'size'"),
        ({"links": [{"source": "a", "target": "c", "speed": 1}]}, r"links\[0\]: unknown node 'c'"),
        ({"links": [{"source": "a", "target": "a", "speed": 1}]}, "must join two nodes"),
        ({"links": [*SMALL["links"], *SMALL["links"]]}, r"links\[1\]: the pair is linked twice"),
        (
            {
                "dependencies": [
                    {"source": "x", "target": "y", "size": 1},
                    {"source": "y", "target": "x", "size": 1},
                ]
            },
            "cycle through operator 'x'",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The error names the file and the field."""
    with pytest.raises(InputError, match=message) as error:
        read_dag(written(tmp_path, **changes))
    assert "small" in str(error.value)


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    """No such file, no JSON, no object."""
    with pytest.raises(InputError, match="cannot be read"):
        read_dag(tmp_path / "none.json")
    path = tmp_path / "bad.json"
    for content in ("{", "[1]"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"bad\.json"):
            read_dag(path)


def test_links_other_than_free_and_contended_are_refused(tmp_path: Path) -> None:
    """A word that is neither."""
    with pytest.raises(InputError, match="'some'"):
        read_dag(written(tmp_path), links="some")


def test_nodes_without_a_link_can_not_talk(tmp_path: Path) -> None:
    """Missing pairs are infinitely far."""
    problem = read_dag(written(tmp_path, links=[]))
    assert problem.seconds_per_byte.tolist() == [[0, np.inf], [np.inf, 0]]
    assert problem.channel.tolist() == [[-1, -1], [-1, -1]]


def test_kinds_of_tasks_are_kept_and_change_no_plan(tmp_path: Path) -> None:
    """A task that says no kind has an empty one; a number is refused by its place."""
    tasks = [dict(SMALL["tasks"][0], kind="einsum"), *SMALL["tasks"][1:]]
    problem, plain = read_dag(written(tmp_path, tasks=tasks)), read_dag(written(tmp_path))
    assert problem.operator_kinds == ("einsum", "", "")
    assert plain.operator_kinds == ()
    places = [solve(x, "heft").plan.placement.tolist() for x in (problem, plain)]
    assert places[0] == places[1]
    tasks[1] = dict(tasks[1], kind=3)
    with pytest.raises(InputError, match=r"tasks\[1\]: 'kind' must be a string"):
        read_dag(written(tmp_path, tasks=tasks))
