"""Models placed by OpenVINO's HETERO: outputs, repairs, written files, command line."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from onnx import helper

from placewright.capturing.files.model_file import ModelFile
from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.files import cluster_to_text
from placewright.deployment.model_files import (
    FileWorkload,
    capture_model_file,
    profile_model_file,
    unplaced_outputs,
)
from placewright.deployment.workers import MeasuredPlacements
from placewright.errors import UnknownNameError, UnsupportedError
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Overlap
from placewright.operators.run import best_single
from placewright.planning.result import Result
from placewright.planning.solving import judged_plan, solve
from placewright.runtime.model_files import hetero
from tests.capturing.files.models import branching, save, weight
from tests.cli.run_cli import run_cli

EXACT = Cluster((Device("AUTO", precision="f32", cores=2), Device("CPU", precision="f32")))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """The branching CNN as OpenVINO has it."""
    path = branching(tmp_path_factory.mktemp("ov") / "cnn.onnx")
    return capture_model_file(f"openvino:{path}")


def workload(file: ModelFile, cluster: Cluster = EXACT) -> FileWorkload:
    """The model on a cluster, at computed costs."""
    return FileWorkload(file, cluster, profile_model_file(file, cluster, method="analytic"))


def placed_at_random(load: FileWorkload, seed: int) -> Result:
    """Every operator anywhere."""
    place = np.random.default_rng(seed).integers(0, load.problem.m, load.problem.n)
    return judged_plan(load.problem, OperatorPlan(place))


def test_random_placements_give_the_outputs_of_the_unplaced_model(file: ModelFile) -> None:
    """Random placements give the outputs of the unplaced model."""
    load, inputs = workload(file), file.random_inputs()
    for seed in range(4):
        with load.placed(placed_at_random(load, seed)) as placed:
            assert load.check(placed, inputs).passed


def test_devices_compute_in_their_own_precision(file: ModelFile) -> None:
    """A device of 16 bits differs, within its stated tolerance."""
    load = workload(file, Cluster.preset("hetero-cpu"))
    measured = load.measure(
        placed_at_random(load, 1), beside=best_single(load.problem), steps=2, check=True
    )
    assert measured.check is not None
    assert measured.check.passed
    assert measured.check.tolerance.relative == 0.05
    assert "AUTO bf16" in measured.engine
    assert "CPU f32 1 threads" in measured.engine


def test_measured_costs_make_a_serial_problem(file: ModelFile) -> None:
    """Measured costs make a serial problem, whose minimum cut is at most the best device."""
    problem = profile_model_file(file, EXACT)
    assert problem.overlap is Overlap.SERIAL
    assert (problem.compute_s.sum(axis=0) > 0).all()
    result, single = solve(problem, "min-cut"), best_single(problem)
    assert single is not None
    assert result.value <= single.value * (1 + 1e-9)


def test_a_placement_that_does_not_compile_is_repaired_into_blocks(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placement that does not compile is repaired into blocks, and the reason is kept."""
    real = hetero.HeteroModel._compile

    def picky(self: Any) -> Any:
        cuts = list(self.device.values())
        if sum(a != b for a, b in pairwise(cuts)) > 2:
            raise UnsupportedError("no", where="m", by="too many subgraphs")
        return real(self)

    monkeypatch.setattr(hetero.HeteroModel, "_compile", picky)
    load = workload(file)
    turns = OperatorPlan(np.arange(load.problem.n) % 2)
    with load.placed(judged_plan(load.problem, turns)) as placed:
        assert "repaired into blocks of" in placed.engine
        assert "too many subgraphs" in placed.engine
        assert load.check(placed, file.random_inputs()).passed

    def never(self: Any) -> Any:
        raise UnsupportedError("no", where="m", by="never")

    monkeypatch.setattr(hetero.HeteroModel, "_compile", never)
    with pytest.raises(UnsupportedError, match=r"in no repaired form \(never\)"):
        load.placed(judged_plan(load.problem, turns))


def test_placements_are_measured_once_and_refusals_are_infinite(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placements are measured once, and what OpenVINO refuses costs infinitely much."""
    load = workload(file)
    reward = MeasuredPlacements(load.opened, warmup=1, most=5)
    rows = np.array([np.zeros(load.problem.n), np.ones(load.problem.n)], dtype=np.int64)
    first = reward(rows)
    assert (np.isfinite(first) & (first > 0)).all()

    def never(self: Any) -> Any:
        raise UnsupportedError("no", where="m", by="never")

    monkeypatch.setattr(hetero.HeteroModel, "_compile", never)
    again = reward(np.vstack([rows, np.arange(load.problem.n) % 2]))
    assert again[:2].tolist() == first.tolist()
    assert again[2] == np.inf
    assert list(reward.refused.values()) == ["never"]


def test_blocks_take_the_device_of_most_of_their_operators() -> None:
    """Blocks take the device of most of their operators, and groups stay together."""
    device = dict(zip("abcdef", ["A", "B", "A", "B", "B", "B"], strict=True))
    assert hetero.in_blocks(device, 3, {}) == dict(zip("abcdef", "AAABBB", strict=True))
    assert hetero.in_blocks(device, 1, {}) == device
    assert hetero.in_blocks(device, 1, {"a": "g", "f": "g"})["f"] == "A"


def test_the_plan_is_in_the_ir_and_loads_in_plain_openvino(file: ModelFile, tmp_path: Path) -> None:
    """The plan is in the IR, and loads in plain OpenVINO."""
    load = workload(file)
    files, check = load.export(placed_at_random(load, 2), tmp_path / "placed")
    assert check.passed
    manifest = json.loads(files[0].read_text())
    core = hetero.open_core()  # an openvino.Core that does not make a later Ctrl-C end the tests
    model = core.read_model(str(tmp_path / "placed" / "model.xml"))
    affinity = json.loads(model.get_rt_info(["placewright", "affinity"]).value)
    assert set(affinity) == {node.get_friendly_name() for node in model.get_ordered_ops()}
    for node in model.get_ordered_ops():
        node.rt_info["affinity"] = affinity[node.get_friendly_name()]
    compiled = core.compile_model(model, manifest["device"], manifest["properties"])
    inputs = file.random_inputs(3)
    made, wanted = compiled([inputs["x"]])[0], unplaced_outputs(file, inputs)["output0"]
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5)


def test_outputs_that_no_operator_makes_are_exported(tmp_path: Path) -> None:
    """A constant and an input are where the first operator is."""
    names = {"x": [2, 4], "y": [2, 4], "w": [2, 4]}
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [weight("w", 2, 4)],
        {"x": names["x"]},
        names,
    )
    load = workload(capture_model_file(f"openvino:{path}"))
    check = load.export(placed_at_random(load, 0), tmp_path / "placed")[1]
    assert (check.passed, check.compared["output"]) == (True, 3)


INTERRUPTED = """
import signal
from placewright.runtime.model_files.hetero import open_core

first = open_core()
second = open_core()
del first
del second  # gives back the first one's stack, which is gone
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_still_works_beside_openvino() -> None:
    """Its plugin for CPUs gives the thread a stack for signals, which it frees too early."""
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


def test_devices_that_openvino_lacks_are_refused_by_name(file: ModelFile) -> None:
    """Devices and precisions that OpenVINO lacks are refused by name."""
    load = workload(file, Cluster((Device("CPU"), Device("GPU.7"))))
    with pytest.raises(UnknownNameError, match=r"unknown OpenVINO device 'GPU\.7'"):
        load.placed(placed_at_random(load, 0))
    load = workload(file, Cluster((Device("CPU", precision="f12"),)))
    with pytest.raises(UnknownNameError, match="unknown precision 'f12'"):
        load.placed(placed_at_random(load, 0))


def test_a_cluster_file_keeps_precisions() -> None:
    """A cluster file keeps precisions."""
    text = cluster_to_text(EXACT)
    assert "precision: f32" in text
    assert Cluster.from_text(text, where="t") == EXACT


def test_the_command_line_runs_and_exports_ir(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line runs IR on HETERO:AUTO,CPU and exports it."""
    model, plan = tmp_path / "cnn.xml", tmp_path / "plan.json"
    ov.save_model(ov.Core().read_model(str(branching(tmp_path / "cnn.onnx"))), str(model))
    made = run_cli(capsys, "operators", "plan", model, "--planner", "topological-split", "-o", plan)
    assert made.code == 0
    ran = run_cli(
        capsys, "operators", "run", model, plan, "--steps", 2, "--check", "-f", "json"
    ).data
    assert ran["check"]["passed"]
    assert "HETERO:AUTO,CPU" in ran["engine"]
    written = run_cli(capsys, "operators", "export", model, plan, "--folder", tmp_path / "placed")
    assert written.code == 0
    assert (tmp_path / "placed" / "model.xml").is_file()


def test_devices_that_openvino_does_not_know_are_named(file: ModelFile) -> None:
    """A cluster of other devices can be computed, not measured."""
    boards = Cluster.preset("edge-duo")
    assert profile_model_file(file, boards, method="analytic").device_names == boards.device_names
    with pytest.raises(UnsupportedError, match="OpenVINO does not know the device 'board-a'") as at:
        profile_model_file(file, boards)
    assert "AUTO, CPU" in str(at.value)
    assert "--method analytic" in str(at.value)
