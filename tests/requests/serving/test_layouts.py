"""Own models of every shape: answers are those of their runtime, or they are refused by name."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewright.errors import InputError
from placewright.requests.serving.families import (
    Family,
    FamilyLayout,
    Variant,
    make_family,
    read_family,
)
from placewright.requests.serving.models import factory_model, open_model, open_session
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.requests.serving.tensors import Array

FLOAT, INT, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
Shape = list[Any]
RNG = np.random.default_rng(0)
ROWS = {"axes": np.array([1]), "all": np.array([1, 2, 3])}


def model_of(
    nodes: list[Any],
    inputs: dict[str, tuple[int, Shape]],
    outputs: dict[str, tuple[int, Shape]],
    **constants: Any,
) -> bytes:
    """An ONNX file."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 21)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    return data


def node(kind: str, inputs: str, outputs: str, **how: Any) -> Any:
    """One operator."""
    return helper.make_node(kind, inputs.split(), outputs.split(), **how)


def tagger() -> bytes:
    """A score for every token, by its mask and what the whole sentence holds."""
    nodes = [
        node("Cast", "mask", "m", to=FLOAT),
        node("Cast", "ids", "i", to=FLOAT),
        node("Mul", "i m", "kept"),
        node("ReduceSum", "kept axes", "total", keepdims=1),
        node("Add", "kept total", "scores"),
    ]
    tokens = (INT, ["batch", "length"])
    inputs = {"ids": tokens, "mask": tokens}
    return model_of(nodes, inputs, {"scores": (FLOAT, ["batch", "length"])}, axes=ROWS["axes"])


def pooled(rows: Any = "n") -> bytes:
    """The mean over an image of whatever size."""
    nodes = [node("ReduceMean", "image axes", "mean", keepdims=0)]
    return model_of(
        nodes,
        {"image": (FLOAT, [rows, 3, "height", "width"])},
        {"mean": (FLOAT, [rows, 3])},
        axes=np.array([2, 3]),
    )


def product(rows: Any) -> bytes:
    """Rows of eight numbers times a matrix."""
    weight = RNG.standard_normal((8, 4)).astype(np.float32)
    nodes = [node("MatMul", "x w", "y")]
    return model_of(nodes, {"x": (FLOAT, [rows, 8])}, {"y": (FLOAT, [rows, 4])}, w=weight)


def detector() -> bytes:
    """Boxes above a threshold: as many as there are."""
    nodes = [
        node("Reshape", "image flat", "boxes"),
        node("Gather", "boxes zero", "scores", axis=1),
        node("Greater", "scores half", "taken"),
        node("Compress", "boxes taken", "found", axis=0),
    ]
    constants = {"flat": np.array([-1, 6]), "zero": np.array(0), "half": np.float32(0.5)}
    inputs = {"image": (FLOAT, [1, 2, 3, 6])}
    return model_of(nodes, inputs, {"found": (FLOAT, ["boxes", 6])}, **constants)


def words() -> bytes:
    """Numbers of words, and the words themselves."""
    encoder = helper.make_node(
        "LabelEncoder",
        ["words"],
        ["numbers"],
        domain="ai.onnx.ml",
        keys_strings=["cat", "d\u00f6g"],
        values_int64s=[7, 9],
        default_int64=-1,
    )
    made = onnx.ModelProto.FromString(
        model_of(
            [encoder, node("Identity", "words", "same")],
            {"words": (TEXT, ["n", 2])},
            {"numbers": (INT, ["n", 2]), "same": (TEXT, ["n", 2])},
        )
    )
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    data: bytes = made.SerializeToString()
    return data


def ask(running: Running, name: str, **inputs: Array) -> dict[str, Array]:
    """Outputs of a request; `InputError` with what the server says where it refuses."""
    kinds = {"f": "FP32", "i": "INT64", "O": "BYTES"}
    tensors = [
        {"name": n, "datatype": kinds[a.dtype.kind], "shape": a.shape, "data": a.tolist()}
        for n, a in inputs.items()
    ]
    url = f"{running.url}/v2/models/{name}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps({"inputs": tensors}).encode()) as answer:
            outputs = json.load(answer)["outputs"]
    except urllib.error.HTTPError as error:
        raise InputError(json.load(error)["error"]) from None
    return {o["name"]: np.array(o["data"], object).reshape(o["shape"]) for o in outputs}


def floats(*shape: int) -> Array:
    """Random numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def tokens(rows: int, length: int) -> dict[str, Array]:
    """Random sentences, all of it theirs."""
    return {
        "ids": RNG.integers(1, 99, (rows, length)),
        "mask": np.ones((rows, length), np.int64),
    }


SIZES = FamilyLayout({"length": (4, 8)}, padding=True)
IMAGES = FamilyLayout({"height": (4, 6), "width": (5,)})

SERVED: dict[str, tuple[bytes, FamilyLayout, Callable[[], dict[str, Array]]]] = {
    "padded": (tagger(), SIZES, lambda: tokens(int(RNG.integers(1, 4)), int(RNG.integers(1, 9)))),
    "images": (
        pooled(),
        IMAGES,
        lambda: {"image": floats(2, 3, int(RNG.choice([4, 6])), 5)},
    ),
    "four": (product(4), FamilyLayout(), lambda: {"x": floats(int(RNG.integers(1, 7)), 8)}),
    "one": (product(1), FamilyLayout(), lambda: {"x": floats(int(RNG.integers(1, 4)), 8)}),
    "boxes": (detector(), FamilyLayout(whole=True), lambda: {"image": floats(1, 2, 3, 6)}),
    "words": (
        words(),
        FamilyLayout(),
        lambda: {"words": RNG.choice(np.array(["cat", "d\u00f6g", "?"], object), (3, 2))},
    ),
}


def alone(model: bytes, inputs: dict[str, Array], batch: int) -> list[Array]:
    """What the model's runtime computes of each row by itself, without padding."""
    session = open_session(model, "test")
    if not batch:
        found: list[Array] = session.run(None, inputs)
        return found
    names = list(inputs)
    rows = [
        session.run(None, {n: np.repeat(inputs[n][k : k + 1], batch, 0) for n in names})
        for k in range(len(inputs[names[0]]))
    ]
    return [np.concatenate([value[:1] for value in column]) for column in zip(*rows, strict=True)]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A server of all these models, with batches of up to eight rows."""
    families = [
        make_family(name, [Variant("v", 0.9, model)], layout)
        for name, (model, layout, _) in SERVED.items()
    ]
    options = ServingOptions(port=0, most_batch=8)
    with serve(families, {"a": 1.0}, options) as found:
        yield found


@pytest.mark.parametrize("name", SERVED)
def test_answers_are_those_of_the_models_runtime(name: str, running: Running) -> None:
    """Row by row, for eight clients at once."""
    model, _, draw = SERVED[name]
    batch = {"four": 4, "boxes": 0}.get(name, 1)
    requests = [draw() for _ in range(40)]
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda inputs: ask(running, name, **inputs), requests))
    for inputs, outputs in zip(requests, found, strict=True):
        for got, want in zip(outputs.values(), alone(model, inputs, batch), strict=True):
            assert got.shape == want.shape
            if want.dtype.kind == "f":
                np.testing.assert_allclose(got.astype(float), want, rtol=1e-5)
            else:
                assert (got == want).all()


def test_rows_of_one_shape_share_a_batch_and_have_their_own_latencies(running: Running) -> None:
    """Policies see each bucket as a family; clients, metadata and the index see one model."""
    names = running.dispatcher.service.family_names
    assert names[:2] == ("padded@length=4", "padded@length=8")
    assert len(names) == 2 + 2 + 4
    with urllib.request.urlopen(f"{running.url}/v2/models/padded") as answer:
        assert json.load(answer)["inputs"][0]["shape"] == [-1, -1]
    index = urllib.request.Request(f"{running.url}/v2/repository/index", method="POST")
    with urllib.request.urlopen(index) as answer:
        assert [each["name"] for each in json.load(answer)] == list(SERVED)


WRONG: dict[str, tuple[str, dict[str, Array], str]] = {
    "too long": ("padded", tokens(1, 9), "length is 9, served is up to the largest of 4, 8"),
    "of two lengths": ("padded", {**tokens(1, 3), "mask": np.ones((1, 4), np.int64)}, "3 and 4"),
    "another size": ("images", {"image": floats(1, 3, 5, 5)}, "height is 5, served is one of 4, 6"),
    "two of a whole": ("boxes", {"image": floats(2, 2, 3, 6)}, "2 rows, not 1"),
    "no strings": ("words", {"words": np.array([["cat", 1.5]], object)}, "2 strings"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_shapes_are_refused_with_those_that_are_served(name: str, running: Running) -> None:
    """Never padded or cut in silence."""
    model, inputs, says = WRONG[name]
    with pytest.raises(InputError, match=says):
        ask(running, model, **inputs)


def started(model: bytes, layout: FamilyLayout) -> str:
    """Why it is not served; or empty."""
    try:
        with serve([make_family("m", [Variant("v", 0.9, model)], layout)], {"a": 1.0}, PORT):
            return ""
    except InputError as error:
        return str(error)


PORT = ServingOptions(port=0)


def dictionaries() -> bytes:
    """What skl2onnx makes of a classifier, unless it is told otherwise."""
    zipped = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    )
    made = onnx.ModelProto.FromString(
        model_of([zipped], {"x": (FLOAT, ["n", 3])}, {"y": (FLOAT, ["n", 3])})
    )
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    value = helper.make_map_type_proto(INT, helper.make_tensor_type_proto(FLOAT, []))
    made.graph.output[0].CopyFrom(
        helper.make_value_info("y", helper.make_sequence_type_proto(value))
    )
    data: bytes = made.SerializeToString()
    return data


def test_sizes_that_are_tried_with_padding_reach_from_the_least_to_the_next() -> None:
    """What a bucket takes, of each dimension."""
    layout = FamilyLayout({"height": (4, 6), "width": (5,)}, padding=True)
    family = make_family("f", [Variant("v", 0.9, pooled())], layout)
    found = [[tuple(sizes.values()) for sizes in each.shorter()] for each in family.buckets()]
    assert found == [[(1, 1), (2, 2), (3, 4)], [(5, 1), (5, 2), (5, 4)]]
    layout = FamilyLayout({"height": (1,), "width": (1,)}, padding=True)
    (least,) = make_family("f", [Variant("v", 0.9, pooled())], layout).buckets()
    assert list(least.shorter()) == []


def test_what_would_be_wrong_is_refused_at_the_start() -> None:
    """With what to write into the family's file."""
    assert "dimensions: {length: [16, 64]}" in started(tagger(), FamilyLayout())
    assert "did you mean 'length'" in started(
        tagger(), FamilyLayout({"lenght": (4,), "length": (4,)})
    )
    assert "whole: true" in started(detector(), FamilyLayout())
    assert "'zipmap': False" in started(dictionaries(), FamilyLayout())
    # A mean over all places changes with those that are padded.
    wide = FamilyLayout({"height": (6,), "width": (6,)}, padding=True)
    assert "padded inputs have other outputs" in started(pooled(), wide)
    # One place more of hundreds hardly does, but clients may send a single one.
    wide = FamilyLayout({"height": (16,), "width": (40,)}, padding=True)
    assert "of inputs of {'height': 1, 'width': 1}" in started(pooled(), wide)
    renamed = onnx.ModelProto.FromString(tagger())
    renamed.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "other"
    assert "cannot be cut back" in started(renamed.SerializeToString(), SIZES)
    many = FamilyLayout({"length": tuple(range(1, 40))})
    assert "39, at most 32" in started(tagger(), many)
    named = [node("MatMul", "x w", "y"), node("Identity", "names", "n")]
    classes = model_of(
        named,
        {"x": (FLOAT, [3, 8])},
        {"y": (FLOAT, [3, 4]), "n": (INT, [3])},
        w=floats(8, 4),
        names=np.array([7, 8, 9]),
    )
    assert "'n' of a row depends on its place in the batch" in started(classes, FamilyLayout())
    constant = helper.make_node("RandomNormal", [], ["y"], shape=[1, 4])
    drawn = model_of([constant], {}, {"y": (FLOAT, [1, 4])})
    for layout in (FamilyLayout(), FamilyLayout(random=True)):
        assert "takes no input" in started(drawn, layout)
    assert started(drawn, FamilyLayout(whole=True, random=True)) == ""
    # Of several sizes, the one that it does not take is named.
    of_four = model_of(
        [node("MatMul", "x w", "y")],
        {"x": (FLOAT, ["n", "length"])},
        {"y": (FLOAT, ["n", 3])},
        w=floats(4, 3),
    )
    assert "variant 'v', m@length=8: " in started(of_four, FamilyLayout({"length": (4, 8)}))
    table = model_of(
        [node("Add", "x table", "y")],
        {"x": (FLOAT, ["n", 4]), "table": (FLOAT, [1, 4])},
        {"y": (FLOAT, ["n", 4])},
    )
    assert "inputs differ in their first dimension" in started(table, FamilyLayout())


def reduced(kind: str, datatype: int = FLOAT) -> bytes:
    """The largest number of a row, its place, or the like."""
    whole = INT if kind == "ArgMax" else datatype
    how = {"axis": 1} if kind == "ArgMax" else {"axes": [1]}
    made = onnx.ModelProto.FromString(
        model_of(
            [node(kind, "x", "y", keepdims=1, **how)],
            {"x": (datatype, ["n", "length"])},
            {"y": (whole, ["n", 1])},
        )
    )
    made.opset_import[0].version = 17  # axes as an attribute
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "ArgMax"])
def test_padding_that_only_some_numbers_feel_is_found(kind: str) -> None:
    """The largest of numbers below 0 is that of the padding."""
    layout = FamilyLayout({"length": (4, 8)}, padding=True)
    assert "padded inputs have other outputs" in started(reduced(kind), layout)


def test_padding_that_only_large_numbers_feel_is_found() -> None:
    """The mean of what is above nine, which is 0 for most random numbers."""
    nodes = [
        node("Sub", "x nine", "above"),
        node("Relu", "above", "kept"),
        node("ReduceMean", "kept axes", "y", keepdims=1),
    ]
    model = model_of(
        nodes,
        {"x": (FLOAT, ["n", "length"])},
        {"y": (FLOAT, ["n", 1])},
        nine=np.float32(9),
        axes=ROWS["axes"],
    )
    layout = FamilyLayout({"length": (4, 8)}, padding=True)
    assert "padded inputs have other outputs" in started(model, layout)


def test_padding_by_a_number_that_none_exceeds_is_no_other_input() -> None:
    """As a value of an own says it."""
    layout = FamilyLayout({"length": (4, 8)}, padding={"x": -1e30})
    assert started(reduced("ReduceMax"), layout) == ""
    assert started(reduced("ReduceMax", INT), FamilyLayout({"length": (4,)}, padding=True)) == ""


def masked_mean() -> bytes:
    """The mean of what a mask does not leave out."""
    nodes = [
        node("Not", "padding_mask", "kept"),
        node("Cast", "kept", "k", to=FLOAT),
        node("Mul", "x k", "own"),
        node("ReduceSum", "own axes", "total", keepdims=1),
        node("ReduceSum", "k axes", "count", keepdims=1),
        node("Div", "total count", "mean"),
    ]
    inputs = {"x": (FLOAT, ["n", "length"]), "padding_mask": (TensorProto.BOOL, ["n", "length"])}
    return model_of(nodes, inputs, {"mean": (FLOAT, ["n", 1])}, axes=ROWS["axes"])


def test_masks_that_say_what_is_padding_are_drawn_without_it() -> None:
    """Such a mask is padded by 1; by 0 its padding counts."""
    layout = FamilyLayout({"length": (4, 8)}, padding={"padding_mask": 1})
    assert started(masked_mean(), layout) == ""
    layout = FamilyLayout({"length": (4, 8)}, padding=True)
    assert "padded inputs have other outputs" in started(masked_mean(), layout)


def test_inputs_that_say_how_long_a_row_is_are_no_longer_than_it() -> None:
    """The sum of so many first numbers, and of the places behind them."""
    nodes = [
        node("Shape", "x", "s", start=1),
        node("Squeeze", "s", "size"),
        node("Range", "zero size one", "places"),
        node("Less", "places lengths", "kept"),
        node("Cast", "kept", "k", to=FLOAT),
        node("Mul", "x k", "own"),
        node("ReduceSum", "own axes", "total", keepdims=1),
    ]
    ends = {"zero": np.array(0), "one": np.array(1), "axes": ROWS["axes"]}
    inputs = {"x": (FLOAT, ["n", "length"]), "lengths": (INT, ["n", 1])}
    layout = FamilyLayout({"length": (4, 8)}, padding={"x": 3})
    model = model_of(nodes, inputs, {"total": (FLOAT, ["n", 1])}, **ends)
    assert started(model, layout) == ""
    nodes[3] = node("Less", "lengths places", "kept")
    model = model_of(nodes, inputs, {"total": (FLOAT, ["n", 1])}, **ends)
    assert "padded inputs have other outputs" in started(model, layout)


def test_outputs_of_unequal_shapes_are_compared() -> None:
    """Random images have unequal numbers of boxes."""
    numbered = model_of(
        [node("NonZero", "x", "places"), node("Transpose", "places", "found")],
        {"x": (TensorProto.BOOL, [1, 9])},
        {"found": (INT, ["found", 2])},
    )
    assert started(numbered, FamilyLayout(whole=True)) == ""
    assert started(detector(), FamilyLayout(whole=True)) == ""


def external(folder: Path) -> Path:
    """A family whose model keeps its weights in a file beside it."""
    made = onnx.ModelProto.FromString(product("n"))
    (folder / "w.data").write_bytes(b"head" + made.graph.initializer[0].raw_data)
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "4"), ("length", "128")):
        weight.external_data.add(key=key, value=value)
    onnx.save(made, folder / "m.onnx")
    path = folder / "f.yaml"
    path.write_text("name: m\nvariants: {v: {file: m.onnx, accuracy: 0.5}}\n")
    return path


def test_weights_beside_the_model_are_read_whatever_the_working_folder(tmp_path: Path) -> None:
    """They go to servers inside the model; what is elsewhere, missing or too short is refused."""
    (tmp_path / "else").mkdir()
    path = external(tmp_path)
    with contextlib.chdir(tmp_path / "else"):
        family: Family = read_family(path)
    x = floats(3, 8)
    weight = np.frombuffer((tmp_path / "w.data").read_bytes()[4:], np.float32).reshape(8, 4)
    (y,) = open_session(family.variants[0].model, "test").run(None, {"x": x})
    np.testing.assert_allclose(y, x @ weight, rtol=1e-5)
    (tmp_path / "w.data").write_bytes(bytes(64))
    with pytest.raises(InputError, match="missing or too short"):
        read_family(path)
    data = (tmp_path / "m.onnx").read_bytes().replace(b"w.data", b"../key")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(InputError, match="outside the model's folder"):
        read_family(path)


def test_a_familys_file_states_its_layout(tmp_path: Path) -> None:
    """Wrong values are errors of the file."""
    (tmp_path / "m.onnx").write_bytes(tagger())
    path = tmp_path / "f.yaml"
    head = "name: m\nvariants: {v: {file: m.onnx, accuracy: 0.5}}\n"
    path.write_text(head + "dimensions: {length: [8, 4]}\npadding: {ids: 3}\n")
    family = read_family(path)
    assert [bucket.label for bucket in family.buckets()] == ["m@length=4", "m@length=8"]
    inputs = tuple(tokens(2, 3).values())
    padded = family.buckets()[0].padded(inputs)
    assert padded[0][:, 3].tolist() == [3, 3]
    assert padded[1][:, 3].tolist() == [0, 0]
    for wrong, says in (("{ids: 0.5}", "0.5 for INT64"), ("{id: 3}", "did you mean 'ids'")):
        path.write_text(head + f"dimensions: {{length: [8]}}\npadding: {wrong}\n")
        with pytest.raises(InputError, match=says):
            read_family(path)
    path.write_text(head + "dimensions: {length: [0]}\n")
    with pytest.raises(InputError, match=r"dimensions\.length"):
        read_family(path)


def fast() -> Any:
    """A factory: its function strips and counts words before a model would see them."""

    def counts(inputs: dict[str, Array]) -> dict[str, Array]:
        texts = inputs["text"].reshape(-1)
        return {"count": np.array([[len(str(t).split())] for t in texts], np.int64)}

    return counts


def broken() -> Any:
    """A factory that raises."""
    raise OSError("no such file")


FACTORY = f"{__name__}:fast"
COUNTS = """name: words
variants:
  first: {factory: %s, accuracy: 0.5}
  second: {factory: %s, accuracy: 0.6, version: 2}
inputs: {text: {datatype: BYTES, shape: [-1, 1]}}
outputs: {count: {datatype: INT64, shape: [-1, 1]}}
"""
NETWORK = """name: net
variants:
  script: {file: net.pt, accuracy: 0.5}
  exported: {file: net.pt2, accuracy: 0.6}
inputs: {x: {datatype: FP32, shape: [-1, 8]}}
outputs: {y: {datatype: FP32, shape: [-1, 4]}}
"""


def saved_network(folder: Path) -> Any:
    """A network as both kinds of PyTorch programs."""
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()
    torch.jit.save(torch.jit.trace(network, torch.zeros(2, 8)), folder / "net.pt")  # type: ignore[no-untyped-call]
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(network, (torch.zeros(2, 8),), dynamic_shapes=rows)
    torch.export.save(program, folder / "net.pt2")
    return network


def test_pytorch_programs_and_factories_answer_where_they_are_allowed(tmp_path: Path) -> None:
    """Like the network itself; by version; and only what the operator has named."""
    import torch

    network = saved_network(tmp_path)
    (tmp_path / "net.yaml").write_text(NETWORK)
    (tmp_path / "words.yaml").write_text(COUNTS % (FACTORY, FACTORY))
    for name, refused in (("net", "--models net.pt"), ("words", f"--models {FACTORY}")):
        with pytest.raises(InputError, match="runs code of its own") as caught:
            read_family(tmp_path / f"{name}.yaml")
        assert refused in caught.value.hint
    allowed = ("net.pt", "net.pt2", FACTORY)
    families = [read_family(tmp_path / f"{name}.yaml", allowed) for name in ("net", "words")]
    with serve(families, {"a": 1.0}, PORT) as running:
        for _ in range(5):
            x = floats(3, 8)
            with torch.inference_mode():
                want = network(torch.from_numpy(x)).numpy()
            got = ask(running, "net", x=x)["y"].astype(float)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        texts = np.array([["a b"], ["c"]], object)
        for version, variant in (("", "second"), ("/versions/1", "first")):
            url = f"{running.url}/v2/models/words{version}"
            answer = call(url + "/infer", tensor("text", texts))
            assert answer["outputs"][0]["data"] == [2, 1]
            assert answer["parameters"]["variant"] == variant
            assert call(url)["versions"] == ["1", "2"]
        with pytest.raises(InputError, match="no version '3'; known: 1, 2"):
            call(f"{running.url}/v2/models/words/versions/3")


def test_a_program_of_one_batch_size_has_it_in_its_shapes(tmp_path: Path) -> None:
    """Smaller batches are filled up, as those of such ONNX files; clients see rows."""
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(4, 8),)), tmp_path / "net.pt2")
    text = NETWORK.replace("  script: {file: net.pt, accuracy: 0.5}\n", "")
    path = tmp_path / "net.yaml"
    path.write_text(text)
    with (
        pytest.raises(InputError, match="a batch of 1") as caught,
        serve([read_family(path, ["net.pt2"])], {"a": 1.0}, PORT),
    ):
        pass
    assert "[4, 8]" in caught.value.hint
    path.write_text(text.replace("[-1, 8]", "[4, 8]"))
    x = floats(6, 8)
    with serve([read_family(path, ["net.pt2"])], {"a": 1.0}, PORT) as running:
        got = ask(running, "net", x=x)["y"].astype(float)
    with torch.inference_mode():
        want = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    path.write_text(text.replace("-1, 8]}", "4, 8]}, z: {datatype: FP32, shape: [-1, 1]}"))
    with pytest.raises(InputError, match="inputs differ in their first dimension"):
        read_family(path, ["net.pt2"])


def tensor(name: str, value: Array) -> dict[str, Any]:
    """A request of strings."""
    one = {"name": name, "datatype": "BYTES", "shape": value.shape, "data": value.tolist()}
    return {"inputs": [one]}


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """A JSON answer."""
    try:
        with urllib.request.urlopen(url, body and json.dumps(body).encode()) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise InputError(json.load(error)["error"]) from None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (COUNTS.partition("inputs")[0], "does not say what it takes and returns"),
        (COUNTS.replace("BYTES", "TEXT"), "unknown datatype 'TEXT'"),
        (COUNTS.replace("[-1, 1]}}\no", "[-1, 0]}}\no"), "'text' has a dimension of no size"),
        (COUNTS.replace("[-1, 1]}}\no", "[0, 1]}}\no"), "'text' has a dimension of no size"),
        (COUNTS.replace("{factory", "{file: x.onnx, factory"), "either a file or a factory"),
    ],
)
def test_a_family_of_factories_says_what_it_takes(text: str, says: str, tmp_path: Path) -> None:
    """Else it is an error of the file."""
    (tmp_path / "f.yaml").write_text(text % (FACTORY, FACTORY))
    with pytest.raises(InputError, match=says):
        read_family(tmp_path / "f.yaml", [FACTORY])


def test_a_family_of_an_onnx_file_declares_nothing_else(tmp_path: Path) -> None:
    """What it says of the file's own tensors is right, or an error: it had no effect."""
    (tmp_path / "m.onnx").write_bytes(product("n"))
    path = tmp_path / "f.yaml"
    head = "name: m\nvariants: {v: {file: m.onnx, accuracy: 0.5}}\n"
    right = head + "inputs: {x: {datatype: FP32, shape: [rows, 8]}}\n"
    path.write_text(right)
    assert read_family(path).inputs[0].shape == (-1, 8)
    for wrong in ("[-1, 9]", "[-1, 8, 1]", "[-1, -1]"):
        path.write_text(right.replace("[rows, 8]", wrong))
        with pytest.raises(
            InputError, match=r"tensor 'x' that the model has not.*x FP32 \[-1, 8\]"
        ):
            read_family(path)
    path.write_text(head + "outputs: {z: {datatype: FP32, shape: [-1, 4]}}\n")
    with pytest.raises(InputError, match=r"'z' that the model has not.*y FP32 \[-1, 4\]"):
        read_family(path)


def test_a_factory_that_raises_is_named() -> None:
    """With what it has raised."""
    with pytest.raises(InputError, match="OSError: no such file"):
        open_model(factory_model(f"{__name__}:broken"), "words/first")
