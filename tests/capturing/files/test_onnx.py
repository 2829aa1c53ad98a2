"""ONNX files: their graphs, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from placewright.capturing.files.model_file import (
    ModelFile,
    distinct_names,
    module_of,
    reader_groups,
    refuse_external_data,
)
from placewright.capturing.files.onnx_graph import PRODUCTS, capture_onnx
from placewright.capturing.files.openvino_graph import capture_openvino
from placewright.capturing.flops import TRANSCENDENTAL
from placewright.errors import InputError, MissingDependencyError, UnsupportedError
from tests.capturing.files.models import branching, save, weight


def test_nodes_become_operators_with_shapes_flops_and_weights(tmp_path: Path) -> None:
    """Nodes become operators with shapes flops and weights."""
    file = capture_onnx(branching(tmp_path / "cnn.onnx"))
    ops = {op.name: op for op in file.graph.operators}
    assert len(ops) == 10  # neither the constant nor what is computed from weights alone
    assert file.constants == {"Neg:minus"}
    stem = ops["/stem/conv"]
    assert stem.kind == "onnx.Conv"
    assert stem.module == "stem"
    assert stem.outputs[0].shape == (2, 4, 8, 8)
    assert stem.flops == 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)
    assert stem.resident_bytes == 4 * 3 * 3 * 3 * 4
    assert ops["/head/gemm"].flops == 2 * 2 * 5 * 8
    assert ops["/head/gemm"].resident_bytes == (8 * 5 + 5) * 4
    assert ops["/a/act"].elementwise_flops == TRANSCENDENTAL * (2 * 4 * 8 * 8)
    tensors = {t.name: t for t in file.graph.tensors}
    assert tensors["r0"].consumers == ("/a/conv", "/b/conv")
    assert tensors["r0"].bytes == 2 * 4 * 8 * 8 * 4
    assert [(s.name, s.shape) for s in file.inputs] == [("x", (2, 3, 8, 8))]
    assert file.outputs == ("y",)


def test_weights_in_files_beside_the_model_are_read(tmp_path: Path) -> None:
    """Weights in files beside the model are read."""
    inside = capture_onnx(branching(tmp_path / "cnn.onnx"))
    beside = branching(
        tmp_path / "cnn2.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    held = {w.name: w.raw_data for w in capture_onnx(beside).model.graph.initializer}
    assert held == {w.name: w.raw_data for w in inside.model.graph.initializer}
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(InputError, match=r"missing or too short .*\(5 bytes of"):
        capture_onnx(beside)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match=r"w\.bin: the file with the weight .* is missing"):
        capture_onnx(beside)


@pytest.mark.parametrize(
    "capture", [capture_onnx, lambda path: capture_openvino(f"openvino:{path}")]
)
def test_a_large_weight_keeps_its_readers_together(
    tmp_path: Path, capture: Callable[[Path], ModelFile]
) -> None:
    """A large weight keeps its readers together, and is on their device once."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="middle"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="last"),
    ]
    shapes = {"x": [1, 512]}, {"y": [1, 512]}
    path = save(tmp_path / "tied.onnx", nodes, [weight("w", 512, 512)], *shapes)
    operators = capture(path).graph.operators
    assert [bool(op.colocation) for op in operators] == [True, False, True]
    assert operators[0].colocation == operators[2].colocation
    assert [op.resident_bytes for op in operators] == [4 * 512 * 512, 0, 0]


def test_weights_of_few_bits_count_as_they_are_held(tmp_path: Path) -> None:
    """ONNX Runtime multiplies by them, or makes numbers of them each time; it keeps no others."""
    held = helper.make_tensor("w", TensorProto.INT4, [64, 32], [1] * 64 * 32)
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, [held, scale], {"x": [1, 64]}, {"y": [1, 32]})
    model = onnx.load(path)
    model.opset_import[0].version = 21
    onnx.save(model, path)
    (product,) = capture_onnx(path).graph.operators
    assert product.resident_bytes == 64 * 32 // 2 + 4


def test_nodes_that_no_output_needs_are_left_out(tmp_path: Path) -> None:
    """Also those that could not be placed; a part of them alone would have no outputs."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="needed"),
        helper.make_node("Exp", ["x"], ["unread"]),
        helper.make_node("NonZero", ["unread"], ["places"]),
        helper.make_node("Split", ["a"], ["y", ""], name="last", num_outputs=2),
    ]
    path = save(tmp_path / "m.onnx", nodes, [], {"x": [4]}, {"y": [2]})
    model = onnx.load(path)
    model.opset_import[0].version = 18
    onnx.save(model, path)
    assert capture_onnx(path).graph.operator_names == ("needed", "last")


def test_an_open_batch_is_fixed_or_refused(tmp_path: Path) -> None:
    """An open batch is fixed or refused."""
    path = branching(tmp_path / "open.onnx", batch="N")
    with pytest.raises(UnsupportedError, match=r"'x' has a dynamic shape .*N.*\n.*--batch N"):
        capture_onnx(path)
    assert capture_onnx(path, batch=3).graph.operators[0].outputs[0].shape == (3, 4, 8, 8)
    with pytest.raises(InputError, match="has a fixed batch"):
        capture_onnx(branching(tmp_path / "two.onnx"), batch=3)


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    """Control flow is refused by name."""
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", 1, [2])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)
    ]
    path = save(tmp_path / "if.onnx", nodes, [], {"x": [2], "c": [1]}, {"y": [2]})
    with pytest.raises(UnsupportedError, match=r"node 'choice': control flow"):
        capture_onnx(path)


def test_shapes_that_depend_on_values_are_refused_by_name(tmp_path: Path) -> None:
    """Shapes that depend on values are refused by name."""
    nodes = [helper.make_node("NonZero", ["x"], ["i"], name="where")]
    nodes.append(helper.make_node("Cast", ["i"], ["y"], to=1))
    path = save(tmp_path / "nz.onnx", nodes, [], {"x": [4]}, {"y": [1, "k"]})
    with pytest.raises(UnsupportedError, match=r"node 'where' .NonZero."):
        capture_onnx(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    """Files that are no models are refused."""
    with pytest.raises(InputError, match="no such file"):
        capture_onnx(tmp_path / "absent.onnx")
    whole = branching(tmp_path / "cnn.onnx").read_bytes()
    for k, content in enumerate((b"", b"version https://git-lfs", whole[: len(whole) // 2])):
        damaged = tmp_path / f"damaged{k}.onnx"
        damaged.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            capture_onnx(damaged)


def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is not installed is named."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"'onnx'[\s\S]*placewright\[onnx\]"):
        capture_onnx(tmp_path / "cnn.onnx")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("__module.layer1.0.conv1/aten::_convolution/Convolution", "layer1.0.conv1"),
        ("Conv_3", ""),
    ],
)
def test_module_paths(name: str, module: str) -> None:
    """Module paths."""
    assert module_of(name) == module


def test_modules_in_the_metadata_of_an_exporter(tmp_path: Path) -> None:
    """As PyTorch writes them where names of nodes say nothing; ``auto`` then splits by modules."""
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["y"], "node_relu"),
        onnx.helper.make_node("Neg", ["y"], ["z"], "node_neg"),
    ]
    scopes = ("['', 'layer1', 'layer1.0', 'relu']", "['', 'neg']")
    for node, scope in zip(nodes, scopes, strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scope)
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xz"]
    graph = onnx.helper.make_graph(nodes, "scoped", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph), path := tmp_path / "scoped.onnx")
    assert [each.module for each in capture_onnx(path).graph.operators] == ["layer1.0", ""]


def test_names_are_made_distinct() -> None:
    """In order, past names that look like numbered ones, and without looking at all of them."""
    given = ["x", "x", "x#2", "y", "x", "x#2"]
    assert distinct_names(given) == ["x", "x#2", "x#2#2", "y", "x#3", "x#2#3"]
    assert len(set(distinct_names(["x"] * 100_000))) == 100_000


def test_readers_of_constants_are_grouped() -> None:
    """Groups that share an operator are one; a single reader is in none."""
    readers = [("w", ["a", "b"]), ("v", ["c"]), ("u", ["d", "e"]), ("t", ["b", "d"])]
    assert reader_groups(readers) == dict.fromkeys("abde", "t")


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Protocol buffers hand out bytes; of nodes, operators, values and symbols of shapes."""
    node = helper.make_node("Relu", ["from"], ["into"], name="named")
    path = save(tmp_path / "m.onnx", [node], [], {"from": ["rows", 4]}, {"into": ["rows", 4]})
    right = path.read_bytes()
    for word in (b"named", b"Relu", b"from", b"into", b"rows"):
        path.write_bytes(right.replace(word, b"\xa8" * len(word)))
        with pytest.raises(InputError, match=r"m\.onnx: the field .* is no text"):
            capture_onnx(path)
        with pytest.raises(InputError, match=r"upload: the field .* is no text"):
            refuse_external_data(path.read_bytes(), "upload")


def test_nodes_and_values_that_lack_something_are_refused(tmp_path: Path) -> None:
    """Outputs, an operator, what makes an input, a known type; with the node or the value."""
    relu = helper.make_node("Relu", ["x"], ["y"], name="r")
    add = helper.make_node("Add", ["x", "c"], ["y"], name="a")
    index = helper.make_tensor("i", TensorProto.INT64, [1], [3])
    sparse = helper.make_sparse_tensor(weight("v", 1), index, [4])
    constant = helper.make_node("Constant", [], ["c"], name="c", sparse_value=sparse)
    own = helper.make_node("Own", ["none"], ["y"], name="o", domain="acme")
    typed = helper.make_node("Constant", [], ["c"], value=TensorProto(dims=[1], data_type=99))
    cases: dict[str, tuple[list[NodeProto], list[TensorProto]]] = {
        r"node 1 '': a node without an operator": ([relu, NodeProto()], []),
        r"node 0 'x': a node without .* outputs": ([NodeProto(name="x", op_type="Relu")], []),
        r"node 'c': a sparse constant": ([constant, add], []),
        r"its shapes or types contradict each other .*99": ([typed, add], []),
        r"node 'o': reads 'none', which nothing makes": ([own], []),
        r"value 'w': is no tensor of a known type": ([relu], [TensorProto(name="w", data_type=99)]),
    }
    for match, (nodes, weights) in cases.items():
        path = save(tmp_path / "m.onnx", nodes, weights, {"x": [4]}, {"y": [4]})
        with pytest.raises(InputError, match=rf"m\.onnx: {match}"):
            capture_onnx(path)


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "LSTM", "Conv", "ScaledDotProductAttention"])
@pytest.mark.parametrize("inputs", [[], ["x"]])
def test_an_operator_of_another_domain_may_have_fewer_inputs(
    tmp_path: Path, op: str, inputs: list[str]
) -> None:
    """The formula of its namesake does not fit."""
    nodes = [
        helper.make_node(op, inputs, ["z"], domain="acme"),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, [], {"x": [4]}, {"y": [4], "z": [4]})
    assert "onnx.Relu" in [o.kind for o in capture_onnx(path).graph.operators]


SCALE: tuple[int, ...] = ()
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
PRODUCT_SHAPES: list[tuple[str, list[tuple[int, ...]], tuple[int, ...], dict[str, int], float]] = [
    (
        "QLinearConv",
        [(2, 3, 8, 8), SCALE, SCALE, (4, 3, 3, 3), SCALE, SCALE, SCALE, SCALE],
        (2, 4, 6, 6),
        {},
        2 * (2 * 4 * 6 * 6) * 27,
    ),
    ("QLinearMatMul", [(6, 8), SCALE, SCALE, (8, 5)], (6, 5), {}, 2 * (6 * 5) * 8),
    ("Attention", [(1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 6)], (1, 4, 3, 6), {}, 2 * 60 * (8 + 6)),
    ("Attention", [(1, 3, 32), (1, 5, 16), (1, 5, 12)], (1, 3, 24), HEADS, 2 * 60 * (8 + 6)),
    (
        "Attention",  # no mask; 7 keys and values of before
        [(1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 6), (), (1, 2, 7, 8), (1, 2, 7, 6)],
        (1, 4, 3, 6),
        {},
        2 * (4 * 3 * 12) * (8 + 6),
    ),
]


@pytest.mark.parametrize(("op", "given", "made", "attributes", "flops"), PRODUCT_SHAPES)
def test_products_count_whatever_stands_between_their_matrices(
    op: str,
    given: list[tuple[int, ...]],
    made: tuple[int, ...],
    attributes: dict[str, int],
    flops: float,
) -> None:
    """Scales and zero points; heads beside each other, shared by queries, and past ones."""
    left_out = 3 if op == "Attention" else -1
    node = helper.make_node(op, [f"v{k}" * (k != left_out) for k in range(len(given))], ["y"])
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    there = [shape for k, shape in enumerate(given) if k != left_out]
    assert PRODUCTS[op](node, there, made) == flops
