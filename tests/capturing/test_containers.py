"""Tensors inside containers and objects are found, and the objects stay unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.containers import (
    StepBatch,
    constants_of,
    leaves_of,
    refilled,
    tensors_of,
)
from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from tests.capturing.against_eager import differences, inference_differences

transformers = pytest.importorskip("transformers")


@dataclass
class Held:
    """An object with tensors at several depths, one of them in two places, and itself."""

    rows: list[Any] = field(default_factory=list)
    count: int = 0
    me: Any = None


def held() -> tuple[Held, list[Tensor]]:
    """Three tensors; the last is held by a list that is held twice."""
    tensors = [torch.full((2,), float(k)) for k in range(3)]
    inner = [tensors[2], "text", None]
    made = Held([tensors[0], {"a": tensors[1], "inner": inner}, inner])
    made.me = made
    return made, tensors


def test_every_tensor_has_a_name() -> None:
    """By position among the leaves, then by attribute, key or position."""
    made, tensors = held()
    found = {key: leaf for key, leaf in leaves_of((tensors[0], made)) if isinstance(leaf, Tensor)}
    assert list(found) == ["0", "1.rows.0", "1.rows.1.a", "1.rows.1.inner.0"]
    assert list(found.values()) == [tensors[0], *tensors]


def test_a_copy_is_refilled_and_the_object_is_left_alone() -> None:
    """Objects keep their identity among each other; what is no tensor is carried over."""
    made, tensors = held()
    copy = refilled((made,), iter([10, 11, 12]))[0]
    assert copy.rows == [10, {"a": 11, "inner": [12, "text", None]}, [12, "text", None]]
    assert copy.rows[2] is copy.rows[1]["inner"]
    assert copy.me is copy
    assert tensors_of(made) == tensors
    assert made.me is made
    assert type(refilled({"size": torch.Size((2, 3))}, iter(()))["size"]) is torch.Size


@dataclass(frozen=True, slots=True)
class Slotted:
    """An object without a dictionary of attributes."""

    x: Tensor
    scale: float = 2.0


class Scaled(nn.Module):
    """Reads a tensor and a number from its argument."""

    def forward(self, given: Slotted) -> Tensor:
        """Their product."""
        return given.x * given.scale


def test_a_tensor_in_a_slot_is_an_input() -> None:
    """Else the example's tensor becomes a constant, and every call returns its result."""
    x = torch.ones(2)
    graph = capture(Scaled(), (Slotted(x),))
    assert [entry.role for entry in graph.program.inputs] == ["input"]
    assert leaves_of((Slotted(x),))[1] == ("0.x", x)
    assert refilled((Slotted(x),), iter([3])) == (Slotted(3),)  # type: ignore[arg-type]
    assert ("0.scale", 2.0) in constants_of((Slotted(x),))


def test_a_batch_keeps_what_is_changed_in_place_and_forgets_what_is_replaced() -> None:
    """The rule by which a program's inputs are state."""
    made, tensors = held()
    batch = StepBatch((made,), None)
    for _ in range(2):
        (argument,), _ = batch.arguments()
        assert argument.count == 0
        argument.rows[0] += 1
        argument.rows[1]["a"] = torch.zeros(2)
        argument.count = 5
    assert torch.equal(tensors[0], torch.zeros(2))
    assert {name: t.tolist() for name, t in batch.changed().items()} == {"input:0.rows.0": [2, 2]}


def decoder() -> tuple[nn.Module, Tensor]:
    """A small Llama and a few tokens."""
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
        return model, torch.randint(1, 20, (2, 6))


def decoding(kind: str) -> ModelSource:
    """One more token after four that a cache holds."""
    model, tokens = decoder()
    past: Any = transformers.DynamicCache(config=model.config)
    if kind == "static":
        past = transformers.StaticCache(config=model.config, max_cache_len=8)
    with torch.no_grad():
        model(tokens[:, :4], past_key_values=past)
    return ModelSource(model, {"input_ids": tokens[:, 4:5], "past_key_values": past}, name=kind)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_is_an_input_and_an_output(kind: str) -> None:
    """Logits and the new cache equal eager; a static cache is changed in place, step by step."""
    source = decoding(kind)
    graph = capture_source(source)
    assert inference_differences(source, graph) == {}
    inputs = {e.key: e.mutated for e in graph.program.inputs if e.role == "input"}
    assert {f"1.layers.{k}.{part}" for k in (0, 1) for part in ("keys", "values")} < set(inputs)
    assert any(inputs.values()) == (kind == "static")
    assert len(graph.program.outputs) == 1 + {"dynamic": 4, "static": 6}[kind]


def test_capture_leaves_a_cache_as_it_was() -> None:
    """Its layers hold the very tensors that they held."""
    source = decoding("dynamic")
    layer = source.inputs["past_key_values"].layers[0]
    keys, values = layer.keys, layer.keys.clone()
    capture_source(source)
    assert layer.keys is keys
    assert torch.equal(keys, values)


def test_a_training_step_takes_a_past() -> None:
    """Two more tokens are trained on after four that a cache holds."""
    source = decoding("dynamic")
    _, tokens = decoder()
    inputs = {**source.inputs, "input_ids": tokens[:, 4:], "labels": tokens[:, 4:]}
    trained = ModelSource(source.model, inputs, lambda outputs, _: outputs.loss, name="past")
    assert differences(trained) == {}


def test_a_mapping_of_another_kind_is_keyword_arguments() -> None:
    """A tokenizer answers with its own kind of dict."""
    encoded = transformers.BatchEncoding({"input": torch.ones(2, 4)})
    assert len(capture(nn.Linear(4, 3), encoded).program.inputs) == 3


def test_arrays_are_constants_by_their_content() -> None:
    """As are numbers of NumPy; equal numbers of other classes differ as text."""
    one, other = (repr(constants_of(({"a": np.full(2, k)}, np.float32(3)))) for k in (1.0, 2.0))
    assert one != other
    texts = {repr(constants_of((value,))) for value in (2, 2.0, True, 1, 0.0, -0.0, {2}, b"2")}
    assert len(texts) == 8
