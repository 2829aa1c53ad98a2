"""``placewright devices``, ``doctor``, ``profile``, ``show`` and ``schema``."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
import yaml

from placewright.cli import sources
from placewright.cluster.cluster import Cluster
from placewright.cluster.files import read_cluster
from placewright.planning.wings import wings
from tests.cli.run_cli import run_cli


def test_devices_writes_a_file_to_start_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A preset as a file is read back equal; JSON and YAML say the same."""
    kept = tmp_path / "mine.yaml"
    output = run_cli(capsys, "devices", "--on", "mixed-8", "-o", kept, "-f", "json")
    assert read_cluster(kept) == Cluster.preset("mixed-8")
    assert output.data == yaml.safe_load(kept.read_text(encoding="utf-8"))
    assert run_cli(capsys, "devices", "--on", kept).out == f"{Cluster.preset('mixed-8')}\n"


def test_devices_is_this_machine_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The first device is the processor."""
    assert run_cli(capsys, "devices", "-f", "json").data["devices"][0]["kind"] == "cpu"


def test_doctor_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, machine, environment, checks."""
    data = run_cli(capsys, "doctor", "-f", "json").data
    assert set(data) == {"versions", "machine", "environment", "checks"}
    assert data["versions"]["python"].count(".") == 2
    assert "python" in run_cli(capsys, "doctor").out


@pytest.mark.parametrize("kind", ["cluster", "graph", "problem", "plan"])
def test_schema_of_every_file(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An object that forbids unknown keys and has a version."""
    schema = run_cli(capsys, "schema", kind).data
    assert schema["additionalProperties"] is False
    assert "schema_version" in schema["properties"]
    assert run_cli(capsys, "schema").data[kind] == schema


def test_show_makes_a_page_of_every_file(
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cluster, graph, problem and plan; the path on stdout; a browser only where asked for."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri) or True)
    files = {name: tmp_path / f"{name}.json" for name in ("graph", "plan")}
    run_cli(capsys, "capture", "tests.cli.models:tower", "-o", files["graph"])
    run_cli(capsys, "operators", "plan", problem_file, "-o", files["plan"])
    run_cli(capsys, "devices", "--on", "edge-duo", "-o", tmp_path / "cluster.yaml")
    for file in (*files.values(), problem_file, tmp_path / "cluster.yaml"):
        page = tmp_path / f"{file.name}.html"
        output = run_cli(capsys, "show", file, "-o", page, "--no-open")
        assert (output.code, output.out) == (0, f"{page}\n")
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert opened == []
    run_cli(capsys, "show", files["plan"], "-o", tmp_path / "again.html")
    assert len(opened) == 1


def test_nodes_and_moves_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wing 3's files have pages too, with who gives how much to whom."""
    nodes, plan, page = (tmp_path / name for name in ("n.yaml", "plan.json", "page.html"))
    run_cli(capsys, "samples", "generate", "mild", "--nodes", "3", "-o", nodes)
    run_cli(capsys, "samples", "plan", nodes, "-o", plan)
    for file, message in ((nodes, "sample"), (plan, "samples move, the most first")):
        assert run_cli(capsys, "show", file, "-o", page, "--no-open").code == 0
        assert message in page.read_text(encoding="utf-8")
    output = run_cli(capsys, "operators", "plan", plan)
    assert (output.code, "is a plan of samples" in output.err) == (1, True)


def test_an_incomplete_plan_file_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who won and what it is worth may be missing."""
    tried = [{"planner": n, "value": 1, "status": "FEASIBLE", "runtime_s": 0} for n in "ab"]
    file, page = tmp_path / "little.json", tmp_path / "page.html"
    file.write_text(json.dumps({"plan": {"placement": {"a": "x"}}, "candidates": tried}))
    assert run_cli(capsys, "show", file, "-o", page, "--no-open").code == 0


def test_show_refuses_unknown_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists and unknown JSON are refused; an invalid plan names its field."""
    for text, message in (
        ("[1]", "its top is a list"),
        ('{"a": 1}', "its keys: a"),
        ('{"plan": {"placement": 3}}', "plan.placement"),
        (
            '{"plan": {"placement": {"a": "x"}, "devices": ["x", "x"], "schedule": '
            '[{"op": "a", "device": "y", "start_s": 0, "end_s": 1}]}}',
            "plan.schedule, operator 'a': unknown device 'y'",
        ),
        (
            '{"plan": {"placement": {}}, "candidates": '
            '[{"planner": "a", "value": 1, "status": "GOOD", "runtime_s": 0}]}',
            "candidates[0].status",
        ),
        ("{", "is not valid JSON"),
    ):
        file = tmp_path / "x.json"
        file.write_text(text)
        output = run_cli(capsys, "show", file, "--no-open", "-o", tmp_path / "x.html")
        assert output.code == 1
        assert message in output.err
        assert "x.json" in output.err


def test_a_saved_page_takes_candidates_without_an_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan files may leave it out, or have null: their schema says so."""
    entry = {"value": 1.0, "status": "FEASIBLE", "runtime_s": 0.0}
    candidates = [{"planner": "a", **entry}, {"planner": "b", **entry, "outcome": None}]
    plan = {"placement": {"x": "d"}, "devices": ["d"]}
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    file.write_text(json.dumps({"plan": plan, "candidates": candidates}))
    output = run_cli(capsys, "show", file, "-o", page, "--no-open")
    assert (output.code, output.err, page.exists()) == (0, "", True)


def test_a_saved_page_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file from elsewhere cannot inject a script."""
    evil = "<script>alert(1)</script>"
    span = {"op": evil, "device": evil, "start_s": 0, "end_s": 1}
    plan = {"placement": {evil: evil}, "devices": [evil], "schedule": [span]}
    file = tmp_path / "evil.json"
    file.write_text(json.dumps({"problem": evil, "planner": evil, "note": evil, "plan": plan}))
    page = tmp_path / "evil.html"
    assert run_cli(capsys, "show", file, "-o", page, "--no-open").code == 0
    assert evil not in page.read_text(encoding="utf-8")


def test_a_problem_is_not_profiled_again(
    problem_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its costs are its own; options that would be ignored are refused."""
    for option in (("--method", "isolated"), ("--table", "kept.json")):
        output = run_cli(capsys, "profile", problem_file, *option)
        assert (output.code, f"{option[0]} is for models and graphs" in output.err) == (1, True)


def test_a_kept_profile_is_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second profile takes its seconds from the table, to the last bit."""
    table = tmp_path / "table.json"
    command = (
        "profile",
        "tests.cli.models:tower",
        "--on",
        "edge-duo",
        "--table",
        table,
        "-f",
        "json",
    )
    first = run_cli(capsys, *command)
    assert (first.code, table.exists()) == (0, True)
    assert run_cli(capsys, *command).data == first.data
    there = table.read_text(encoding="utf-8")
    table.write_text(there.replace('"machine": "', '"machine": "Another '), encoding="utf-8")
    assert "was measured on another machine" in run_cli(capsys, *command).err
    computed = run_cli(capsys, *command[:-4], "--method", "analytic", "-f", "json")
    assert computed.data["operators"] == first.data["operators"]


def test_a_profile_that_cannot_be_kept_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once everything was captured and measured."""
    monkeypatch.setattr(sources, "_built", lambda *_, **__: pytest.fail("was captured"))
    table = tmp_path / "missing" / "t.json"
    output = run_cli(capsys, "profile", "tests.cli.models:tower", "--table", table)
    assert (output.code, "t.json: cannot be written" in output.err) == (1, True)


def test_a_file_of_another_wing_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every wing's problem given to every other one: what it is, and which verb reads it."""
    files = {name: tmp_path / f"{name}.json" for name in wings()}
    for name, wing in wings().items():
        conformance = wing.conformance
        assert conformance is not None
        tiny = next(iter(conformance().tiny_instances().values()))
        wing.files().write_problem(tiny, files[name])
    for name in files:
        for other, path in files.items():
            if other != name:
                output = run_cli(capsys, name, "plan", path)
                assert output.code == 1
                assert f"is a problem of {other}, not a problem of {name}" in output.err
                assert f"placewright {other} plan {path}" in output.err
    output = run_cli(capsys, "layers", "simulate", files["layers"], files["samples"])
    assert "is a problem of samples, not a plan of layers" in output.err


def test_an_error_in_a_cluster_file_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that a cluster, which is what --on takes, is no problem of operators."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("devices: [{name: a}]\nlinks: [{from: a, to: nobody}]\n")
    output = run_cli(capsys, "operators", "plan", "zoo:alexnet", "--on", cluster)
    assert (output.code, "nobody" in output.err) == (1, True)
