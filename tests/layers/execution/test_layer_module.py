"""Split layers with collectives that are identities: a replica of one worker."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from placewright.capturing.source import ModelSource
from placewright.layers.execution.layer_module import LayerModule, LayerProgram, TensorModule
from placewright.layers.execution.layouts import Peers
from placewright.layers.execution.stage_orders import TracedModel
from tests.layers.models import image_model, language_model


class Alone(Peers):
    """The only worker of a replica: what it has is what all have together."""

    __slots__ = ()

    def all_gather(self, part: Tensor, sizes: object, dim: int) -> Tensor:
        """The part is the whole."""
        return part

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum of one."""
        return value


class ChannelsLast(nn.Module):
    """A convolution, then linear layers over the channels of every pixel, as ConvNeXt has them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.up, self.down = nn.Linear(channels, 8), nn.Linear(8, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Means over all pixels."""
        y = self.conv(x).permute(0, 2, 3, 1)
        return (y + self.down(gelu(self.up(y)))).mean((1, 2))


def channels_last() -> ModelSource:
    """As wide as its images are high: a bias over the wrong dimension would go unnoticed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ModelSource(ChannelsLast(5), (torch.randn(4, 3, 5, 5),), name="channels_last")


def outputs(model: TracedModel, programs: tuple[LayerProgram, ...], split: bool) -> list[Tensor]:
    """Every value that passes from layer to layer."""
    state, feeds = model.state(), model.feeds()
    values: dict[str, Tensor] = {}
    peers = Alone(None, 0, (model.batch,))
    for program in programs:
        layer = TensorModule(program, state, peers) if split else LayerModule(program, state)
        made = layer(*(values[v] for v in program.inputs), feeds=feeds)
        values.update(zip(program.outputs, made, strict=True))
    return list(values.values())


@pytest.mark.parametrize("source", [language_model, image_model, channels_last])
def test_split_layers_compute_what_whole_ones_do(source: object) -> None:
    """Column and row calls, reshapes and biases; linear layers over the last of any dimensions."""
    model = TracedModel(source())  # type: ignore[operator]
    programs = model.programs(model.batch)
    pairs = zip(outputs(model, programs, True), outputs(model, programs, False), strict=True)
    for split, whole in pairs:
        torch.testing.assert_close(split, whole)
