"""The tolerance of a check: 0 where the same kernels run, else their rounding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Device
from placewright.operators.exactness import EXACT, tolerance
from placewright.runtime.eager import run_eager
from placewright.testing.small_zoo import small
from tests.capturing.reference_interpreter import run


def test_equal_cores_promise_every_bit() -> None:
    """Whatever else the devices differ in: speed, memory, node."""
    source = small("alexnet")
    graph = capture_source(source, training=True)
    devices = [Device("a", cores=2), Device("b", cores=2, speed=0.5, node="other")]
    assert tolerance(graph, devices, source) is EXACT
    assert EXACT.absolute("parameter", 1e9, 3) == 0.0
    assert EXACT.steps is None


@pytest.mark.parametrize(
    ("other", "roundoff", "why"),
    [
        (Device("b", cores=4), 2.0**-24, "2 and 4 cores"),
        (Device("b", kind="gpu", cores=2), 2.0**-11, "TF32"),
    ],
)
def test_other_kernels_get_half_of_the_digits(other: Device, roundoff: float, why: str) -> None:
    """Relative to the largest value; Adam adds its rate in either direction; one step."""
    source = small("alexnet")
    graph = capture_source(source, training=True, lr=1e-2)
    allowed = tolerance(graph, [Device("a", cores=2), other], source)
    assert allowed.relative == math.sqrt(roundoff)
    assert allowed.absolute("output", 3.0, 1) == pytest.approx(3.0 * math.sqrt(roundoff))
    assert allowed.absolute("parameter", 0.0, 1) == pytest.approx(2e-2)
    assert allowed.steps == 1
    assert why in allowed.reason
    assert tolerance(capture_source(source), [Device("a"), other], source).steps is None


def encoder() -> ModelSource:
    """Fused by eager in evaluation mode."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return ModelSource(layer, (torch.randn(2, 5, 16),), mean_square, name="encoder")


def masked(mask: torch.Tensor) -> ModelSource:
    """A decoder of transformers with an attention mask."""
    settings = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**settings, **heads, use_cache=False))
    ids = torch.arange(12).view(2, 6)
    return ModelSource(model, {"input_ids": ids, "attention_mask": mask}, mean_square)


def test_kernels_that_eager_fuses_get_half_of_the_digits() -> None:
    """Eager does differ, by less than that; in training it fuses nothing."""
    source = encoder()
    graph = capture_source(source)
    allowed = tolerance(graph, [Device("a")], source)
    assert "fuses" in allowed.reason
    eager = run_eager(source, training=False, steps=1).outputs[0]
    placed = run(graph, initial_state(source, graph.program))["output"]
    assert (eager - placed).abs().max() < allowed.relative * eager.abs().max()
    assert tolerance(capture_source(source, training=True), [Device("a")], source) is EXACT


class Padded(nn.Module):
    """An encoder whose mask is an input."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        """Tokens at padded positions are 0 where eager packs them."""
        made: torch.Tensor = self.encoder(x, src_key_padding_mask=padded)
        return made


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("additive", [False, True])
def test_padded_positions_are_those_of_eager(norm: bool, additive: bool) -> None:
    """Zero where the padding is at the end, whatever mask the program is given later."""
    torch.manual_seed(0)
    model = Padded(nn.LayerNorm(16) if norm else None).eval()
    ends = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1], [0] * 6]).bool()
    inside = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1], [0] * 6]).bool()
    masks = [torch.zeros(3, 6).masked_fill(m, -math.inf) if additive else m for m in (ends, inside)]
    x = torch.randn(3, 6, 16)
    source = ModelSource(model, (x, masks[0]), name="padded")
    graph = capture_source(source)
    for mask in masks:
        given = ModelSource(model, (x, mask), name="padded")
        eager = run_eager(given, training=False, steps=1).outputs[0]
        placed = run(graph, initial_state(given, graph.program))["output"]
        assert (eager - placed).abs().max() < 1e-5
    assert eager[masks[1] != 0].abs().max() > 0.1


def test_a_mask_that_hides_nothing_leaves_every_bit() -> None:
    """Transformers leaves it out by its values, which a program cannot; the kernels agree."""
    source = masked(torch.ones(2, 6, dtype=torch.int64))
    graph = capture_source(source)
    assert tolerance(graph, [Device("a")], source) is EXACT
    eager = run_eager(source, training=False, steps=1).outputs[0]
    placed = run(graph, initial_state(source, graph.program))["output"]
    assert torch.equal(eager, placed)
