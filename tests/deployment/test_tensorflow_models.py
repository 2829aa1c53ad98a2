"""TensorFlow models: capture, costs, placed runs, writing back, and what is refused.

All share one process that has imported TensorFlow.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from placewright.capturing.source import _unpack
from placewright.capturing.tensorflow.model import (
    TensorFlowModel,
    TensorFlowProcess,
    capture_tensorflow,
    is_tensorflow,
)
from placewright.cluster.cluster import Cluster, Device
from placewright.deployment.model_files import TensorFlowWorkload, profile_tensorflow
from placewright.errors import (
    InputError,
    MissingDependencyError,
    PlacewrightError,
    UnknownNameError,
    UnsupportedError,
    WorkerError,
)
from placewright.io.scratch import folder_of_process
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.planning.solving import judged_plan
from tests.cli.run_cli import run_cli

DUO = Cluster((Device("a"), Device("b", speed=0.5)), name="duo")
SOURCES = "tensorflow:tests.capturing.tensorflow.sources"

HOSTILE = (
    *("WriteFile", "ReadFile", "PyFunc", "EagerPyFunc", "PyFuncStateless", "PrintV2", "SaveV2"),
    *("DebugIdentity", "FIFOQueueV2", "MatchingFiles", "SummaryWriter", "TextLineDataset"),
    *("ImmutableConst", "DecodeProtoV2"),
)
"""Operators of which there is a graph each."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the process writes the files of the tests."""
    return tmp_path_factory.mktemp("tensorflow")


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[TensorFlowProcess]:
    """The process that has imported TensorFlow and written the files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLACEWRIGHT_TEST_MODELS", str(folder))
        opened = TensorFlowProcess()
    capture_tensorflow(f"{SOURCES}:files", process=opened)
    yield opened
    opened.close()


def workload_of(model: TensorFlowModel, method: str = "analytic") -> TensorFlowWorkload:
    """The model on two CPUs."""
    return TensorFlowWorkload(model, DUO, profile_tensorflow(model, DUO, method=method))


def alternating(workload: TensorFlowWorkload) -> OperatorPlan:
    """Colocation groups in turns on the two devices."""
    groups = workload.problem.colocation
    return OperatorPlan(np.unique(groups, return_inverse=True)[1] % 2)


def test_nested_functions_are_refused_before_they_are_inlined(
    folder: Path, process: TensorFlowProcess
) -> None:
    """Thirty of them are a billion nodes."""
    with pytest.raises(UnsupportedError, match="too large when its functions are inlined"):
        capture_tensorflow(str(folder / "doubling.pb"), process=process)


def test_a_graph_def_becomes_a_graph(folder: Path, process: TensorFlowProcess) -> None:
    """Operators, colocation, kinds and bytes of a file written by TensorFlow."""
    graph = capture_tensorflow(str(folder / "branches.pb"), process=process).graph
    assert set(graph.operator_names) == {"a1", "a2", "b1", "b2", "add", "sum", "beside"}
    of_name = {op.name: op for op in graph.operators}
    assert of_name["a1"].flops == 2 * 4 * 8 * 8
    assert of_name["a2"].colocation == of_name["beside"].colocation != ""
    tensors = {t.name: t for t in graph.tensors}
    assert tensors["a2"].bytes == 4 * 8 * 4
    assert tensors["after:b2"].consumers == ("sum",)


@pytest.mark.parametrize("training", [False, True])
def test_inputs_by_name_reach_the_input_of_that_name(
    process: TensorFlowProcess, training: bool
) -> None:
    """In the order of the dict, which is not that of the model."""
    source = f"{SOURCES}:by_name"
    workload = workload_of(capture_tensorflow(source, training=training, process=process))
    assert workload.check(alternating(workload), steps=1).max_abs_error == 0


def test_an_error_inside_of_a_function_keeps_its_reason(process: TensorFlowProcess) -> None:
    """Not the header that TensorFlow puts before the frames."""
    with pytest.raises(InputError, match=r"Cannot reshape a tensor with 12 elements"):
        capture_tensorflow(f"{SOURCES}:failing", process=process)


def test_kernels_that_are_fused_on_one_device_get_half_of_the_digits(
    process: TensorFlowProcess,
) -> None:
    """And one device every bit."""
    source = f"{SOURCES}:convolution"
    workload = workload_of(capture_tensorflow(source, training=True, process=process))
    found = workload.check(OperatorPlan(np.arange(workload.problem.n) % 2), steps=3)
    assert found.passed
    assert found.steps == 1
    assert found.tolerance.update == pytest.approx(2e-3)
    alone = workload.check(OperatorPlan(np.zeros(workload.problem.n, int)), steps=2)
    assert (alone.tolerance.relative, alone.max_abs_error) == (0, 0)


def test_a_placed_graph_def_runs_and_is_written_back(
    folder: Path, process: TensorFlowProcess
) -> None:
    """Outputs equal the unplaced graph's bit for bit, in the session and from both formats."""
    source = str(folder / "branches.pb")
    workload = workload_of(capture_tensorflow(source, process=process))
    result = judged_plan(workload.problem, alternating(workload))
    single = best_single(workload.problem)
    found = workload.measure(result, beside=single, steps=4, check=True)
    check = found.check
    assert check is not None
    assert check.passed
    assert check.compared == {"output": 2, "parameter": 0}
    assert check.max_abs_error == 0
    assert len(found.step_s) == len(found.unplaced_json()["step_s"]) == 4
    for target in (folder / "placed.pb", folder / "placed"):
        (written,), check = workload.export(result, target)
        assert written.exists()
        assert check.max_abs_error == 0
    again = capture_tensorflow(str(folder / "placed.pb"), process=process)
    assert set(again.graph.operator_names) == set(workload.model.graph.operator_names)
    profile_tensorflow(again, Cluster((Device("alone"),)))  # devices in a file are no constraint
    devices = process.order("devices")
    planned = workload.placement(result.plan)
    assert {name: devices[name] for name in planned} == planned
    assert set(planned.values()) == {"/device:CPU:0", "/device:CPU:1"}
    with pytest.raises(InputError, match="already"):
        workload.export(result, folder / "placed")


def test_an_exported_model_has_the_outputs_of_its_source(
    folder: Path, process: TensorFlowProcess
) -> None:
    """All that an end makes, by the names of the signature."""
    for source in ("halves.pb", "named"):
        workload = workload_of(capture_tensorflow(str(folder / source), process=process))
        result = judged_plan(workload.problem, alternating(workload))
        target = folder / f"placed_{source.removesuffix('.pb')}"
        assert workload.export(result, target)[1].compared["output"] == 2
    capture_tensorflow(f"{SOURCES}:keys", process=process)


def test_a_training_step_has_the_loss_of_keras(process: TensorFlowProcess) -> None:
    """With what layers add to it."""
    capture_tensorflow(f"{SOURCES}:losses", process=process)


def test_a_training_step_updates_the_same_weights(process: TensorFlowProcess) -> None:
    """Loss, weights and optimizer state after three steps equal the unplaced step's."""
    model = capture_tensorflow(f"{SOURCES}:perceptron", process=process, training=True, batch=2)
    workload = workload_of(model, "auto")
    assert {op.phase for op in model.graph.operators} == {"forward", "backward", "optimizer"}
    costs = workload.problem.compute_s
    assert (costs > 0).any()
    assert np.array_equal(costs[:, 1], 2 * costs[:, 0])
    assert workload.problem.seconds_per_byte[0, 1] == pytest.approx(1e-13)
    with workload.opened(alternating(workload).placement) as steps:
        assert min(steps(1)) > 0
    check = workload.check(alternating(workload))
    assert check.passed
    assert check.steps == 3
    assert check.compared["parameter"] >= 3 * 4
    assert check.max_abs_error == 0


def test_a_training_graph_with_its_initialisation_runs_from_its_file(
    folder: Path, process: TensorFlowProcess
) -> None:
    """The saver is left out; initial values that are drawn are the same under every placement."""
    source = f"{folder / 'training.pb'}?fetches=loss,train"
    workload = workload_of(capture_tensorflow(source, process=process))
    kinds = {op.kind.removeprefix("tensorflow.") for op in workload.model.graph.operators}
    assert {"ResourceApplyAdam", "ApplyAdam"} <= kinds
    assert not {"SaveV2", "TruncatedNormal", "RandomUniform"} & kinds
    result = judged_plan(workload.problem, alternating(workload))
    check = workload.check(result.plan)
    assert check.compared == {"output": 1, "parameter": 8}
    assert check.max_abs_error == 0
    _, check = workload.export(result, folder / "training_placed")
    assert check.max_abs_error == 0


def test_shapes_that_a_kernel_computes_from_shapes_are_seen_in_a_step(
    process: TensorFlowProcess,
) -> None:
    """Axes of broadcasts in gradients; dropout draws the same numbers under any placement."""
    model = capture_tensorflow(f"{SOURCES}:attention", process=process, training=True)
    axes = [op for op in model.graph.operators if op.kind == "tensorflow.BroadcastGradientArgs"]
    assert axes
    assert all(len(spec.shape) == 1 for op in axes for spec in op.outputs)
    workload = workload_of(model)
    assert workload.check(alternating(workload)).max_abs_error == 0


def test_a_saved_model_by_its_signature(folder: Path, process: TensorFlowProcess) -> None:
    """An open batch is fixed; without it, without a signature, with another one it is refused."""
    source = str(folder / "signed")
    graph = capture_tensorflow(source, process=process, batch=3).graph
    assert "tensorflow.Relu" in {op.kind for op in graph.operators}
    with pytest.raises(UnsupportedError, match="dynamic shape"):
        capture_tensorflow(source, process=process)
    with pytest.raises(UnknownNameError, match="serving_default"):
        capture_tensorflow(f"{source}?signature=serve_default", process=process)
    with pytest.raises(UnsupportedError, match="without a signature"):
        capture_tensorflow(str(folder / "unsigned"), process=process)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loop.pb", "control flow cannot be placed"),
        ("open.pb", "dynamic shape"),
        ("damaged.pb", "is no GraphDef, or a damaged one"),
        ("unknown.pb", "NoSuchOperator"),
        ("missing.pb", "no such file"),
        ("lambda.keras", "cannot be loaded as a Keras model"),
        ("huge.keras", "more weights than it can hold"),
        ("branches.pb?fetches=som", "unknown node 'som'"),
    ],
)
def test_bad_files_are_refused_by_name(
    folder: Path, process: TensorFlowProcess, name: str, words: str
) -> None:
    """What, where and what next; the process takes the next order."""
    with pytest.raises(InputError, match=words) as raised:
        capture_tensorflow(str(folder / name), process=process)
    assert raised.value.where
    assert raised.value.hint


def test_variables_without_values_can_be_planned_and_not_run(
    folder: Path, process: TensorFlowProcess
) -> None:
    """They are in no GraphDef."""
    workload = workload_of(capture_tensorflow(str(folder / "variable.pb"), process=process))
    with pytest.raises(InputError, match="variables have no values"):
        workload.step_seconds(None, 1)


def test_devices_and_kernels_that_are_missing_are_named(
    folder: Path, process: TensorFlowProcess
) -> None:
    """A GPU that is not here, a device that TensorFlow does not know, an operator for GPUs."""
    model = capture_tensorflow(str(folder / "branches.pb"), process=process)
    gpus = Cluster(tuple(Device(f"gpu{k}", kind="gpu") for k in range(process.about["gpus"] + 1)))
    with pytest.raises(InputError, match="fewer GPUs"):
        model.devices(gpus)
    with pytest.raises(InputError, match="no device of kind 'npu'"):
        model.devices(Cluster((Device("n", kind="npu"),)))
    only = TensorFlowModel(
        model.source, model.graph, process, dict(model.kernels) | {"a1": frozenset({"GPU"})}, (), ()
    )
    with pytest.raises(UnsupportedError, match="no device has a kernel for MatMul") as raised:
        only.supported(DUO)
    assert "a1" in raised.value.where


def test_the_command_line_takes_them_like_any_model(
    folder: Path,
    process: TensorFlowProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Capture, plan, run and export, in the process that is there."""
    monkeypatch.setattr(f"{TensorFlowModel.__module__}.TensorFlowProcess", lambda: process)
    source, plan = folder / "branches.pb", folder / "plan.json"
    cluster = folder / "duo.yaml"
    cluster.write_text("devices: [{name: a}, {name: b}]\n", encoding="utf-8")
    assert len(run_cli(capsys, "capture", source, "-f", "json").data["operators"]) == 7
    options = ("--on", cluster, "-f", "json")
    planned = run_cli(
        capsys, "operators", "plan", source, "--planner", "round-robin", "-o", plan, *options
    )
    assert set(planned.data["plan"]["placement"].values()) == {"a", "b"}
    ran = run_cli(capsys, "operators", "run", source, plan, "--check", "--steps", 3, *options).data
    assert ran["max_abs_error"] == 0
    assert len(ran["unplaced"]["step_s"]) == ran["steps"] == 3
    assert "share" in ran["engine"]
    written = folder / "exported"
    done = run_cli(capsys, "operators", "export", source, plan, "--folder", written, *options).data
    assert done["files"] == [str(written)]
    assert (written / "saved_model.pb").is_file()
    refused = run_cli(capsys, "operators", "run", source, "--adapt", "--on", cluster)
    assert refused.code == 1
    assert "--adapt is for PyTorch models" in refused.err


def test_a_keras_factory_is_sent_to_tensorflow() -> None:
    """By the class of what it returns; TensorFlow is not imported for it."""

    class Model:
        __module__ = "keras.models"

    with pytest.raises(InputError, match="tensorflow:made:factory"):
        _unpack((Model(), None), "made:factory")


def test_what_a_lost_process_said_is_in_the_error() -> None:
    """It is not waited for."""
    lost = TensorFlowProcess.__new__(TensorFlowProcess)
    lost.start(["-c", "import sys; sys.exit('out of memory')"])
    with pytest.raises(WorkerError, match="out of memory"):
        lost.order("hello")
    lost.close()


def test_the_process_ends_with_the_one_that_started_it() -> None:
    """Amid an order too: its parent starts it and is gone."""
    code = (
        "import threading, sys; from placewright.capturing.tensorflow.worker import end_with; "
        "threading.Thread(target=end_with, args=(int(sys.argv[1]), 0.01)).start(); "
        "threading.Event().wait(600)"
    )
    started = f"[{sys.executable!r}, '-c', {code!r}, str(os.getpid())]"
    parent = [sys.executable, "-c", f"import os, subprocess; subprocess.Popen({started})"]
    ended = subprocess.run(parent, stdout=subprocess.PIPE, timeout=300, check=True)
    assert ended.stdout == b""  # read to its end: nobody holds the pipe any more


@pytest.mark.parametrize(
    ("file", "operator"),
    [
        *((f"{name}.pb", name) for name in HOSTILE),
        ("SaveV2.pb?fetches=SaveV2", "SaveV2"),
        ("nested.pb", "WriteFile"),
        ("writing", "WriteFile"),
        ("version1", "WriteFile"),
        ("local", "SaveV2"),
        ("saving", "SaveV2"),
    ],
)
def test_operators_with_effects_are_refused_by_name(
    folder: Path, process: TensorFlowProcess, file: str, operator: str
) -> None:
    """In a graph, in functions, in what a SavedModel does when it is loaded; nothing is touched."""
    with pytest.raises((UnsupportedError, InputError)) as refused:
        capture_tensorflow(str(folder / file), process=process)
    if (folder / file).name == "SaveV2.pb":
        assert "computes nothing" in str(refused.value)  # savers are no end of a step
    else:
        assert f"the operator {operator} may act outside" in str(refused.value)
        assert f"{folder / file.partition('?')[0]}: node" in str(refused.value)
    assert not list(folder.glob("touched*"))


def test_tensorflow_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the extra that has it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"placewright\[tensorflow\]"):
        TensorFlowProcess()


def test_sources_are_recognised(tmp_path: Path) -> None:
    """By suffix, by scheme, by what a folder holds."""
    (tmp_path / "saved_model.pb").write_bytes(b"")
    for source in ("g.pb", "g.pb?fetches=a", "m.keras", "tensorflow:a.b:c", str(tmp_path)):
        assert is_tensorflow(source)
    assert not is_tensorflow("graph.json")
    assert not is_tensorflow("zoo:resnet50")
    with pytest.raises(PlacewrightError, match="unknown option"):
        capture_tensorflow("g.pb?outputs=a")
    with pytest.raises(InputError, match="--training"):
        capture_tensorflow("g.pb", training=True)


def test_what_tensorflow_writes_is_in_a_folder_of_its_own(process: TensorFlowProcess) -> None:
    """Modules of AutoGraph, which are imported from the temporary folder."""
    environment = Path(f"/proc/{process._process.pid}/environ").read_bytes().split(b"\0")
    assert f"TMPDIR={folder_of_process()}".encode() in environment
