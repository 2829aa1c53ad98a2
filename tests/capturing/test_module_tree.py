"""The module tree of a model: paths, tensors, ties, classes that are never split."""

from __future__ import annotations

import torch
from torch import nn

from placewright.capturing.assembly import module_tree
from placewright.capturing.model import capture


class Tied(nn.Module):
    """An embedding whose weight is the head's, a shared layer, a running statistic."""

    _no_split_modules = ("Sequential",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(self.first, nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.block(self.first(self.embed(x)) * self.scale))


def test_the_tree_is_that_of_the_model() -> None:
    """Every path of every module, in order, with what it holds itself; names and ties hold."""
    model = Tied()
    tree = module_tree(model, {})
    paths = [name for name, _ in model.named_modules(remove_duplicate=False)]
    assert [m.path for m in tree.modules] == paths
    assert [m.kind for m in tree.modules] == [
        type(m).__name__ for _, m in model.named_modules(remove_duplicate=False)
    ]
    keys = {m.key(t): t for m in tree.modules for t in m.tensors}
    state = model.state_dict()
    assert set(keys) == set(state)
    assert {k: t.bytes for k, t in keys.items()} == {k: v.nbytes for k, v in state.items()}
    assert {k: t.same_as for k, t in keys.items() if t.same_as} == {
        "head.weight": "embed.weight",
        "block.0.weight": "first.weight",
        "block.0.bias": "first.bias",
    }
    assert {k for k, t in keys.items() if t.buffer} == {k for k, _ in model.named_buffers()}
    assert tree.no_split == ("Sequential",)


def test_a_module_that_contains_itself_is_entered_once() -> None:
    """Nothing hangs."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].add_module("above", model)
    assert [m.path for m in module_tree(model, {}).modules] == ["", "0"]


def test_captured_tensors_know_an_operator_where_they_live() -> None:
    """The program's inputs say the same; what the step does not touch has none."""
    model = Tied()
    model.unused = nn.Linear(3, 3)
    for training in (False, True):
        graph = capture(model, (torch.tensor([1, 2, 3]),), training=training)
        assert graph.modules is not None
        operators = {op.name: op for op in graph.operators}
        homes = {e.key: e.colocation for e in graph.program.inputs}
        for module in graph.modules.modules:
            for tensor in module.tensors:
                key = tensor.same_as or module.key(tensor)
                assert tensor.operator == homes.get(key, "")
                assert not tensor.operator or tensor.operator in operators
                assert bool(tensor.operator) == (key in homes)
        assert "unused.weight" not in homes
