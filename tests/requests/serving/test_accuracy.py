"""Accuracy on labelled rows is that of the model itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from placewright.cli.main import app
from placewright.errors import InputError, PlacewrightError
from placewright.requests.serving.accuracy import (
    Measure,
    VariantAccuracy,
    evaluate,
    read_rows,
    state_accuracies,
)
from placewright.requests.serving.digits import digits, held_out
from placewright.requests.serving.families import (
    FamilyLayout,
    Variant,
    make_family,
    read_family,
)
from placewright.requests.serving.models import factory_model
from placewright.requests.serving.tensors import TensorSpec

FILE = """\
# ours
name: rank
variants:
  small: {file: same.onnx, accuracy: 0.5}  # by hand
  large:
    file: turned.onnx
    accuracy: 0.75
"""


def model(node: Any, made: Any, kind: int = TensorProto.FLOAT) -> bytes:
    """An ONNX file of one operation on ``x``, three numbers a row."""
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", 3])],
        [helper.make_tensor_value_info("y", kind, made)],
    )
    opset = [helper.make_opsetid("", 21)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    return data


FIRST = Measure()
SAME = model(helper.make_node("Identity", ["x"], ["y"]), ["n", 3])
TURNED = model(helper.make_node("Neg", ["x"], ["y"]), ["n", 3])


def saved(folder: Path, **arrays: Any) -> Path:
    """A file of rows."""
    np.savez(folder / "rows.npz", **arrays)
    return folder / "rows.npz"


def right(folder: Path, measure: Measure = FIRST, **arrays: Any) -> list[int]:
    """Rows that the model and its negative answer rightly."""
    family = make_family("rank", [Variant("same", 0.5, SAME), Variant("turned", 0.5, TURNED)])
    rows = read_rows(saved(folder, **arrays), family)
    return [each.right for each in evaluate(family, rows, measure)]


SCORES = np.array([[3, 1, 2], [0, 5, 4], [7, 8, 9], [1, 1, 1]], np.float32)


def test_digits_have_the_accuracy_that_they_state(tmp_path: Path) -> None:
    """All held-out images, by a row at a time."""
    family = digits(("linear", "mlp"))
    images, labels = held_out()
    rows = read_rows(saved(tmp_path, image=images, labels=labels), family)
    for found in evaluate(family, rows):
        assert found.measured == pytest.approx(found.stated, abs=1e-12)
        assert found.interval[0] < found.stated < found.interval[1]


def test_labels_are_classes_numbers_or_the_same_values(tmp_path: Path) -> None:
    """Against `argmax`, the largest scores, and differences by NumPy."""
    labels = np.array([0, 1, 0, 0])
    assert right(tmp_path, x=SCORES, labels=labels) == [
        int((SCORES.argmax(1) == labels).sum()),
        int(((-SCORES).argmax(1) == labels).sum()),
    ]
    assert right(tmp_path, Measure(top=2), x=SCORES, labels=labels) == [3, 2]
    near = SCORES + np.array([[0.1], [0.1], [0.3], [-0.1]], np.float32)
    assert right(tmp_path, Measure(tolerance=0.2), x=SCORES, labels=near)[0] == 3
    assert right(tmp_path, x=SCORES, labels=np.array([-1, 3, 9, 2])) == [0, 0]
    logs = np.array([[-np.inf, 0, -1], [np.inf, np.inf, 1], [np.nan, 1, 0]], np.float32)
    assert right(tmp_path, x=logs, labels=np.array([1, 0, 1])) == [2, 0]
    assert right(tmp_path, x=logs, labels=np.array([0, 2, 0])) == [0, 2]


def test_models_compute_rows_as_on_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They change their inputs, end Python, and print, and none of that reaches others."""
    rows = np.array([[3, 1, 2, 0], [11, 0, 1, 2]], np.float32)
    names = ["in_place", "exits_for_some", "prints"]
    family = make_family(
        "own",
        [
            Variant(n, 0.5, factory_model(f"tests.requests.serving.factories:{n}").data, "factory")
            for n in names
        ],
        FamilyLayout(
            inputs=(TensorSpec("x", "FP32", (-1, 4)),), outputs=(TensorSpec("y", "FP32", (-1, 4)),)
        ),
    )
    found = evaluate(family, read_rows(saved(tmp_path, x=rows, labels=[0, 0]), family))
    assert [(each.right, each.failed) for each in found] == [(0, 0), (1, 1), (2, 0)]
    assert "computed" not in capsys.readouterr().out


def test_texts_are_compared_as_they_are(tmp_path: Path) -> None:
    """Labels of text, of a model of texts."""
    texts = model(helper.make_node("Identity", ["x"], ["y"]), ["n", 3], TensorProto.STRING)
    family = make_family("texts", [Variant("same", 0.5, texts)])
    words = np.array([["a", "", "ü"], ["b", "c", "d"]])
    other = np.array([["a", "", "ü"], ["b", "c", "e"]])
    (found,) = evaluate(family, read_rows(saved(tmp_path, x=words, labels=other), family))
    assert (found.right, found.rows) == (1, 2)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": [0]}, "unknown array 'x'"),
        ({"x": SCORES}, "unknown array 'labels'"),
        ({"x": SCORES, "labels": [0]}, "unequal numbers of rows.*x: 4, labels: 1"),
        ({"x": SCORES[:0], "labels": []}, "or none"),
        ({"x": [["a"] * 3], "labels": [0]}, "another datatype"),
        ({"x": SCORES.astype(complex), "labels": [0] * 4}, "another datatype"),
        ({"x": SCORES.astype(float) * 1e39, "labels": [0] * 4}, "another datatype"),
        ({"x": SCORES, "labels": ["a"] * 4}, "cannot be compared.*labels are <U1"),
        ({"x": SCORES[:, :2], "labels": [0] * 4}, "computes none of the rows"),
        ({"x": np.array([{}]), "labels": [0]}, "no file of arrays"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    arrays: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """By name, and without unpickling."""
    with pytest.raises(PlacewrightError, match=words):
        right(tmp_path, **arrays)


@pytest.mark.parametrize(
    ("measure", "labels", "words"),
    [
        (Measure(tolerance=0.2), np.zeros(4, int), "--tolerance: is between numbers.*int64"),
        (Measure(tolerance=0.2), ["a"] * 4, "--tolerance: is between numbers.*<U1"),
        (Measure(top=2, tolerance=0.2), SCORES, "--top 2: is for .*beside --tolerance 0.2"),
        (Measure(top=2), SCORES, "--top 2: is for whole numbers of classes"),
    ],
)
def test_measures_of_other_labels_are_refused(
    measure: Measure, labels: Any, words: str, tmp_path: Path
) -> None:
    """No row was right by them, or they were ignored."""
    with pytest.raises(PlacewrightError, match=words):
        right(tmp_path, measure, x=SCORES, labels=labels)


def test_a_file_of_anything_is_refused(tmp_path: Path) -> None:
    """No archive, a folder, none."""
    family = make_family("rank", [Variant("same", 0.5, SAME)])
    (tmp_path / "rows.npz").write_bytes(b"PK\x03\x04 nothing")
    os.mkfifo(tmp_path / "pipe.npz")  # to open it would wait for ever
    for path in (tmp_path / "rows.npz", tmp_path / "pipe.npz", tmp_path, tmp_path / "none.npz"):
        with pytest.raises(InputError):
            read_rows(path, family)


def test_the_file_of_a_family_gets_what_was_measured(tmp_path: Path) -> None:
    """Everything else in it stays; the command prints both numbers."""
    for name, data in (("same", SAME), ("turned", TURNED)):
        (tmp_path / f"{name}.onnx").write_bytes(data)
    path = tmp_path / "rank.yaml"
    path.write_text(FILE)
    rows = saved(tmp_path, x=SCORES, labels=np.array([0, 1, 0, 0]))
    told = CliRunner().invoke(
        app, ["requests", "evaluate", str(path), str(rows), "--update", "-f", "json"]
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert [(each["stated"], each["measured"]) for each in found] == [(0.5, 0.75), (0.75, 0.5)]
    assert path.read_text() == FILE.replace("0.75", "0.5000").replace("0.5}", "0.7500}")
    assert [each.accuracy for each in read_family(path).variants] == [0.75, 0.5]


def test_json_files_of_families_are_updated_too(tmp_path: Path) -> None:
    """They are YAML as well."""
    path = tmp_path / "rank.json"
    path.write_text(json.dumps({"name": "r", "variants": {"v": {"file": "a", "accuracy": 1}}}))
    state_accuracies(path, [VariantAccuracy("v", 1, 1.0, 1, 3)])
    assert json.loads(path.read_text())["variants"]["v"]["accuracy"] == 0.3333


def test_an_accuracy_that_several_variants_share_is_not_changed(tmp_path: Path) -> None:
    """By an anchor of YAML: one would get what was measured of another."""
    path = tmp_path / "rank.yaml"
    text = "name: r\nvariants:\n  a: &v {file: a, accuracy: 0.5}\n  b: *v\n"
    path.write_text(text)
    found = [VariantAccuracy(name, 1, 0.5, right, 3) for name, right in (("a", 1), ("b", 2))]
    with pytest.raises(InputError, match=r"variants\.b: does not state the accuracy"):
        state_accuracies(path, found)
    assert path.read_text() == text
