"""Placed ONNX models: parts, outputs, written files, command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from placewright.capturing.files.model_file import ModelFile
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.deployment.model_files import (
    FileWorkload,
    capture_model_file,
    profile_model_file,
    unplaced_outputs,
)
from placewright.errors import CheckError, InputError, RunError, UnsupportedError
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.planning.result import Result
from placewright.planning.solving import judged_plan
from placewright.runtime.model_files import FilePlacement
from placewright.runtime.model_files.onnx_sessions import OnnxSessions, _by_node, parts_of
from tests.capturing.files.models import branching, save
from tests.cli.run_cli import run_cli

THREE = Cluster((Device("a"), Device("b"), Device("c")))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """The branching CNN, captured."""
    return capture_model_file(branching(tmp_path_factory.mktemp("onnx") / "cnn.onnx"))


def workload(file: ModelFile, cluster: Cluster = THREE) -> FileWorkload:
    """The model on a cluster, at computed costs."""
    return FileWorkload(file, cluster, profile_model_file(file, cluster, method="analytic"))


def scattered(load: FileWorkload) -> Result:
    """Operators in turns on all devices."""
    return judged_plan(load.problem, OperatorPlan(np.arange(load.problem.n) % load.problem.m))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_parts_hold_every_operator_once_and_find_their_inputs_made(
    file: ModelFile, devices: list[int]
) -> None:
    """Parts hold every operator once and find their inputs made."""
    names = file.graph.operator_names
    device = dict(zip(names, devices, strict=True))
    parts = parts_of(file, device, names)
    assert sorted(name for part in parts for name in part.nodes) == sorted(names)
    assert all(device[name] == part.device for part in parts for name in part.nodes)
    # Each device runs its parts in order and waits for inputs: nobody waits for ever.
    waiting = {d: [p for p in parts if p.device == d] for d in range(3)}
    made = {spec.name for spec in file.inputs}
    while any(waiting.values()):
        ready = [d for d, own in waiting.items() if own and set(own[0].inputs) <= made]
        assert ready
        for d in ready:
            made |= set(waiting[d].pop(0).outputs)
    assert set(file.outputs) <= made


def written(path: Path, graph: onnx.GraphProto) -> ModelFile:
    """A model of one graph, captured."""
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return capture_model_file(path)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_right_run_passes_its_check_in_every_type(tmp_path: Path, dtype: type) -> None:
    """The runtime computes a whole model of 16 bits in 32, and rounds where a part ends."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, kind, [8, 64]) for name in ("h0", "h4")]
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array((rng.standard_normal((64, 64)) / 8).astype(dtype), f"w{k}")
        for k in range(4)
    ]
    nodes = [helper.make_node("MatMul", [f"h{k}", f"w{k}"], [f"h{k + 1}"]) for k in range(4)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    load = workload(written(tmp_path / "products.onnx", graph))
    checked = load.measure(scattered(load), steps=1, warmup=0, check=True).check
    assert checked is not None
    assert checked.passed
    assert checked.tolerance.relative == (1e-5 if dtype is np.float32 else 2.0**-5.5)


def test_outputs_that_no_operator_makes_are_given(tmp_path: Path) -> None:
    """An initializer, a Constant and what is computed from constants, in runs and in files."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.ones(3, "f"))
        ),
        helper.make_node("Neg", ["w"], ["n"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    shapes = {"y": [2, 4], "w": [8, 4], "c": [3], "n": [8, 4], "h": [2, 4]}
    outputs = [info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    inputs = [info("x", onnx.TensorProto.FLOAT, [2, 8])]
    weight = onnx.numpy_helper.from_array(np.arange(32, dtype="f").reshape(8, 4), "w")
    graph = helper.make_graph(nodes, "constants", inputs, outputs, [weight])
    load = workload(written(tmp_path / "constants.onnx", graph))
    checked = load.measure(scattered(load), steps=1, warmup=0, check=True).check
    assert checked is not None
    assert (checked.passed, checked.compared["output"]) == (True, 5)
    assert load.export(scattered(load), tmp_path / "written")[1].max_abs_error == 0.0


FLOAT, WORDS = onnx.TensorProto.FLOAT, onnx.TensorProto.STRING
QUARTER = onnx.numpy_helper.from_array(np.float32(0.25), "quarter")
LEVELS = helper.make_tensor("w", onnx.TensorProto.INT4, [64, 64], list(range(-8, 8)) * 256)
CHANCES = onnx.numpy_helper.from_array(np.full(64, 0.5, "f"), "chances")
TRAINS = onnx.numpy_helper.from_array(np.array(True), "trains")
TAIL = onnx.numpy_helper.from_array(np.array(["é"], dtype=object), "tail")
ODD: dict[str, tuple[list[onnx.NodeProto], list[onnx.TensorProto], int]] = {
    "bernoulli of constants": (
        [helper.make_node("Bernoulli", ["chances"], ["drawn"])],
        [CHANCES],
        FLOAT,
    ),
    "dropout of constants": (
        [helper.make_node("Dropout", ["chances", "quarter", "trains"], ["drawn"])],
        [CHANCES, QUARTER, TRAINS],
        FLOAT,
    ),
    "weights of 4 bits": (
        [
            helper.make_node("DequantizeLinear", ["w", "quarter"], ["weight"]),
            helper.make_node("MatMul", ["x", "weight"], ["h"]),
            helper.make_node("MatMul", ["h", "weight"], ["y"]),
        ],
        [LEVELS, QUARTER],
        FLOAT,
    ),
    "texts": (
        [
            helper.make_node("StringConcat", ["x", "tail"], ["h"]),
            helper.make_node("StringConcat", ["h", "tail"], ["y"]),
        ],
        [TAIL],
        WORDS,
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_parts_compute_what_the_whole_model_does(tmp_path: Path, kind: str) -> None:
    """Random numbers are drawn once, rounding differs by a step, texts are equal."""
    nodes, held, elements = ODD[kind]
    if nodes[0].output[0] == "drawn":  # y is x, whatever was drawn
        ends = [helper.make_node(op, ["x", "drawn"], [op.lower()]) for op in ("Add", "Sub")]
        nodes = [*nodes, *ends, helper.make_node("Sum", ["add", "sub"], ["y"])]
    info = [helper.make_tensor_value_info(name, elements, [2, 64]) for name in ("x", "y")]
    load = workload(
        written(tmp_path / "odd.onnx", helper.make_graph(nodes, "odd", info[:1], info[1:], held))
    )
    checked = load.measure(scattered(load), steps=1, warmup=0, check=True).check
    assert checked is not None
    assert checked.passed, checked
    assert (checked.max_abs_error > 1e-5) == (kind == "weights of 4 bits")


def test_a_batch_that_a_model_does_not_take_is_named(tmp_path: Path) -> None:
    """By both runtimes; shape inference of ONNX does not see it."""
    one = onnx.numpy_helper.from_array(np.array([1, 4]), "one")
    ends = [
        helper.make_tensor_value_info(n, FLOAT, s) for n, s in {"x": ["N", 4], "y": [1, 4]}.items()
    ]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "one"], ["y"])], "fixed", ends[:1], ends[1:], [one]
    )
    opsets = [helper.make_opsetid("", 21)]
    path = tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    with pytest.raises(RunError, match=r"fixed\.onnx: ONNX Runtime failed .*reshape"):
        profile_model_file(capture_model_file(path, 3), THREE)
    with pytest.raises(InputError, match="does not take a batch of 3"):
        capture_model_file(f"openvino:{path}", 3)


BF16, E4M3, INT4 = (
    getattr(onnx.TensorProto, name) for name in ("BFLOAT16", "FLOAT8E4M3FN", "INT4")
)


@pytest.mark.parametrize(
    ("given", "between", "made"),
    [(FLOAT, BF16, FLOAT), (FLOAT, E4M3, FLOAT), (FLOAT, INT4, FLOAT), (BF16, FLOAT, BF16)],
)
def test_types_that_numpy_lacks_go_from_part_to_part(
    tmp_path: Path, given: int, between: int, made: int
) -> None:
    """And into a model and out of it; in a file of parts, too."""
    kinds = {"x": given, "h": FLOAT, "low": between, "wide": FLOAT, "y": made}
    casts = zip(kinds, [*kinds][1:], strict=False)
    nodes = [helper.make_node("Cast", [a], [b], to=kinds[b]) for a, b in casts]
    ends = [helper.make_tensor_value_info(name, kinds[name], [2, 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "low", ends[:1], ends[1:])
    load = workload(written(tmp_path / "low.onnx", graph))
    checked = load.measure(scattered(load), steps=1, warmup=0, check=True).check
    assert checked is not None
    assert checked.passed, checked
    assert (profile_model_file(load.file, THREE).compute_s > 0).any()  # measured
    assert load.export(scattered(load), tmp_path / "written")[1].max_abs_error == 0.0


def test_a_scattered_model_gives_the_outputs_of_the_whole_one(file: ModelFile) -> None:
    """A scattered model gives the outputs of the whole one."""
    load = workload(file)
    result = scattered(load)
    measured = load.measure(result, beside=best_single(load.problem), steps=2, check=True)
    assert measured.check is not None
    assert measured.check.passed
    assert len(measured.step_s) == 2
    assert measured.baseline is not None
    assert "onnxruntime" in measured.engine


def test_a_difference_from_the_unplaced_model_is_found(file: ModelFile) -> None:
    """A difference from the unplaced model is found."""
    load, inputs = workload(file), file.random_inputs()
    changed = onnx.ModelProto.FromString(file.model.SerializeToString())
    changed.graph.node[-1].attribute.append(helper.make_attribute("alpha", 1.01))
    names = file.graph.operator_names
    other = FilePlacement(replace(file, model=changed), THREE, dict.fromkeys(names, 0), names)
    with (
        OnnxSessions(other) as placed,
        pytest.raises(CheckError, match="differs from the unplaced model on onnxruntime"),
    ):
        load.check(placed, inputs).demand()


def test_slow_links_and_devices_are_waited_for(file: ModelFile) -> None:
    """Slow links and devices are waited for."""
    slow = Cluster(
        (Device("a", speed=2.0), Device("b", speed=0.5, node="other")),
        (Link("a", "b", 1e9, 0.02), Link("b", "a", 1e9, 0.02)),
    )
    load = workload(file, slow)
    result = scattered(load)
    crossings = int((np.diff(result.plan.placement) != 0).sum())
    assert crossings > 3
    measured = load.measure(result, steps=1, warmup=0)
    assert measured.measured_s > 3 * 0.02  # at least the longest chain of transfers
    assert measured.emulated == "b at speed 0.5, links"  # nothing is sped up
    assert load.measure(result, steps=1, warmup=0, emulate=False).emulated == ""


def test_an_operator_without_implementation_is_refused_by_name(tmp_path: Path) -> None:
    """An operator without implementation is refused by name."""
    nodes = [helper.make_node("Frobnicate", ["x"], ["z"], name="mystery", domain="acme")]
    nodes.append(helper.make_node("Relu", ["z"], ["y"], name="relu"))
    path = save(tmp_path / "odd.onnx", nodes, [], {"x": [2]}, {"y": [2]})
    with pytest.raises(UnsupportedError, match=r"node 'mystery' \(acme.Frobnicate\)"):
        capture_model_file(path)


def test_a_device_without_provider_is_refused_when_it_runs(file: ModelFile) -> None:
    """A device without provider is refused when it runs."""
    load = workload(file, Cluster((Device("cpu"), Device("odd", kind="npu"))))
    with pytest.raises(UnsupportedError, match=r"no execution provider for devices of kind 'npu'"):
        load.measure(scattered(load), steps=1)


def test_what_is_written_runs_in_plain_onnxruntime(file: ModelFile, tmp_path: Path) -> None:
    """What is written runs in plain ONNX Runtime."""
    import onnxruntime

    load = workload(file)
    files, check = load.export(scattered(load), tmp_path / "placed")
    assert check.passed
    manifest = json.loads(files[0].read_text())
    inputs = file.random_inputs(1)
    values = dict(inputs)
    for part in manifest["parts"]:
        session = onnxruntime.InferenceSession(str(files[0].parent / part["file"]))
        made = session.run(part["outputs"], {name: values[name] for name in part["inputs"]})
        values |= dict(zip(part["outputs"], made, strict=True))
    wanted = unplaced_outputs(file, inputs)
    np.testing.assert_allclose(values["y"], wanted["y"], rtol=0, atol=1e-5)
    assert {o for part in manifest["parts"] for o in part["operators"]} == set(
        file.graph.operator_names
    )


def test_the_command_line_plans_runs_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line plans runs and exports."""
    model, plan, duo = branching(tmp_path / "cnn.onnx"), tmp_path / "plan.json", "edge-duo"
    made = run_cli(
        capsys, "operators", "plan", model, "--on", duo, "--planner", "round-robin", "-o", plan
    )
    assert made.code == 0
    run = ("operators", "run", model, plan, "--on", duo, "--steps", 2, "--check", "-f", "json")
    ran = run_cli(capsys, *run).data
    assert ran["check"]["passed"]
    assert ran["max_abs_error"] < 1e-5
    assert ran["measured_s"] > 0
    assert ran["baseline"]["name"].startswith("board-")
    folder = tmp_path / "placed"
    written = run_cli(capsys, "operators", "export", model, plan, "--on", duo, "--folder", folder)
    assert written.code == 0
    assert (folder / "manifest.json").is_file()


@pytest.mark.parametrize("option", ["--training", "--adapt"])
def test_options_of_pytorch_models_are_refused(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of PyTorch models are refused."""
    output = run_cli(capsys, "operators", "run", branching(tmp_path / "cnn.onnx"), option)
    assert output.code == 1
    assert f"{option} is for PyTorch models" in output.err


def test_a_plan_of_another_model_is_refused(file: ModelFile, tmp_path: Path) -> None:
    """A plan of another model is refused."""
    other = capture_model_file(branching(tmp_path / "cnn.onnx"))
    load = workload(file)
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    small = capture_model_file(save(tmp_path / "s.onnx", nodes, [], {"x": [2]}, {"y": [2]}))
    foreign = workload(small)
    with load.placed(scattered(workload(other))):
        pass
    with pytest.raises(InputError, match="the plan is for another graph"):
        load.placed(scattered(foreign))


def test_a_profile_that_a_full_disk_has_cut_off_is_named(tmp_path: Path) -> None:
    """ONNX Runtime itself says nothing of it."""
    profile = tmp_path / "profile.json"
    profile.write_text('[{"cat": "Node", "na')
    with pytest.raises(RunError, match=r"profile\.json: .*not complete \(20 bytes\)"):
        _by_node(profile)
