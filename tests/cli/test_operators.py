"""``placewright operators``: plan, compare, simulate, explain, run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from safetensors.torch import save_file

from placewright.cli.sources import ELSEWHERE, SCHEMES
from placewright.files import formats
from placewright.operators.conformance import tiny
from placewright.operators.files import write_problem
from tests.cli.models import tower
from tests.cli.run_cli import run_cli
from tests.published import published

PROMISED = {
    "where",
    "problem",
    "planner",
    "objective",
    "value",
    "lower_bound",
    "gap",
    "status",
    "runtime_s",
    "seed",
    "plan",
}


def test_plan_prints_the_promised_object(
    problem_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every key of the design, and a schedule that adds up to the value."""
    output = run_cli(capsys, "operators", "plan", problem_file, "-f", "json", "--seed", 3)
    assert output.code == 0
    assert output.data.keys() >= PROMISED
    plan = output.data["plan"]
    assert set(plan["placement"]) == {"op0", "op1", "op2", "op3"}
    assert set(plan["placement"].values()) <= {"dev0", "dev1"}
    assert max(s["end_s"] for s in plan["schedule"]) == output.data["value"]
    assert {tuple(sorted(s)) for s in plan["schedule"]} == {("device", "end_s", "op", "start_s")}
    for transfer in plan["transfers"]:
        assert set(transfer) == {"tensor", "source", "target", "start_s", "end_s"}
    assert output.data["seed"] == 3


def test_yaml_equals_json(problem_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both formats print the same object."""
    command = ("operators", "plan", problem_file, "--planner", "heft", "-f")
    first = run_cli(capsys, *command, "json").data
    second = yaml.safe_load(run_cli(capsys, *command, "yaml").out)
    for volatile in ("runtime_s", "candidates"):
        first.pop(volatile)
        second.pop(volatile)
    assert first == second


def test_the_table_is_data_and_the_rest_is_notes(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table on stdout; which files were written on stderr, and not with -q."""
    files = [tmp_path / name for name in ("plan.json", "plan.html", "plan.json.gz")]
    flags = ("-o", files[0], "--report", files[1], "--trace", files[2])
    output = run_cli(capsys, "operators", "plan", problem_file, *flags)
    assert "lower bound" in output.out
    assert output.err.splitlines() == [f"wrote {path}" for path in files]
    assert all(path.stat().st_size > 200 for path in files)
    assert run_cli(capsys, "operators", "plan", problem_file, "-q", *flags).err == ""


def test_a_kept_plan_simulates_to_its_value(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The judge says the same of the plan in the file."""
    kept = tmp_path / "plan.json"
    planned = run_cli(capsys, "operators", "plan", problem_file, "-o", kept, "-f", "json").data
    again = run_cli(capsys, "operators", "simulate", problem_file, kept, "-f", "json")
    assert again.code == 0
    assert again.data["value"] == planned["value"]
    assert again.data["plan"]["schedule"] == planned["plan"]["schedule"]


def test_infeasible_exits_with_3_and_the_excess(
    crowded_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For planning, and for simulating a plan."""
    output = run_cli(capsys, "operators", "plan", crowded_file)
    assert output.code == 3
    assert re.search(r"[34] B more than", output.err)
    assert "next:" in output.err
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"plan": {"placement": {"op0": "dev1"}}}))
    assert run_cli(capsys, "operators", "simulate", crowded_file, plan).code == 3


def test_compare_shows_every_planner(
    problem_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, the best first, the chosen one marked; those that cannot take the problem are
    named below; only those that are named.
    """
    output = run_cli(capsys, "operators", "compare", problem_file, "-f", "json")
    names = {c["planner"] for c in output.data["candidates"]}
    assert {"only:dev0", "only:dev1", "heft", "random"} <= names
    cannot = {c["planner"] for c in output.data["candidates"] if c["outcome"] == "unsupported"}
    table = run_cli(capsys, "operators", "compare", problem_file).out.splitlines()
    rows = table[2 : table.index("do not apply:")]
    assert {row.strip("* ").split()[0] for row in rows} == names - cannot
    assert len(rows) == len(names - cannot)
    below = " ".join(table[table.index("do not apply:") :])
    assert all(name in below for name in cannot)
    assert sum(line.startswith("*") for line in table) == 1
    two = run_cli(
        capsys, "operators", "compare", problem_file, "--planner", "heft", "--planner", "random"
    )
    assert two.out.splitlines()[4].startswith("device ")


def test_explain_names_place_and_alternatives(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text and as data."""
    kept = tmp_path / "plan.json"
    run_cli(capsys, "operators", "plan", problem_file, "--planner", "only:dev0", "-o", kept)
    command = ("operators", "explain", problem_file, kept)
    assert "on the critical path" in run_cli(capsys, *command, "op1").out
    data = run_cli(capsys, *command, "op1", "-f", "json").data
    assert data["device"] == "dev0"
    assert [a["device"] for a in data["alternatives"]] == ["dev1"]
    wrong = run_cli(capsys, *command, "op11")
    assert wrong.code == 1
    assert "did you mean 'op1'" in wrong.err


def test_options_change_the_problem(problem_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them a problem keeps what it says."""
    command = ("operators", "plan", problem_file, "--planner", "only:dev0", "-f", "json")
    plain = run_cli(capsys, *command).data["objective"]
    assert "latency" in plain
    assert "throughput" in run_cli(capsys, *command, "--objective", "throughput").data["objective"]
    serial = run_cli(capsys, *command, "--overlap", "serial").data
    assert serial["value"] == 16.0


def test_infinities_are_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device that cannot run everything has a candidate without a value; JSON stays JSON."""
    problem = tiny([[1.0, float("inf")], [1.0, 2.0]], [(0, 1.0, [1])])
    path = write_problem(problem, tmp_path / "p.json")
    data = run_cli(capsys, "operators", "compare", path, "-f", "json").data
    assert {c["planner"]: c["value"] for c in data["candidates"]}["only:dev1"] is None


def test_a_custom_model_is_captured_planned_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """capture, profile, plan, simulate: each from the file of the one before."""
    model = "tests.cli.models:tower"
    graph, problem, plan = (tmp_path / f"{name}.json" for name in ("graph", "problem", "plan"))
    assert run_cli(capsys, "capture", model, "--training", "-o", graph).code == 0
    assert run_cli(capsys, "profile", graph, "--on", "edge-duo", "-o", problem).code == 0
    options = ("--time-limit", 1, "-o", plan, "-f", "json")
    output = run_cli(capsys, "operators", "plan", problem, *options)
    assert output.code == 0
    assert run_cli(capsys, "operators", "simulate", problem, plan).code == 0
    assert set(output.data["plan"]["devices"]) == {"board-a", "board-b"}


def test_micro_batches_are_planned_kept_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph's file says the same; too many, and those of inference, are refused."""
    cut = ("tests.cli.models:tower", "--training", "--micro-batches", 2)
    on, (graph, plan) = ("--on", "edge-duo"), (tmp_path / "g.json", tmp_path / "plan.json")
    quick = (*on, "--planner", "micro-batches", "-f", "json")
    assert run_cli(capsys, "capture", *cut, "-o", graph).code == 0
    kept = run_cli(capsys, "operators", "plan", graph, *quick).data
    report = run_cli(capsys, "operators", "plan", *cut, *quick, "-o", plan).data
    assert set(report["plan"]["placement"]) == set(kept["plan"]["placement"])
    ran = run_cli(
        capsys, "operators", "run", *cut, plan, *on, "--steps", 1, "--check", "-f", "json"
    )
    assert (ran.data["micro_batches"], ran.data["max_abs_error"]) == (2, 0.0)
    for refused, why in (
        (("--micro-batches", 2), "--micro-batches is for training steps"),
        (("--training", "--micro-batches", 5), "4 rows, 5 micro-batches"),
    ):
        output = run_cli(capsys, "operators", "plan", cut[0], *on, *refused)
        assert (output.code, why in output.err) == (1, True)
    output = run_cli(capsys, "operators", "plan", graph, *on, "--micro-batches", 2)
    assert "--micro-batches is for models" in output.err


def test_a_published_instance(capsys: pytest.CaptureFixture[str]) -> None:
    """``dag:`` files have free links by default, and contention never helps one plan."""
    source = f"dag:{published('dag/layered_n100_ccr1.0_s0.json')}"
    command = ("operators", "plan", source, "--planner", "heft", "-f", "json")
    free = run_cli(capsys, *command).data["value"]
    assert free == pytest.approx(777.744, abs=1e-3)
    assert run_cli(capsys, *command, "--links", "contended").data["value"] > free


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "none.json"), "none.json: cannot be read: No such file"),
        (("plan", "resnet50"), "is neither a file nor a model"),
        (("plan", "zoo:resnet5"), "did you mean 'resnet50'"),
        (("plan", "piper:x.json"), "next: placewright layers plan piper:x.json"),
        (("plan", "msr:none.json"), "none.json: cannot be read"),
        (("plan", "msr:none.json?cost=3"), "did you mean 'cost_scale'"),
        (("plan", "model.onnx"), "model.onnx: no such file"),
        (("plan", "no.such.module:make"), "no module named"),
        (("plan", "PROBLEM", "--on", "edge-duo"), "--on is for models and graphs"),
        (("plan", "PROBLEM", "--training"), "--training is for models"),
        (("plan", "PROBLEM", "--batch", "2"), "--batch is for models"),
        (("plan", "PROBLEM", "--planner", "heftt"), "did you mean 'heft'"),
        (("simulate", "PROBLEM", "none.json"), "none.json"),
        (("simulate", "PROBLEM", "PROBLEM"), "problem.json"),
        (("run", "PROBLEM"), "only a model can be run"),
    ],
)
def test_a_wrong_source_is_refused_with_the_next_step(
    arguments: tuple[str, ...],
    message: str,
    problem_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What, where and what is known instead; exit code 1, nothing on stdout."""
    words = [str(problem_file) if a == "PROBLEM" else a for a in arguments]
    output = run_cli(capsys, "operators", *words)
    assert output.code == 1
    assert message in output.err
    assert output.out == ""


@pytest.mark.slow
def test_run_measures_plan_and_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real worker processes: the promised keys, equal to eager, and the page has both timelines."""
    page = tmp_path / "run.html"
    output = run_cli(
        capsys,
        "operators",
        "run",
        "tests.cli.models:tower",
        "--on",
        "edge-duo",
        "--steps",
        2,
        "--check",
        "--planner",
        "random",
        "-f",
        "json",
        "--report",
        page,
    )
    assert output.code == 0
    for key in ("predicted_s", "measured_s", "steps", "baseline", "engine", "emulated"):
        assert key in output.data
    assert output.data["max_abs_error"] == 0.0
    assert output.data["check"]["passed"]
    assert output.data["check"]["tolerance"] == 0.0
    assert output.data["baseline"]["name"] in ("board-a", "board-b")
    assert "measured timeline" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failed_check_is_an_error_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, tensor, step, distance and tolerance named; results printed and kept."""
    page, kept = tmp_path / "run.html", tmp_path / "run.json"
    output = run_cli(
        capsys,
        *("operators", "run", "tests.cli.models:drifting", "--on", "edge-duo", "--steps", 2),
        *("--check", "--planner", "random", "-f", "json", "-o", kept, "--report", page),
    )
    assert output.code == 1
    check = output.data["check"]
    assert not check["passed"]
    assert output.data["max_abs_error"] == check["max_abs_error"] > 0.0
    assert (check["first"]["role"], check["first"]["tensor"]) == ("output", "output")
    assert f"output 'output' after step {check['first']['step']}" in output.err
    assert "tolerance 0" in output.err
    assert json.loads(kept.read_text(encoding="utf-8"))["check"] == check
    assert "FAILED: output" in page.read_text(encoding="utf-8")


def test_a_model_without_weights_is_planned_and_runs_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the meta device; without files it says what is missing."""
    model, options = "tests.cli.models:shapes_only", ("--on", "edge-duo", "--planner", "heft")
    planned = run_cli(capsys, "operators", "plan", model, *options, "-f", "json")
    assert planned.code == 0
    assert planned.data["value"] > 0
    refused = run_cli(capsys, "operators", "run", model, *options)
    assert refused.code == 1
    assert "has no weights" in refused.err
    weights = tmp_path / "w.safetensors"
    save_file(tower()[0].state_dict(), weights)
    ran = run_cli(
        capsys,
        *("operators", "run", model, *options, "--steps", 1, "--weights", weights, "-f", "json"),
    )
    assert ran.code == 0
    assert ran.data["steps"] == 1


def test_a_stream_is_run_and_compared_with_eager(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predicted beside measured, also on the page; `--adapt` and training steps are refused."""
    command = ("operators", "run", "tests.cli.models:tower", "--on", "edge-duo")
    stream = (*command, "--objective", "throughput", "--time-limit", 1)
    trace, kept = tmp_path / "trace.json.gz", tmp_path / "run.json"
    output = run_cli(
        capsys, *stream, "--steps", 4, "--check", "--trace", trace, "-o", kept, "-f", "json"
    )
    assert output.code == 0
    assert output.data["check"]["passed"]
    assert output.data["max_abs_error"] == 0.0
    assert output.data["throughput_per_s"] == pytest.approx(1.0 / output.data["measured_s"])
    assert output.data["in_flight"] >= 1
    assert trace.stat().st_size > 200
    assert json.loads(kept.read_text(encoding="utf-8")) == output.data
    for refused, why in (("--adapt", "--adapt is for steps"), ("--training", "one training step")):
        output = run_cli(capsys, *stream, "--steps", 1, refused)
        assert output.code == 1
        assert why in output.err


def test_every_format_of_a_task_graph_is_a_source() -> None:
    """Or another verb takes it."""
    assert not set(formats()) - set(SCHEMES) - set(ELSEWHERE)
