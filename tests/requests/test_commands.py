"""The verbs: plan, compare, simulate with its log, explain, capacity, show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.io.stored import write_data
from placewright.planning.solving import solve
from placewright.requests.capacity import carried
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.files import read_problem, write_problem
from placewright.requests.problem import RequestProblem
from placewright.requests.stream import poisson, stream_of
from tests.cli.run_cli import run_cli
from tests.published import published
from tests.requests.test_files import base
from tests.requests.test_readers import SERVING

Captured = pytest.CaptureFixture[str]


def test_plan_simulate_and_explain_a_file(tmp_path: Path, capsys: Captured) -> None:
    """The saved plan is worth what it was; the page is drawn; a request is explained."""
    problem, plan, page = (tmp_path / name for name in ("p.json", "plan.json", "page.html"))
    write_problem(random_problem(5), problem)
    made = run_cli(
        capsys, "requests", "plan", problem, "-o", plan, "--report", page, "-f", "json"
    ).data
    again = run_cli(capsys, "requests", "simulate", problem, plan, "-f", "json").data
    assert (again["value"], again["plan"]) == (made["value"], made["plan"])
    assert made["effective_accuracy"] == made["value"] <= made["upper_bound"] + 1e-9
    for title in ("Over load", "Price of machine time", "Servers", "Regret to the bound"):
        assert title in page.read_text()
    report = run_cli(capsys, "requests", "explain", problem, plan, "3", "-f", "json").data
    assert report["request"] == 3
    assert report["options"]
    assert run_cli(capsys, "requests", "explain", problem, plan, "999").code == 1
    assert "rolling" in run_cli(capsys, "requests", "compare", problem).out
    for file in (problem, plan):
        assert run_cli(capsys, "show", file, "-o", page, "--no-open").code == 0


def test_a_published_scenario_is_played_and_logged(tmp_path: Path, capsys: Captured) -> None:
    """The log alone gives the numbers that were printed."""
    source, log = f"serving:{published('serving/proteus_a.json')}", tmp_path / "log.jsonl"
    words = ["requests", "simulate", source, "--scenario", "twitter_4", "--planner", "edf-accurate"]
    report = run_cli(capsys, *words, "--seed", 0, "--log", log, "-f", "json").data
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [x for x in lines if x["server"] and x["end_s"] <= x["due_s"]]
    assert len(kept) / 40_545 == pytest.approx(report["success_rate"])
    assert sum(x["accuracy"] for x in kept) / 40_545 == pytest.approx(report["effective_accuracy"])
    assert report["success_rate"] == pytest.approx(0.909977, abs=1e-6)
    assert sum(x["server"] is None for x in lines) == 3650


def test_arrivals_of_a_scenario_have_a_seed(tmp_path: Path, capsys: Captured) -> None:
    """That of `--arrival-seed`; without it `simulate` takes the policy's."""
    file = write_data(SERVING, tmp_path / "s.json")

    def arrivals(verb: str, *words: object) -> str:
        words = (f"serving:{file}", "--scenario", "s", "--planner", "edf-fastest", *words)
        report = run_cli(capsys, "requests", verb, *words, "-f", "json").data
        return str(report["problem_hash"])

    third = arrivals("plan", "--arrival-seed", 3)
    assert third not in (arrivals("plan"), arrivals("plan", "--seed", 3))
    assert third == arrivals("compare", "--arrival-seed", 3)
    assert third == arrivals("simulate", "--arrival-seed", 3) == arrivals("simulate", "--seed", 3)


def test_capacity_names_a_rate_and_a_server(tmp_path: Path, capsys: Captured) -> None:
    """A server of 8 ms alone carries at most 125 requests a second; another carries more."""
    entry = base()
    entry["servers"][0]["latency"]["small"] = ["8ms"]
    file = write_data(entry | {"duration": 60}, tmp_path / "p.json")
    words = ["requests", "plan", file, "--target-success", "0.99", "-f", "json"]
    words += ["--report", str(tmp_path / "x.html"), "--trace", str(tmp_path / "x.json")]
    output = run_cli(capsys, *words)
    assert output.err.count("not for --target-success") == 2
    report = output.data
    assert 40 < report["rate_per_s"] < 125
    assert report["success_rate"] >= 0.99
    assert report["add"][0]["server"] == "a"
    assert report["add"][0]["more_per_s"] > 0
    assert [each["as_accurate_as"] for each in report["add_variant"]] == ["small"]
    assert report["add_variant"][0]["more_per_s"] > 0


@pytest.mark.parametrize("deadline", ["10s", "1000s"])
def test_capacity_is_a_load_that_goes_on(tmp_path: Path, deadline: str) -> None:
    """A burst that is answered after its end, before a late deadline, is none.

    No load above 125 requests a second is carried for long by a server that needs 8 ms for each.
    """
    entry = base()
    entry["servers"][0]["latency"]["small"] = ["8ms"]
    entry["arrivals"][0]["deadline"] = deadline
    problem = read_problem(write_data(entry | {"duration": 60}, tmp_path / "p.json"))
    assert 60 < carried(problem, 0.9, "edf-fastest") < 1.05 * 125 / 0.9


def test_capacity_is_of_the_servers_not_of_the_stream() -> None:
    """1 ms a request: whatever the rate in the file; a stream that is no load for them is no."""
    service = two_servers(noise=0.0).subset(np.array([0]), np.array([0]))
    service = service.replace(latency_s=service.latency_s[:, :, :2] / 10)
    found = []
    for rate in (500.0, 1.0):
        stream = stream_of(poisson(np.random.default_rng(0), rate, 1500 / rate), 0.02)
        problem = RequestProblem(service, stream, 1500 / rate)
        found.append(carried(problem, 0.9, "edf-fastest"))
    assert found[0] == pytest.approx(found[1], rel=0.03)
    assert 900 < found[0] < 1300
    with pytest.raises(InputError, match="target must be between 0 and 1"):
        carried(problem, 1.5)
    few = RequestProblem(two_servers(), stream_of([0.0, 0.5], 1.0), 1.0)
    with pytest.raises(InputError, match="stream is too short"):
        carried(few, 1e-9)


def test_more_requests_at_time_0_than_are_shown(tmp_path: Path) -> None:
    """The page is drawn of the first ones; a server of many is not left out silently."""
    service = two_servers()
    service = service.subset(np.zeros(20, dtype=np.int64), np.arange(2), tuple(map(str, range(20))))
    problem = RequestProblem(service, stream_of(np.zeros(4001), 0.1), 1.0)
    result = solve(problem, "edf-fastest", bounds=False)
    assert "Over load" in result.report(tmp_path / "p.html").read_text()
    assert "... and 4 more servers" in repr(result)


def test_capacity_names_candidates(tmp_path: Path, capsys: Captured) -> None:
    """Nothing but the capacity sees candidates; what each adds has a name and a success rate."""
    entry = base()
    entry["servers"][0]["latency"] = {"small": ["8ms"], "tiny": ["2ms"]}
    entry["variants"].append(entry["variants"][0] | {"name": "tiny", "candidate": True})
    entry["servers"].append({"name": "big", "latency": {"small": ["1ms"]}, "candidate": True})
    file = write_data(entry | {"duration": 20}, tmp_path / "p.json")
    words = ["requests", "plan", file, "--target-success", "0.9", "-f", "json"]
    report = run_cli(capsys, *words).data
    assert [each["server"] for each in report["add"]] == ["big", "a"]
    assert [each["variant"] for each in report["add_named_variant"]] == ["tiny"]
    assert report["best_addition"] == "big"
    for each in (*report["add"], *report["add_named_variant"]):
        assert each["rate_per_s"] > report["rate_per_s"]
        assert each["success_rate"] >= 0.9
        assert each["success_now"] >= report["success_now"]
    short = run_cli(capsys, "requests", "simulate", file, "-f", "json").data
    assert list(short["plan"]["summary"]["servers"]) == ["a"]
    entry["variants"][-1]["family"] = "other"
    file = write_data(entry, tmp_path / "p.json")
    assert "tiny" in run_cli(capsys, *words).err


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "serving:nowhere.json", "--scenario", "x"],
        ["simulate", "{file}", "--scenario", "x"],
        ["simulate", "{file}", "--planner", "jf2"],
        ["simulate", "{file}", "--planner", "ms"],
        ["plan", "{file}", "--target-success", "0"],
        ["plan", "{file}", "--target-success", "0.5", "--time-limit", "1"],
        ["simulate", "{file}", "{plan}", "--planner", "edf-fastest"],
        ["simulate", "{file}", "{plan}", "--seed", "5"],
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, capsys: Captured, words: list[str]) -> None:
    """With a message and a next step, never a traceback."""
    file = write_data(base(), tmp_path / "p.json")
    plan = write_data({"plan": {"policy": "rolling"}}, tmp_path / "plan.json")
    output = run_cli(capsys, "requests", *[w.format(file=file, plan=plan) for w in words])
    assert output.code == 1
    assert "next:" in output.err
    assert "Traceback" not in output.err


def test_infeasible_targets_exit_with_3(tmp_path: Path, capsys: Captured) -> None:
    """A deadline that no server keeps."""
    entry = base()
    entry["arrivals"][0]["deadline"] = "1ms"
    file = write_data(entry, tmp_path / "p.json")
    assert run_cli(capsys, "requests", "plan", file, "--target-success", "0.9").code == 3
