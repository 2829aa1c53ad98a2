"""Models of the zoo against published numbers."""

from __future__ import annotations

import sys

import pytest
import torch

from placewright.capturing.model import capture_source, load_model
from placewright.capturing.source import ModelSource
from placewright.capturing.zoo import FACTORIES, factory, zoo_batches
from placewright.errors import MissingDependencyError, UnknownNameError
from small_zoo import small
from tests.capturing.against_eager import call


def full(name: str) -> ModelSource:
    """The model at its real size, without weights."""
    return load_model(f"zoo:{name}", weights=False)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("alexnet", 61.10),
        ("vgg16", 138.36),
        ("inception_v3", 27.16),
        ("resnet50", 25.56),
        ("bert", 109.51),
        ("gpt2", 124.44),
    ],
)
def test_parameters_are_as_many_as_published(name: str, millions: float) -> None:
    """To the precision of the published number."""
    count = sum(p.numel() for p in full(name).model.parameters())
    assert round(count / 1e6, 2) == millions


def test_inception_without_its_auxiliary_head() -> None:
    """23.83 million parameters are left."""
    model = full("inception_v3").model
    auxiliary = sum(p.numel() for p in model.get_submodule("auxiliary").parameters())
    total = sum(p.numel() for p in model.parameters())
    assert round((total - auxiliary) / 1e6, 2) == 23.83


@pytest.mark.parametrize(
    ("name", "gflops"),
    [("alexnet", 1.43), ("vgg16", 30.94), ("inception_v3", 11.43), ("resnet50", 8.18)],
)
def test_flops_are_as_many_as_published(name: str, gflops: float) -> None:
    """Twice the published multiply-adds of one image (0.714, 15.47, 5.71, 4.09 G)."""
    graph = capture_source(full(name))
    assert graph.flops / 1e9 == pytest.approx(gflops, abs=0.01)


@pytest.mark.parametrize("name", FACTORIES)
def test_loss_of_the_outputs_on_the_targets(name: str) -> None:
    """Every factory's four parts fit together, in training mode."""
    source = small(name)
    assert source.loss_fn is not None
    loss = source.loss_fn(call(source, source.model.train()), source.targets)
    assert loss.shape == ()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("name", FACTORIES)
def test_batch_is_the_first_size_of_inputs_and_targets(name: str) -> None:
    """`batch` reaches every tensor of the model's inputs."""
    source = load_model(f"zoo:{name}", batch=3, weights=False)
    inputs = source.inputs.values() if isinstance(source.inputs, dict) else source.inputs
    assert {tensor.shape[0] for tensor in (*inputs, source.targets)} == {3}


def test_unknown_model_offers_the_nearest() -> None:
    """A misspelt name."""
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        factory("resnet5")


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BERT and GPT-2 come from transformers."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'placewright\[torch\]'"):
        factory("bert")()


def test_an_example_is_trained_on_its_own_data() -> None:
    """Batches without end, the same at each call; the models of papers have none."""
    source, batches = load_model("zoo:small_gpt", batch=3), zoo_batches("zoo:small_gpt")
    assert batches is not None
    (inputs, targets), again = next(batches(3)), next(batches(3))
    assert inputs[0].shape == targets.shape == source.targets.shape == (3, 64)
    assert torch.equal(inputs[0][:, 1:], targets[:, :-1])
    assert torch.equal(targets, again[1])
    assert zoo_batches("zoo:alexnet") is zoo_batches("small_gpt") is None
