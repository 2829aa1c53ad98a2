"""Where a traced step is cut into layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import mse_loss
from torch.utils.flop_counter import FlopCounterMode

from placewright.capturing.call_flops import rule_of
from placewright.capturing.program_calls import resolve_target
from placewright.capturing.source import ModelSource
from placewright.graph.graph import Instruction, Ref, TensorSpec
from placewright.layers.chain import HEAVY, call_flops, chain, in_place, layer_flops, split_layer
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.execution.timing import LayerTimer
from placewright.layers.tracing import trace_step
from tests.layers.models import image_model, language_model


class ChangesThroughView(nn.Module):
    """The first layer's output changes after the second layer, through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """What is read at the end is the changed value."""
        changed = self.first(x)
        other = self.second(x)
        changed.view(-1, 2, 4).mul_(0.5)
        out: Tensor = self.third(other.tanh() + changed)
        return out


def test_a_value_and_its_change_through_a_view_are_in_one_layer() -> None:
    """Its views would not see the change of a copy."""
    source = ModelSource(ChangesThroughView(), (torch.randn(4, 6),), name="views")
    step = trace_step(source, 4)
    (changed,) = [k for k, call in enumerate(step.instructions) if in_place(call)]
    made = next(k for k, c in enumerate(step.instructions) if c.target == "aten.linear.default")
    (layer,) = [layer for layer in chain(step) if layer.first <= changed < layer.end]
    assert layer.first <= made < changed
    model = TracedModel(source)
    assert len(model.layers) > 1
    state = {name: nn.Parameter(value) for name, value in model.state().items()}
    timer = LayerTimer(state, torch.device("cpu"), 1.0, model.programs(4), model.feeds())
    timer.round()  # each layer forwards and backwards, from what it is given


def test_a_change_of_a_value_without_views_allows_a_cut() -> None:
    """``nn.ReLU(inplace=True)`` begins a layer of its own where the chain is cut before it."""
    layers = [nn.Linear(6, 6), nn.ReLU(inplace=True)] * 3
    source = ModelSource(nn.Sequential(*layers), (torch.randn(4, 6),), name="relus")
    assert len(chain(trace_step(source, 4))) == 3


class First(nn.Module):
    """The first output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of all steps."""
        return self.layer(x)[0]


class ScaledLoss(nn.Module):
    """A loss with a parameter, as some layers have none."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The scaled mean of squares."""
        return self.scale * mse_loss(output, target)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "conv2d": (
        lambda: nn.Conv2d(6, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        (4, 6, 17, 19),
        # images, height and width that windows leave, and weights of all output channels
        2 * 4 * (9 * 15) * (8 * 3 * 3 * 5),
    ),
    "linear": (lambda: nn.Linear(7, 9, bias=False), (4, 5, 7), 2 * 4 * 5 * (7 * 9)),
    "pool": (lambda: nn.MaxPool2d(3, 2, 1), (4, 6, 17, 19), 0),
    "batch norm": (lambda: nn.BatchNorm2d(6), (4, 6, 5, 5), 0),
    "layer norm": (lambda: nn.LayerNorm((5, 6)), (4, 5, 6), 0),
    "lstm": (
        lambda: nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True),
        (4, 7, 5),
        # both directions of four gates; inputs and hidden values of the first layer, the second
        2 * 4 * 7 * (2 * 4 * 6) * ((5 + 6) + (12 + 6)),
    ),
    "gru": (lambda: nn.GRU(5, 6, batch_first=True), (4, 7, 5), 2 * 4 * 7 * (3 * 6) * (5 + 6)),
}
"""A layer, the shape of its input, and the FLOPs of its closed formula."""


@pytest.mark.parametrize("name", CASES)
def test_flops_of_calls_are_those_of_the_closed_formula(name: str) -> None:
    """As counted by hand."""
    make, shape, flops = CASES[name]
    layer, x = make(), torch.randn(shape)
    model = First(layer) if isinstance(layer, nn.RNNBase) else layer
    source = ModelSource(model, (x,), ScaledLoss(), torch.zeros_like(model(x)))
    step = trace_step(source, 4)
    traced = sum(call_flops(call, step.specs) for call in step.instructions)
    assert traced == pytest.approx(flops)


@pytest.mark.parametrize("make", [language_model, image_model])
def test_flops_of_models_are_those_of_the_counter(make: Callable[[], ModelSource]) -> None:
    """Within one per cent, and the parameters of all layers exactly."""
    source = make()
    step = trace_step(source, 12)
    layers = chain(step)
    # The counter of PyTorch 2.13 does not know the attention kernel for CPUs.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        source.model(*source.inputs)

    flops = sum(layer_flops(step, layer) for layer in layers)
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    held = {name for layer in layers for name in layer.parameters}
    assert held == {f"model.{name}" for name, _ in source.model.named_parameters()}


@pytest.mark.parametrize("target", sorted(HEAVY))
def test_every_call_that_makes_a_layer_has_a_formula(target: str) -> None:
    """Or its FLOPs would count as none."""
    assert rule_of(resolve_target(target)) is not None  # type: ignore[arg-type]


SPECS = {
    "x": TensorSpec((2, 3, 4, 8), "float32"),
    "weight": TensorSpec((6, 8), "float32"),
    "kernel": TensorSpec((6, 3, 3, 3), "float32"),
    "wide": TensorSpec((2, 3, 4, 6), "float32"),
    "made": TensorSpec((2, 6, 4, 8), "float32"),
}


@pytest.mark.parametrize(
    ("call", "result", "way"),
    [
        (("aten.linear.default", "weight"), "wide", "whole"),  # split along what is pooled
        (("aten.conv2d.default", "kernel"), "made", "keep"),  # split along channels
    ],
)
def test_pools_need_whole_rows_and_columns(call: tuple[str, str], result: str, way: str) -> None:
    """A part of the last dimensions is gathered before it is pooled; channels stay split."""
    target, weight = call
    first = Instruction("a", target, (Ref("x"), Ref(weight)), {}, (result,))
    pool = Instruction("b", "aten.max_pool2d.default", (Ref(result), (2, 2)), {}, ("y",))
    split = split_layer((first, pool), SPECS, frozenset({weight}), ("y",), 2)
    assert [c.way for c in split.calls] == ["column", way]
    assert bool(split.calls[1].gathers) == (way == "whole")
