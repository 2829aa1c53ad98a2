"""Module trees as data: refusals, and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.graph.files import read_graph, write_graph
from placewright.graph.graph import Graph, Operator
from placewright.graph.modules import Module, ModuleTensor, ModuleTree

TIED = ModuleTree(
    (
        Module("", "Model"),
        Module("embed", "Embedding", (ModuleTensor("weight", 8, "float32", operator="look_up"),)),
        Module("head", "Linear", (ModuleTensor("weight", 8, "float32", same_as="embed.weight"),)),
        Module("norm", "BatchNorm1d", (ModuleTensor("running_mean", 4, "float32", buffer=True),)),
    ),
    ("Block",),
)


def test_a_graph_file_keeps_modules(tmp_path: Path) -> None:
    """Tied tensors, buffers, classes that are never split, and where tensors live."""
    graph = Graph("g", (Operator("look_up", "aten.embedding.default"),), (), modules=TIED)
    assert read_graph(write_graph(graph, tmp_path / "graph.json")).modules == TIED


def test_a_graph_file_without_modules_is_still_read(tmp_path: Path) -> None:
    """Files from before modules were known."""
    graph = Graph("g", (Operator("look_up", "aten.embedding.default"),), ())
    path = write_graph(graph, tmp_path / "graph.json")
    assert "modules" not in path.read_text()
    assert read_graph(path).modules is None


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ((), "the model itself"),
        ((Module("", "M"), Module("a.b", "B")), "'a.b'"),
        ((Module("", "M"), Module("a", "B"), Module("a", "B")), "'a'"),
        ((Module("", "M", (ModuleTensor("w", -1),)),), "'w'"),
        ((Module("", "M", (ModuleTensor("w", 1), ModuleTensor("w", 1))),), "'w'"),
        ((Module("", "M", (ModuleTensor("w", 1, same_as="v"),)),), "'v'"),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused(modules: tuple[Module, ...], named: str) -> None:
    """By the name of the module or tensor."""
    with pytest.raises(InputError, match=named):
        ModuleTree(modules)


def test_a_tensor_lives_with_an_operator_of_its_graph() -> None:
    """Another operator's name is an error that names the tensor."""
    operator = Operator("look_down", "aten.embedding.default")
    with pytest.raises(UnknownNameError, match=r"embed\.weight"):
        Graph("g", (operator,), (), modules=TIED)
    assert replace(Graph("g", (operator,), ()), modules=None).modules is None
