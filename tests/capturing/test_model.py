"""Captured steps compute what eager PyTorch computes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from placewright.capturing.model import capture, capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import FACTORIES
from placewright.errors import UnknownNameError
from placewright.graph.graph import ORDER_ONLY, Program
from small_zoo import small
from tests.capturing.against_eager import differences, inference_differences
from tests.capturing.models import unseen
from tests.capturing.reference_interpreter import mismatched_specs
from tests.capturing.small_graphs import small_graph


@pytest.mark.parametrize("name", FACTORIES)
def test_three_training_steps_equal_eager_bit_for_bit(name: str) -> None:
    """Loss, every parameter and every buffer, dropout included; also in another order.

    The graph's tensors name every dependency, in-place updates and random draws included. Values
    have the shape, dtype and strides that a receiver allocates; only the LSTM's workspace is
    unknown.
    """
    graph = small_graph(name, training=True)
    assert differences(small(name), graph) == {}
    assert differences(small(name), graph, shuffle=3) == {}
    wrong = mismatched_specs(graph, initial_state(small(name), graph.program))
    assert [value for value in wrong if "mkldnn_rnn_layer" not in value] == []


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "rnnlm", "gnmt", "bert", "gpt2"])
def test_inference_equals_eager_bit_for_bit(name: str) -> None:
    """Every output of the forward pass in evaluation mode."""
    assert inference_differences(small(name), small_graph(name)) == {}


@pytest.mark.parametrize("name", ["alexnet", "rnnlm"])
def test_sgd_equals_eager_bit_for_bit(name: str) -> None:
    """`torch.optim.SGD` without momentum."""
    assert differences(small(name), optimizer="sgd", shuffle=1) == {}


def test_names_are_the_same_in_every_capture() -> None:
    """Names are the identity of operators, so two captures must agree on them."""
    one, two = (capture_source(small("rnnlm", seed), training=True) for seed in (0, 1))
    assert one.operators == two.operators
    assert one.tensors == two.tensors
    assert one.program.instructions == two.program.instructions


def test_the_model_is_left_as_it_was() -> None:
    """Training mode, gradients and weights of the model do not change by capturing it."""
    source = unseen("separable")
    source.model.eval()
    source.model.get_submodule("layers.1").train()
    before = {k: v.clone() for k, v in source.model.state_dict().items()}
    modes = [module.training for module in source.model.modules()]
    capture_source(source, training=True)
    assert [module.training for module in source.model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in source.model.state_dict().items())
    assert all(p.grad is None for p in source.model.parameters())


def test_the_callers_random_state_is_left_as_it_was() -> None:
    """Tracing draws nothing."""
    source = small("alexnet")
    before = torch.get_rng_state()
    capture_source(source, training=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_phases_and_modules_are_named() -> None:
    """A backward operator belongs to the module whose forward it differentiates."""
    graph = small_graph("resnet50", training=True)
    assert {op.phase for op in graph.operators} == {"forward", "backward", "optimizer"}
    named = small("resnet50").model.named_modules()
    convolutions = sorted(name for name, module in named if isinstance(module, nn.Conv2d))
    for kind in ("aten.convolution.default", "aten.convolution_backward.default"):
        modules = [op.module for op in graph.operators if op.kind == kind]
        assert sorted(modules) == convolutions


def test_resident_bytes_are_parameters_buffers_and_state() -> None:
    """Each counted once: weights, two moments, a step count per parameter, buffers."""
    source = small("resnet50")
    weights = sum(p.nbytes for p in source.model.parameters())
    buffers = sum(b.nbytes for b in source.model.buffers())
    steps = 4 * len(list(source.model.parameters()))
    assert small_graph("resnet50").resident_bytes == weights + sum(
        b.nbytes for k, b in source.model.named_buffers() if not k.endswith("batches_tracked")
    )
    graph = small_graph("resnet50", training=True)
    assert graph.resident_bytes == 3 * weights + steps + buffers


def test_instructions_are_the_operators_and_tensors_are_values() -> None:
    """The graph to plan on and the program to run name the same things."""
    graph = small_graph("gpt2", training=True)
    program: Program = graph.program
    assert tuple(call.name for call in program.instructions) == graph.operator_names
    made = {name for call in program.instructions for name in call.results if name}
    carried = [t for t in graph.tensors if not t.name.startswith(ORDER_ONLY)]
    assert {t.name for t in carried} <= made
    assert all(t.bytes == 0 for t in graph.tensors if t.name.startswith(ORDER_ONLY))


def test_a_model_on_the_meta_device_gives_the_same_graph() -> None:
    """Planning needs no weights."""
    source = unseen("separable")
    known = capture_source(source, training=True)
    source.model.to("meta")
    assert capture_source(source, training=True).operators == known.operators


def test_unknown_optimizer_offers_the_nearest() -> None:
    """A misspelt optimizer."""
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        capture(nn.Linear(2, 2), torch.ones(1, 2), training=True, optimizer="adamw")


def test_without_torch_the_message_says_what_to_install() -> None:
    """In a process where torch cannot be imported."""
    code = "import sys; sys.modules['torch'] = None; import placewright.capturing.model"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'placewright[torch]'" in ended.stderr
