# ruff: noqa: D102 - small models, each named by its test
"""Tensors that may become constants of a program, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.errors import UnsupportedError
from tests.capturing.against_eager import differences


class ReplayLog(nn.Module):
    """Reads its own tensors in ways that a swap of its attributes does not reach."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))
        self.kept: Any = {
            "parameter": (self.linear.weight,),
            "view": (self.linear.weight.detach()[:2],),
            "buffer": (self.table,),
            "unregistered": (torch.ones(4, requires_grad=True),),
            "constant": (torch.ones(4),),
        }[how]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.kept[0].sum()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("parameter", r"parameter 'linear\.weight'"),
        ("view", r"parameter 'linear\.weight'"),
        ("buffer", "buffer 'table'"),
        ("unregistered", "requires a gradient"),
    ],
)
def test_the_models_own_tensors_become_no_constants(how: str, names: str, training: bool) -> None:
    """The refusal names the tensor and the module that reads it."""
    model = nn.Sequential(ReplayLog(how))
    names = names.replace("'linear", "'0.linear").replace("'table", "'0.table")
    with pytest.raises(UnsupportedError, match=rf"(?s)module '0'.*{names}") as caught:
        capture(model, torch.ones(2, 4), training=training)
    assert caught.value.hint


def test_a_plain_table_is_a_constant() -> None:
    """Nothing changes it and no gradient flows to it."""
    graph = capture(ReplayLog("constant"), torch.ones(2, 4), training=True)
    assert len(graph.program.constants) == 1


class Margin(nn.Module):
    """A loss with a parameter of its own and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mean.lerp_(outputs.detach().mean(), 0.1)
        return (self.scale * (outputs - self.mean) - targets).square().mean()


def _source(loss_fn: Any, model: nn.Module | None = None) -> ModelSource:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return ModelSource(model, torch.randn(3, 4), loss_fn, torch.randn(3, 4), "own loss")


def test_a_loss_is_trained_with_the_model() -> None:
    """Its parameter and its buffer, as one optimizer over both does it."""
    source = _source(Margin())
    graph = capture_source(source, training=True)
    assert differences(source, graph) == {}
    assert {e.key for e in graph.program.inputs if e.mutated and e.key.startswith("loss_fn")} == {
        "loss_fn.scale",
        "loss_fn.scale/exp_avg",
        "loss_fn.scale/exp_avg_sq",
        "loss_fn.scale/step",
        "loss_fn.mean",
    }


@pytest.mark.parametrize("kind", ["method", "closure"])
def test_a_loss_that_belongs_to_the_model_reads_what_is_trained(kind: str) -> None:
    """It decays a weight of the model, of which there is one, and not one of its own."""

    class Decayed(nn.Linear):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets).square().mean() + self.weight.square().sum()

    model = Decayed(4, 4)
    loss = model.loss if kind == "method" else lambda *both: model.loss(*both)
    source = _source(loss, model)
    graph = capture_source(source, training=True)
    assert not graph.program.constants
    parameters = {e.key for e in graph.program.inputs if e.role == "parameter"}
    assert parameters == {"weight", "bias"}
    if kind == "method":
        assert differences(source, graph) == {}


def test_names_that_clash_are_refused() -> None:
    """A model may have a part called loss_fn; then its loss may have no parameter of that name."""
    model = nn.Sequential()
    model.loss_fn = nn.ParameterDict({"scale": nn.Parameter(torch.ones(()))})
    model.linear = nn.Linear(4, 4)
    with pytest.raises(UnsupportedError, match=r"'loss_fn\.scale'"):
        capture_source(_source(Margin(), model), training=True)
