"""Graph files: read back equal, and errors that name the field."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.errors import InputError, UnknownNameError
from placewright.graph.files import (
    argument_from_json,
    argument_json,
    graph_from_json,
    graph_json,
    read_graph,
    write_graph,
)
from placewright.graph.graph import (
    Const,
    Graph,
    Instruction,
    Operator,
    Program,
    ProgramInput,
    ProgramOutput,
    Ref,
    Tensor,
    TensorSpec,
)

SPEC = TensorSpec((2, 3), "float32", (3, 1))


def small() -> Graph:
    """Two operators with a bit of everything."""
    operators = (
        Operator("a", "aten.add.Tensor", 1.5, 2.0, 24, "forward", "m", "s", "g", (SPEC,)),
        Operator("b/adam", "aten.clamp.default", outputs=(SPEC,)),
    )
    tensors = (Tensor("a", "a", 24, ("b/adam",)), Tensor("after:a", "a", 0, ("b/adam",)))
    calls = (
        Instruction("a", "aten.add.Tensor", (Ref("parameter:w"), 1), {}, ("a",), random=True),
        Instruction(
            "b/adam",
            "aten.clamp.default",
            ((Ref("a"), None), -math.inf, "x", True, (1, 2.0)),
            {"dtype": Const("dtype", "float32")},
            ("",),
            mutates=("parameter:w",),
        ),
    )
    inputs = (
        ProgramInput("parameter:w", "parameter", "w", SPEC, "g", True),
        ProgramInput("constant:c", "constant", "c", TensorSpec((), "bool")),
    )
    outputs = (ProgramOutput("loss", "a"),)
    optimizer = {"name": "adam", "lr": 0.1}
    program = Program(inputs, calls, outputs, True, optimizer, {"constant:c": "AQ=="})
    return Graph("small", operators, tensors, program)


def same(one: Graph, two: Graph) -> bool:
    """Field by field, the program too."""
    fields = ("inputs", "instructions", "outputs", "training", "optimizer", "constants")
    return (one.name, one.operators, one.tensors) == (two.name, two.operators, two.tensors) and (
        one.program is None is two.program
        or all(getattr(one.program, key) == getattr(two.program, key) for key in fields)
    )


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_graph_is_read_back_equal(tmp_path: Path, name: str) -> None:
    """Plain and compressed."""
    assert same(read_graph(write_graph(small(), tmp_path / name)), small())


def test_a_graph_without_a_program_is_read_back_equal(tmp_path: Path) -> None:
    """Published graphs can be planned and not run."""
    graph = Graph("plain", (Operator("a", "k"),), ())
    assert same(read_graph(write_graph(graph, tmp_path / "graph.json")), graph)


def test_the_same_graph_is_the_same_file(tmp_path: Path) -> None:
    """To the byte, compressed too."""
    one, two = (write_graph(small(), tmp_path / name) for name in ("1.json.gz", "2.json.gz"))
    assert one.read_bytes() == two.read_bytes()


def test_a_file_without_a_name_is_called_after_itself() -> None:
    """The stem of the file."""
    data = {"operators": [{"name": "a", "kind": "k"}]}
    assert graph_from_json(data, where="folder/net.json.gz").name == "net"


arguments = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.builds(Ref, st.text())
    | st.builds(Const, st.sampled_from(["dtype", "device", "layout", "memory_format"]), st.text()),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=10,
)


@given(arguments)
def test_any_argument_survives_json(argument: Any) -> None:
    """Through text, with the type of every number."""
    back = argument_from_json(json.loads(json.dumps(argument_json(argument), allow_nan=False)))
    assert repr(back) == repr(argument)


def test_not_a_number_survives_json() -> None:
    """It equals nothing, itself included."""
    assert math.isnan(argument_from_json(argument_json(math.nan)))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The data of the small graph with one field set, or removed where `value` is ``...``."""
    data = copy.deepcopy(graph_json(small()))
    here: Any = data
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in way:
        here = here[part]
    if value is ...:
        del here[last]
    else:
        here[last] = value
    return data


def nested(levels: int) -> list[Any]:
    """An empty list in as many lists."""
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema_version", 2, "graph.json: schema_version: must be 1"),
        ("operators", ..., "graph.json: operators: is missing"),
        ("operators", [], "at least one operator"),
        ("operators/0/flop", 1, r"operators\[0\].flop: unknown key 'flop'\n.*'flops'"),
        ("operators/0/flops", -1, r"operators\[0\].flops: must be greater"),
        ("operators/0/flops", "many", r"operators\[0\].flops: must be a valid number"),
        ("operators/1/name", "a", "'a' is used twice"),
        ("operators/0/outputs/0/shape", [-1], r"operators\[0\].outputs\[0\].shape\[0\]"),
        ("operators/0/outputs", [], "instruction 'a': its results must be.*1 results, 0 outputs"),
        ("operators/0/outputs/0/dtype", "foo", r"outputs\[0\].dtype: unknown dtype 'foo'"),
        ("operators/0/outputs/0/dtype", "none", "instruction 'a': the value 'a' has no dtype"),
        ("tensors/0/bytes", -3, r"tensors\[0\].bytes"),
        ("tensors/0/consumers", ["c"], "unknown operator 'c'"),
        ("tensors/0/consumers", ["a"], "before 'a' makes it"),
        ("tensors/0/name", "z", "tensors: unknown value 'z'"),
        ("tensors/1/name", "a", "tensors: 'a' is listed twice"),
        ("program/inputs/0/role", "weight", r"program.inputs\[0\].role: must be 'parameter'"),
        ("program/inputs/0/spec/dtype", "float23", r"spec.dtype: unknown.*mean 'float32'"),
        ("program/inputs/0/spec/dtype", "none", "inputs: the value 'parameter:w' has no dtype"),
        ("program/instructions/1/name", "c", "the graph's operators in the same order"),
        ("program/instructions/0/args", [{"ref": "w"}], "instruction 'a': unknown value 'w'"),
        ("program/instructions/0/args", [{"rev": "w"}], r"instructions\[0\].args\[0\]: is no arg"),
        ("program/instructions/0/args", [{"float": ["inf"]}], r"args\[0\]: is no argument"),
        ("program/instructions/0/args", [nested(600)], r"args\[0\]: has lists within lists"),
        ("program/instructions/1/mutates", ["w"], "instruction 'b/adam': unknown value 'w'"),
        ("program/instructions/1/results", [], "instruction 'b/adam'.*0 results, 1 outputs"),
        ("program/instructions/1/results", ["a"], "value 'a' is made twice"),
        ("program/outputs/0/value", "y", "outputs: unknown value 'y'"),
        ("program/constants/constant:c", "?", "is not base64"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_field(path: str, value: Any, says: str) -> None:
    """Four parts, as everywhere."""
    with pytest.raises(InputError, match=rf"(?s)graph.json.*{says}|^{says}"):
        graph_from_json(changed(path, value), where="graph.json")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("graph.json", b"{", "not valid JSON"),
        ("graph.json", b"[]", "must be a mapping"),
        ("graph.json", b"\xff", "not a text file"),
        ("graph.json", b'{"operators": [{"name": "a", "kind": "k", "flops": NaN}]}', "flops"),
        ("graph.json.gz", b"{}", "cannot be read as gzip"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """Names the file."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_graph(path)
    assert name in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Plain and compressed."""
    for name in ("none.json", "none.json.gz"):
        with pytest.raises(InputError, match=name):
            read_graph(tmp_path / name)


def test_an_unknown_value_offers_the_nearest() -> None:
    """The error keeps its kind on the way out of the file."""
    with pytest.raises(UnknownNameError, match="did you mean 'parameter:w'"):
        graph_from_json(
            changed("program/instructions/0/args", [{"ref": "parameter:v"}]), where="g.json"
        )
