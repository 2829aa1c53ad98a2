"""Validation of graphs; module trees as data: refusals, and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.graph.files import read_graph, write_graph
from placewright.graph.graph import (
    Const,
    Graph,
    Instruction,
    Module,
    ModuleTensor,
    ModuleTree,
    Operator,
    Ref,
    Tensor,
)


def test_sums_over_operators() -> None:
    """FLOPs and resident bytes."""
    graph = Graph("g", (Operator("a", "k", 1.0, 0.0, 2), Operator("b", "k", 3.0, 0.0, 4)), ())
    assert (graph.flops, graph.resident_bytes) == (4.0, 6)
    assert graph.operator_names == ("a", "b")


@pytest.mark.parametrize(
    ("operators", "tensors", "says"),
    [
        ((), (), "at least one operator"),
        ((Operator("a", "k"), Operator("a", "k")), (), "'a' is used twice"),
        ((Operator("a", "k"),), (Tensor("t", "b", 1, ()),), "unknown operator 'b'"),
        (
            (Operator("a", "k"), Operator("b", "k")),
            (Tensor("t", "b", 1, ("a",)),),
            "'a' uses it before 'b' makes it",
        ),
        (
            (Operator("a", "k"),),
            (Tensor("t", "a", 1, (), view_of="s"),),
            "tensor 't': view_of: unknown tensor 's'",
        ),
        (
            (Operator("a", "k"), Operator("b", "k")),
            (Tensor("s", "a", 1, ()), Tensor("t", "b", 1, (), view_of="s")),
            "tensor 't'.*'b' does not read 's'",
        ),
    ],
)
def test_what_is_wrong_is_said(
    operators: tuple[Operator, ...], tensors: tuple[Tensor, ...], says: str
) -> None:
    """With the graph's name in front."""
    with pytest.raises(InputError, match=f"^g: .*{says}|^g.*{says}"):
        Graph("g", operators, tensors)


def test_numbers_of_operators_and_tensors_are_zero_or_more() -> None:
    """The operator or tensor is named."""
    with pytest.raises(InputError, match="flops of Operator 'a': must be a number >= 0"):
        Operator("a", "k", flops=float("nan"))
    with pytest.raises(InputError, match="resident_bytes of Operator 'a': must be a whole number"):
        Operator("a", "k", resident_bytes=-1)
    with pytest.raises(InputError, match="bytes of Tensor 't': must be a whole number >= 0"):
        Tensor("t", "a", -1, ())


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


def test_an_instruction_reads_the_values_in_its_arguments() -> None:
    """However deep they are, each once, in order; numbers, texts and constants are none."""
    arguments = (Ref("a"), (1, [Ref("b"), None, (Ref("a"),)]), "c", Const("dtype", "float32"))
    call = Instruction("x", "f", arguments, {"mask": [Ref("d")], "by": {"k": Ref("b")}}, ("x",))
    assert call.reads() == ("a", "b", "d")
    assert Instruction("y", "f", (2.0,), {}, ("y",)).reads() == ()
