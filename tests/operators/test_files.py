"""Problem and plan files: read back equal, and refusals that name the field."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import InputError, PlacewrightError, UnknownNameError
from placewright.operators.conformance import named_instances, random_problem, with_random_views
from placewright.operators.files import (
    plan_json,
    problem_json,
    read_problem,
    read_proposal,
    result_json,
    write_problem,
)
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.solving import solve
from tests.corruption import HOSTILE, value_paths, with_value


def same(a: OperatorProblem, b: OperatorProblem) -> bool:
    """Whether all fields are equal."""
    keys = [f.name for f in fields(a) if f.name != "topology"]
    return all(np.array_equal(getattr(a, key), getattr(b, key)) for key in keys)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("name", named_instances())
def test_a_problem_is_read_back_equal(tmp_path: Path, name: str, suffix: str) -> None:
    """Every array, every name, infinities and the hash survive."""
    problem = named_instances()[name]
    again = read_problem(write_problem(problem, tmp_path / f"problem{suffix}"))
    assert same(problem, again)
    assert again.hash() == problem.hash()


def test_random_problems_are_read_back_equal(tmp_path: Path) -> None:
    """The same for forty random ones."""
    for seed in range(40):
        problem = with_random_views(random_problem(seed), seed)
        assert same(problem, read_problem(write_problem(problem, tmp_path / "p.json")))


def test_views_count_in_the_hash_only_where_there_are_any() -> None:
    """So that problems from before views keep their hash, which is written down here."""
    diamond = named_instances()["diamond"]
    assert diamond.hash() == "ba2efd0117dad4b0e547df6410b1673309fcc5cb88e3a72a1893e4927c7b4e4d"
    assert diamond.replace(alias_of=[-1, -1, -1]).hash() == diamond.hash()
    assert diamond.replace(alias_of=[-1, 0, -2]).hash() != diamond.hash()


@pytest.mark.parametrize("planner", ["heft", "random"])
@pytest.mark.parametrize("links", ["free", "contended"])
def test_a_plan_is_read_back_equal(tmp_path: Path, planner: str, links: str) -> None:
    """Placement, order and dispatch survive, and the judge says the same."""
    problem = random_problem(5, links=links)
    result = solve(problem, planner)
    plan = read_proposal(result.save(tmp_path / "plan.json"), problem).plan
    assert np.array_equal(plan.placement, result.plan.placement)
    assert plan.dispatch == result.plan.dispatch
    if result.plan.order is None:
        assert plan.order is None
    else:
        assert np.array_equal(plan.order, result.plan.order)
    assert judge(problem, plan).value == result.value


def test_a_result_says_what_the_design_asks_for(tmp_path: Path) -> None:
    """All keys of the design, valid JSON without infinities, spans for every operator."""
    problem = named_instances()["diamond"]
    data = json.loads(solve(problem, "heft").save(tmp_path / "plan.json").read_text())
    keys = "problem planner objective value lower_bound gap status runtime_s seed plan"
    assert set(keys.split()) <= data.keys()
    assert data["plan"]["placement"].keys() == set(problem.operator_names)
    assert {span["op"] for span in data["plan"]["schedule"]} == set(problem.operator_names)
    assert max(span["end_s"] for span in data["plan"]["schedule"]) == data["value"]


def changed(tmp_path: Path, change: dict[str, object]) -> Path:
    """A plan file with a change inside ``plan``."""
    problem = named_instances()["diamond"]
    data = result_json(solve(problem, "heft"))
    data["plan"] = data["plan"] | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placement": dict.fromkeys(("op0", "op1", "op2", "opp3"), "dev0")}, "mean 'op3'"),
        ({"placement": {f"op{i}": "dve0" for i in range(4)}}, "did you mean 'dev0'"),
        ({"order": ["op0", "op1", "op2", "opp3"]}, "did you mean 'op3'"),
        ({"plcement": {}}, "did you mean 'placement'"),
    ],
)
def test_unknown_names_offer_the_nearest(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Operators, devices and keys that do not exist."""
    with pytest.raises(UnknownNameError) as error:
        read_proposal(changed(tmp_path, change), named_instances()["diamond"])
    assert message in str(error.value)
    assert "plan.json" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placement": {"op0": "dev0"}}, r"3 of 4 there not in it: op1(.|\n)*--training"),
        ({"placement": {"op0": "dev0", "op1": "dev0"}}, "2 of 4 are missing"),
        ({"placement": {f"relu{i}": "dev0" for i in range(2)}}, "2 of its 2 operators are not in"),
        ({"placement": {f"op{i}": "gpu" for i in range(4)}}, r"it has gpu; .*dev0(.|\n)*--on"),
        ({"order": ["op0", "op0", "op1", "op2"]}, "every operator once"),
        ({"dispatch": "sometimes"}, "dispatch"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Missing operators, bad orders, bad words."""
    with pytest.raises(InputError, match=message):
        read_proposal(changed(tmp_path, change), named_instances()["diamond"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute_s": [[1.0, -2.0]] * 4}, r"compute_s\[0\]\[1\]"),
        ({"compute_s": [[1.0, float("nan")]] * 4}, r"compute_s\[0\]\[1\]"),
        ({"compute_s": [[1.0, 2.0], [1.0]]}, "unlike length"),
        ({"compute_s": [[1.0, 2.0, 3.0, 4.0]] * 2}, r"compute_s has the wrong shape.*\(2, 4\)"),
        ({"operators": [], "compute_s": [], "tensors": []}, "needs operators and devices"),
        ({"latency_s": [[0.0]]}, "latency_s has the wrong shape"),
        ({"links": "some"}, "links"),
        ({"conpute_s": []}, "did you mean 'compute_s'"),
        ({"pinned": ["dev7", None, None, None]}, "unknown device 'dev7'"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_a_bad_problem_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """The error names the file and the field."""
    path = tmp_path / "problem.json"
    data = json.loads(write_problem(named_instances()["diamond"], path).read_text())
    path.write_text(json.dumps(data | change))
    with pytest.raises(InputError, match=message) as error:
        read_problem(path)
    assert "problem.json" in str(error.value)


def test_star_problems_are_read_back_equal(tmp_path: Path) -> None:
    """Who pays, what is backward, contiguity and calls survive, and change the hash."""
    plain = random_problem(3, most_operators=8)
    star = plain.replace(
        communication="star",
        host_seconds_per_byte=np.arange(plain.m) * 0.5,
        contiguous=True,
        is_backward=np.arange(plain.n) % 2 == 1,
        calls=2,
    )
    again = read_problem(write_problem(star, tmp_path / "p.json"))
    assert same(star, again)
    assert again.hash() == star.hash() != plain.hash()


def test_older_files_are_read_and_keep_their_hash(tmp_path: Path) -> None:
    """A file without the later fields is a problem over links, not contiguous."""
    problem = random_problem(4)
    path = write_problem(problem, tmp_path / "p.json")
    later = ("communication", "host_seconds_per_byte", "contiguous", "backward", "calls")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: v for key, v in data.items() if key not in later}))
    assert same(problem, read_problem(path))
    assert read_problem(path).hash() == problem.hash()


def test_kinds_and_shapes_are_read_back(tmp_path: Path) -> None:
    """Node features survive, scalars too, and change the hash; a wrong one is refused."""
    plain = named_instances()["diamond"]
    shapes = ((2, 3), (), (4,), (0, 7))
    known = plain.replace(operator_kinds=("a", "b", "", "a"), output_shapes=shapes)
    again = read_problem(write_problem(known, tmp_path / "p.json"))
    assert again.operator_kinds == known.operator_kinds
    assert again.output_shapes == shapes
    assert again.hash() == known.hash() != plain.hash()
    assert again.replace(objective="throughput").output_shapes == shapes
    with pytest.raises(InputError, match="operator_kinds has the wrong length"):
        plain.replace(operator_kinds=("a",))
    with pytest.raises(
        InputError, match=r"output_shapes\[1\]\[0\] of .*must be a whole number >= 0"
    ):
        plain.replace(output_shapes=((1,), (-1,), (), ()))


PROBLEM = named_instances()["diamond"].replace(
    pinned=[0, -1, -1, -1], contiguous=True, communication="star", calls=2
)
PLAN = OperatorPlan(np.array([0, 1, 1, 0]), call=np.array([0, 0, 1, 1]))
FILES: dict[str, Any] = {
    "problem": problem_json(PROBLEM),
    "plan": {"plan": plan_json(PROBLEM, PLAN, judge(PROBLEM, PLAN))},
}
WORSE = (*HOSTILE, "op1", "dev0", "1e999", [[-1]], {"op0": 10**30})


def reading_error(kind: str, data: Any, file: Path) -> PlacewrightError | None:
    """The error of reading it; ``None`` for a plan, or for a problem that is read back equal."""
    file.write_text(json.dumps(data))
    try:
        problem = PROBLEM if kind == "plan" else read_problem(file)
        if kind == "plan":
            read_proposal(file, PROBLEM)
    except PlacewrightError as error:
        return error
    assert read_problem(write_problem(problem, file)).hash() == problem.hash()
    return None


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_valid_before_corruption(kind: str, tmp_path: Path) -> None:
    """Else nothing below would mean anything."""
    assert reading_error(kind, FILES[kind], tmp_path / "file.json") is None


@settings(
    derandomize=True,
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_corrupted_values_are_named(tmp_path: Path, data: st.DataObject) -> None:
    """One or two values replaced or missing: the place in front, and what to do."""
    kind = data.draw(st.sampled_from(tuple(FILES)))
    made = FILES[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        if found := value_paths(made):  # else all of it is gone already
            path = data.draw(st.sampled_from(found))
            made = with_value(made, path, data.draw(st.sampled_from((..., *WORSE))))
    file = tmp_path / "file.json"
    error = reading_error(kind, made, file)
    if error is not None:
        assert error.what
        assert error.where.startswith((str(file), f"plan for {PROBLEM.name}"))
        assert "next: " in str(error)
