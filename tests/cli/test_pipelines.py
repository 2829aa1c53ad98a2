"""Options of pipelines: copies of stages, clusters, separate passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.operators.conformance import tiny
from placewright.operators.files import write_problem
from tests.cli.run_cli import run_cli


@pytest.fixture
def star_file(tmp_path: Path) -> Path:
    """Two accelerators that are alike, and a CPU; one operator that is half of all work."""
    problem = tiny(
        [[4.0, 4.0, 40.0], [2.0, 2.0, 20.0], [2.0, 2.0, 20.0]],
        [(0, 1.0, [1]), (1, 1.0, [2])],
        communication="star",
        host_seconds_per_byte=[1.0, 1.0, 0.0],
        resident_bytes=[2.0, 1.0, 1.0],
        is_backward=[False, False, True],
        name="halves",
    )
    return write_problem(problem, tmp_path / "halves.json")


def test_copies_are_planned_and_simulated(
    star_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both accelerators with everything: half of 8 s; the file keeps who copies whom."""
    pytest.importorskip("ortools")
    plan = tmp_path / "plan.json"
    options = ("--objective", "throughput", "--replication", "-f", "json")
    output = run_cli(capsys, "operators", "plan", star_file, *options, "-o", plan)
    assert output.data["status"] == "OPTIMAL"
    assert output.data["value"] == pytest.approx(4.0)
    assert output.data["plan"]["replica_of"] == {"dev1": "dev0"}
    again = run_cli(capsys, "operators", "simulate", star_file, plan, *options)
    assert again.data["value"] == output.data["value"]


def test_copies_pay_for_gradient_exchange(
    star_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow link makes copies useless: 4 s and a transfer each is the best pipeline."""
    pytest.importorskip("ortools")
    options = ("--objective", "throughput", "--replication", "--sync-bandwidth", "4bps")
    output = run_cli(capsys, "operators", "plan", star_file, *options, "-f", "json")
    assert output.data["value"] == pytest.approx(5.0)
    assert not output.data["plan"]["replica_of"]


def test_clusters_of_accelerators_and_separate_passes(
    star_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor within a cluster costs a tenth; a pass has its own largest load."""
    pytest.importorskip("ortools")
    options = ("--objective", "throughput", "--clusters", "1", "-f", "json")
    output = run_cli(capsys, "operators", "plan", star_file, *options)
    assert output.data["value"] == pytest.approx(4.1)
    assert "clusters" in output.data["objective"]
    output = run_cli(
        capsys, "operators", "plan", star_file, "--objective", "diffmaxima", "-f", "json"
    )
    assert output.data["objective"] == "throughput, diffmaxima"
    assert output.data["value"] == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--sync-bandwidth", "1Gbps"), "--replication"),
        (("--clusters", "3"), "fewer accelerators"),
        (("--cluster-speedup", "5"), "--clusters N"),
        (("--replication", "--objective", "latency"), "throughput or diffmaxima"),
        (("--replication", "--sync-bandwidth", "0bps"), "above zero"),
    ],
)
def test_options_that_make_no_sense_say_why(
    star_file: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], hint: str
) -> None:
    """Exit code 1 and what to do."""
    output = run_cli(capsys, "operators", "plan", star_file, *options)
    assert output.code == 1
    assert hint in output.err


def test_clusters_over_links_are_for_the_cluster_file(
    problem_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links say which are faster."""
    output = run_cli(capsys, "operators", "plan", problem_file, "--clusters", "2")
    assert output.code == 1
    assert "cluster file" in output.err


def test_copies_on_devices_that_differ(
    tmp_path: Path, star_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 s and 16 s make a sample in 16/3 s, which is the bound; nothing but links has shares."""
    links = [[0.0, 1.0], [1.0, 0.0]]
    problem = tiny(
        [[4.0, 8.0], [2.0, 4.0], [2.0, 4.0]],
        [(0, 1.0, [1]), (1, 1.0, [2])],
        latency_s=links,
        seconds_per_byte=links,
        name="unlike",
    )
    file, plan = write_problem(problem, tmp_path / "unlike.json"), tmp_path / "plan.json"
    options = ("--objective", "throughput", "--replication", "--by-speed", "-f", "json")
    output = run_cli(capsys, "operators", "plan", file, *options, "-o", plan)
    assert (output.data["planner"], output.data["status"]) == ("whole-copies", "OPTIMAL")
    assert output.data["value"] == pytest.approx(16 / 3)
    assert output.data["plan"]["replica_of"] == {"dev1": "dev0"}
    again = run_cli(capsys, "operators", "simulate", file, plan, *options)
    assert again.data["value"] == output.data["value"]
    for refused, text in (
        ((file, "--by-speed"), "--by-speed is for copies\n  next: add --replication"),
        ((star_file, *options), "halves: --by-speed is for devices with links between them"),
        ((file, *options[2:], "--objective", "diffmaxima"), "--by-speed is for the largest load"),
    ):
        output = run_cli(capsys, "operators", "plan", *refused)
        assert output.code == 1
        assert text in output.err
