"""Operations are the verbs of the command line; requests name no path and no program."""

from __future__ import annotations

import math
from contextlib import suppress
from inspect import signature

import pytest
from pydantic import ValidationError
from typer.main import get_command

from placewright.cli.main import app, every_verb
from placewright.cli.service_operations import operations_of
from placewright.errors import InputError
from placewright.planning.wings import registered
from placewright.service.operations import EXCLUDED, EXCLUDED_OPTIONS, offered, used_file
from tests.planning.test_toy_wing import WING

OPERATIONS = offered(operations_of(every_verb()))


def verbs_of_the_command_line() -> set[str]:
    """As typer lists them."""
    root = get_command(app)
    found = set()
    for name in root.list_commands(None):  # type: ignore[attr-defined]
        command = root.get_command(None, name)  # type: ignore[attr-defined]
        own = command.list_commands(None) if hasattr(command, "list_commands") else []
        found |= {f"{name}.{verb}" for verb in own} or {name}
    return found


def test_every_verb_is_an_operation_or_excluded_with_a_reason() -> None:
    """And nothing else is one."""
    missing = verbs_of_the_command_line() - set(OPERATIONS)
    assert {each.partition(".")[0] if "testbed" in each else each for each in missing} == set(
        EXCLUDED
    )
    assert set(OPERATIONS) <= verbs_of_the_command_line()


def test_options_and_their_arguments_are_those_of_the_verb() -> None:
    """Defaults are left out; files that are written are named by the service alone."""
    plan = OPERATIONS["operators.plan"]
    schema = plan.model.model_json_schema()["properties"]
    assert schema["objective"]["anyOf"][0]["enum"] == ["latency", "throughput", "diffmaxima"]
    assert schema["batch"]["anyOf"][0]["minimum"] == 1
    assert schema["time_limit"]["default"] == 60.0
    assert not {"output", "report", "format"} & set(schema)
    assert schema["trace"]["type"] == "boolean"
    given = {"source": "zoo:resnet50", "bounds": False, "training": True, "seed": 0, "batch": 2}
    given |= {"trace": True}
    assert plan.arguments(given, "out") == [
        *("operators", "plan", "--training", "--batch=2", "--no-bounds"),
        *("--report=out/report.html", "--trace=out/trace.json.gz", "--output=out/result.json"),
        *("--", "zoo:resnet50"),
    ]
    beside = {"source": "family.yaml", "beside": ["small.onnx"]}
    assert "small.onnx" not in plan.arguments(beside, "out")
    assert [text for _, text in plan.texts(beside)] == ["family.yaml", "small.onnx"]
    run = OPERATIONS["samples.run"]
    words = run.arguments({"file": "nodes.yaml", "checkpoint": True, "adapt": True}, "out")
    assert "--checkpoint=out/checkpoint.safetensors" in words
    run = OPERATIONS["layers.run"]
    words = run.arguments({"model": "zoo:vgg16", "weights": True, "slow": ["a:1:2"]}, "out")
    assert {"--weights=out/weights.safetensors", "--slow=a:1:2"} <= set(words)


@pytest.mark.parametrize("name", EXCLUDED_OPTIONS)
def test_what_a_job_cannot_use_is_no_option_of_its_operation(name: str) -> None:
    """It reads folders, or files of another job, or changes a copy; the command line has it."""
    verb, _, option = name.rpartition(".")
    declared = dict(every_verb())[(*verb.split("."),)]
    assert option in signature(declared).parameters
    assert option not in OPERATIONS[verb].model.model_fields


@pytest.mark.parametrize(
    "given",
    [
        *({}, {"source": "x", "report": "a"}, {"source": "x", "batch": 0}, {"source": 3}),
        *({"source": "x", "seed": wrong} for wrong in (True, "5", 1.5)),
        *({"source": "x", name: "no"} for name in ("bounds", "trace", "time_limit")),
    ],
)
def test_what_the_schema_does_not_allow_is_refused(given: dict[str, object]) -> None:
    """A missing argument, an option of the service's own, a number out of range, another type."""
    with pytest.raises(ValidationError):
        OPERATIONS["operators.plan"].model.model_validate(given)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_value_is_an_error_of_the_service(name: str) -> None:
    """Whatever is given for an option, it is taken or refused."""
    model, values = OPERATIONS[name].model, ([], {}, None, "", "x", -1, 2**70, math.inf, [[]], [-1])
    for option in model.model_fields:
        for value in values:
            with suppress(ValidationError):
                model.model_validate({option: value})


@pytest.mark.parametrize(
    "text",
    [
        *("/etc/passwd", "../secret", "..", "a/b", "a\\b", "file:///etc/passwd", "a\0b", "-o"),
        *("msr:/etc/passwd", "dag:../x.json", "@/etc/passwd", "os:system", "net.py:make"),
        *("tensorflow:a.b:c", "openvino:a.b:c", "onnx:model.onnx", "dag:unknown.json"),
        *("dot:problem.json?cluster=%2Fetc%2Fpasswd", "dot:problem.json?cluster=..%2fx"),
    ],
)
def test_paths_and_programs_are_refused(text: str) -> None:
    """Where any text may stand."""
    for operation, name in (("operators.plan", "source"), ("operators.plan", "planner")):
        option = next(each for each in OPERATIONS[operation].options if each.name == name)
        with pytest.raises(InputError):
            used_file(option, text, ["problem.json", "net.py"], ["mine:make"])


@pytest.mark.parametrize(
    ("text", "file"),
    [
        *(("problem.json", "problem.json"), ("dag:problem.json?x=1", "problem.json")),
        *(("zoo:resnet50", None), ("openvino:zoo:resnet50", None), ("edge-duo", None)),
        *(("mine:make", None), ("search(effort=1e6)", None), ("@problem.json", "problem.json")),
        ("openvino:problem.json", "problem.json"),
    ],
)
def test_stored_files_presets_and_allowed_models_are_taken(text: str, file: str | None) -> None:
    """By name."""
    option = OPERATIONS["operators.plan"].options[0]
    assert used_file(option, text, ["problem.json"], ["mine:make"]) == file


@pytest.mark.parametrize("text", ["os:1", "os:e", "os:zoo:resnet50", "os:problem.json"])
def test_no_module_is_named_by_what_looks_harmless(text: str) -> None:
    """Numbers after a colon are taken only where no model may stand."""
    model = OPERATIONS["operators.plan"].options[0]
    with pytest.raises(InputError):
        used_file(model, text, ["problem.json"], [])
    slow = next(each for each in OPERATIONS["layers.run"].options if each.name == "slow")
    assert used_file(slow, "worker:3:2.5", [], []) is None
    with pytest.raises(InputError):
        used_file(model, "only:board-a", ["problem.json"], [])
    planner = next(each for each in OPERATIONS["operators.plan"].options if each.name == "planner")
    assert used_file(planner, "only:board-a", [], []) is None


@pytest.mark.parametrize("engine", ["testbed", "torchrun"])
def test_engines_that_are_the_administrators_are_not_taken(engine: str) -> None:
    """A testbed changes the machine's network; the command line still offers it."""
    run = OPERATIONS["operators.run"]
    assert run.model(source="zoo:resnet50", engine="local")
    with pytest.raises(ValidationError, match="engine"):
        run.model(source="zoo:resnet50", engine=engine)


def test_a_wing_of_one_file_has_its_operations() -> None:
    """Without an edit elsewhere."""
    with registered(WING):
        found = offered(operations_of(every_verb()))
    assert {"packing.plan", "packing.compare", "packing.simulate"} <= set(found)
    assert found["packing.plan"].model.model_json_schema()["required"] == ["file"]
