"""Models unknown to capture: equal to eager bit for bit, or refused with a reason."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import traceback

from placewright.capturing.guards import Guards
from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.graph.files import read_graph, write_graph
from tests.capturing.against_eager import differences, inference_differences
from tests.capturing.models import UNSEEN, DataDependent, unseen
from tests.capturing.small_graphs import unseen_graph


@pytest.mark.parametrize("name", UNSEEN)
def test_training_equals_eager_bit_for_bit(name: str) -> None:
    """In program order and in a random order."""
    source, graph = unseen(name), unseen_graph(name, training=True)
    assert differences(source, graph) == {}
    assert differences(source, graph, shuffle=5) == {}


@pytest.mark.parametrize("name", [n for n in UNSEEN if n != "vision transformer"])
def test_inference_equals_eager_bit_for_bit(name: str) -> None:
    """All outputs."""
    assert inference_differences(unseen(name), unseen_graph(name)) == {}


def test_inference_of_a_transformer_encoder_is_close_to_eager() -> None:
    """Eager takes one fused kernel for a layer; the operators that it stands for are captured."""
    found = inference_differences(unseen("vision transformer"))
    assert max(found.values(), default=0.0) < 1e-5


def test_an_input_that_the_model_changes_stays_changed() -> None:
    """As eager, stepping again over the same tensor; what was given to capture is left alone."""
    source = unseen("counting")
    before = source.inputs.clone()
    graph = capture_source(source)
    assert inference_differences(source, graph) == {}
    assert differences(source) == {}
    assert {e.key for e in graph.program.inputs if e.mutated} == {"0", "calls", "mean"}
    assert torch.equal(source.inputs, before)


class AsksForItsWeights(nn.Module):
    """Computes by what its parameters and buffers are, and by what may be set on one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(2.0))
        self.shift, self.list = nn.Buffer(torch.tensor(3.0)), nn.ParameterList([torch.ones(4)])

    def forward(self, x: Tensor) -> Tensor:
        """Larger by what is a parameter or a buffer."""
        x = self.layer(x) * getattr(self.layer.weight, "scale", 1.0)
        x = x * (self.scale.exp() if isinstance(self.scale, nn.Parameter) else self.scale)
        x = x + (self.shift if isinstance(self.shift, nn.Buffer) else -self.shift)
        return x + sum(value for value in self.list if isinstance(value, nn.Parameter))


def test_code_may_ask_what_its_weights_are() -> None:
    """Whether they are parameters or buffers, and for their attributes."""
    source = ModelSource(AsksForItsWeights(), torch.randn(3, 4))
    assert inference_differences(source) == {}
    source.model.layer.weight.scale = 4.0  # type: ignore[union-attr, assignment]
    capture_source(source)  # a trace without it would not compute what calls do
    guards = Guards(source.model, training=False)
    source.model.layer.weight.scale = 5.0  # type: ignore[union-attr, assignment]
    assert any("scale" in name for name in guards.changes().attributes)


class Rotated(nn.Module):
    """Multiplies a spectrum by a complex number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Filter rows."""
        return torch.fft.irfft(torch.fft.rfft(self.inner(x)) * (0.5 + 1j), n=8)


def test_a_complex_number_is_an_argument_like_others(tmp_path: Path) -> None:
    """Forward and backward, where its conjugate is one, and through a file."""
    source = ModelSource(Rotated(), torch.randn(4, 8), name="rotated")
    for training in (False, True):
        graph = capture_source(source, training=training)
        back = read_graph(write_graph(graph, tmp_path / "graph.json"))
        assert (differences if training else inference_differences)(source, back) == {}


def test_branching_on_a_value_is_refused() -> None:
    """The message says that values decide and what to write instead."""
    with pytest.raises(UnsupportedError, match=r"(?s)depends on values.*torch\.where"):
        capture(nn.Sequential(DataDependent()), torch.ones(2, 4))


def test_the_refusal_names_the_module() -> None:
    """Where in the model it happened."""
    model = nn.Sequential(nn.Linear(4, 4), DataDependent())
    with pytest.raises(UnsupportedError, match="model Sequential, module '1'"):
        capture(model, torch.ones(2, 4))


class Leaving(nn.Module):
    """Leaves a cache, a count, a list entry and a parameter behind, and may end the program."""

    def __init__(self, ends: bool = False) -> None:
        super().__init__()
        self.linear, self.calls, self.ends = nn.Linear(4, 4), 0, ends
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """The layer, and traces of it."""
        if self.ends:
            raise SystemExit(7)
        self.cache, self.calls, self.extra = self.linear(x), 1, nn.Parameter(x)
        self.seen.append(x)
        return self.cache


@pytest.mark.parametrize("training", [False, True])
def test_nothing_of_a_trace_is_left_on_the_model(training: bool) -> None:
    """A fake in a cache would break the next call."""
    model = Leaving().eval()
    before = dict(vars(model))
    capture(model, torch.ones(2, 4), training=training)
    assert vars(model) == before
    assert (model.calls, model.seen, len(list(model.parameters()))) == (0, [], 2)


def test_a_buffer_that_changes_its_shape_is_refused() -> None:
    """The next step would be another graph."""
    model = nn.BatchNorm1d(4)
    model.register_forward_hook(lambda m, _, y: setattr(m, "running_mean", y.detach()))
    with pytest.raises(UnsupportedError, match=r"buffer 'running_mean'.*\(2, 4\)"):
        capture(model, torch.ones(2, 4))


def test_a_model_that_ends_the_program_is_an_error() -> None:
    """Exit code 7 of a model is not ours."""
    with pytest.raises(InputError, match="raised SystemExit"):
        capture(Leaving(ends=True), torch.ones(2, 4))
    gc.collect()  # what is left of the module that it ended in
    assert not traceback.current_meta.get("custom")  # else of operators of later captures


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_are_refused() -> None:
    """A quantized layer holds no tensor that could be placed."""
    quantize = torch.ao.quantization.quantize_dynamic
    model = quantize(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    with pytest.raises(UnsupportedError, match="packed weights"):
        capture(model, torch.ones(2, 4))


class Conditional(nn.Module):
    """Control flow that stays in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """One more or one less."""
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        (Conditional(), torch.ones(2, 4), "control flow"),
        (nn.Embedding(5, 2, sparse=True), torch.ones(2, dtype=torch.int64), "sparse=False"),
        (nn.Linear(2, 2, dtype=torch.complex64), torch.ones(1, 2) * 1j, "optimizer sgd"),
        (nn.LazyLinear(2), torch.ones(1, 2), "call the model once"),
    ],
)
def test_what_is_not_supported_is_said(model: nn.Module, inputs: Tensor, says: str) -> None:
    """With a way out."""
    with pytest.raises(InputError, match=says) as caught:
        capture(model, inputs, training=True, loss_fn=lambda y, _: y.abs().sum())
    assert caught.value.hint


def test_a_compiled_model_is_refused() -> None:
    """With a way out; compiled here, as importing the compiler takes seconds."""
    compiled = torch.compile(nn.Linear(2, 2))
    with pytest.raises(InputError, match="a compiled model") as caught:
        capture(compiled, torch.ones(1, 2), training=True, loss_fn=lambda y, _: y.abs().sum())
    assert caught.value.hint


@pytest.mark.parametrize("way", ["a part", "in place", "scripted"])
def test_a_compiled_part_is_refused_by_name(way: str) -> None:
    """However it was compiled; nothing is compiled for that."""
    part = nn.Linear(2, 2)
    part = torch.compile(part) if way == "a part" else part
    part = torch.jit.script(part) if way == "scripted" else part
    if way == "in place":
        part.compile()
    with pytest.raises(InputError, match=r"module '0'(?s:.*)a (compiled|scripted) model") as caught:
        capture(nn.Sequential(part, nn.ReLU()), torch.ones(1, 2))
    assert caught.value.hint


def test_hooks_on_all_modules_are_refused() -> None:
    """PyTorch would call them for modules that tracing adds; a capture from before is no use."""
    from torch.nn.modules.module import register_module_forward_hook

    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    guards = Guards(model, training=False)
    handle = register_module_forward_hook(lambda _m, _x, y: y * 2)
    try:
        assert guards.changes().settings
        with pytest.raises(UnsupportedError, match="1 hooks"):
            capture(model, x)
    finally:
        handle.remove()
    assert guards.unchanged()


class Collecting(nn.Module):
    """Fills a list or a dict that it is called with, or empties it."""

    def __init__(self, change: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(2, 2), change

    def forward(self, batch: Any) -> Tensor:
        """A layer."""
        x = batch["x"] if isinstance(batch, dict) else batch[0]
        y: Tensor = self.linear(x)
        self.change(batch, y)
        return y


@pytest.mark.parametrize(
    ("batch", "change"),
    [
        ([torch.ones(1, 2)], lambda batch, y: batch.append(y)),
        ({"x": torch.ones(1, 2)}, lambda batch, y: batch.update(y=y)),
        ({"x": torch.ones(1, 2)}, lambda batch, y: batch.update(x=batch["x"] * 2)),
    ],
)
def test_a_model_that_fills_its_argument_is_refused(batch: Any, change: Any) -> None:
    """Where the caller would miss it; in training nobody has the batch."""
    with pytest.raises(UnsupportedError, match="return it from forward"):
        capture(Collecting(change), (batch,))
    assert capture(Collecting(change), (batch,), training=True).operators


def test_a_model_that_takes_out_of_its_argument_is_not() -> None:
    """As many do with labels."""
    batch = {"x": torch.ones(1, 2), "labels": torch.ones(1)}
    model = Collecting(lambda batch, _: batch.pop("labels"))
    assert capture(model, (batch,)).operators


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensors_are_refused() -> None:
    """With a way out."""
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(1, 2)])
    with pytest.raises(UnsupportedError, match="to_padded_tensor"):
        capture(nn.Linear(2, 2), nested)


class Nothing(nn.Module):
    """Returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> int:
        """Not a tensor."""
        return 3


def _whole(output: Any, target: Any) -> Any:
    return output


def _detached(output: Any, target: Any) -> Any:
    return output.mean().detach()


@pytest.mark.parametrize(
    ("model", "inputs", "settings", "says"),
    [
        (nn.Linear(4, 4), torch.ones(2, 5), {}, "raised RuntimeError"),
        (nn.Linear(4, 4), "text", {}, "inputs must be"),
        (nn.Linear(4, 4), {"y": torch.ones(2, 4)}, {}, "raised TypeError"),
        (Nothing(), torch.ones(1), {}, "no tensor"),
        (Nothing(), torch.ones(1), {"training": True}, "no floating-point output"),
        (nn.ReLU(), torch.ones(1), {"training": True}, "no parameter requires a gradient"),
        (nn.Linear(4, 4), torch.ones(2, 4), {"training": True, "loss_fn": _whole}, "one number"),
        (nn.Linear(4, 4), torch.ones(2, 4), {"training": True, "loss_fn": _detached}, "one number"),
        (nn.BatchNorm1d(4), torch.ones(1, 4), {"training": True}, "more than 1 value"),
    ],
)
def test_what_cannot_work_is_said(
    model: nn.Module, inputs: Any, settings: dict[str, Any], says: str
) -> None:
    """Every message has a place and a next step."""
    with pytest.raises(InputError, match=says) as caught:
        capture(model, inputs, **settings)
    assert isinstance(caught.value, PlacewrightError)
    assert caught.value.where or caught.value.hint


def test_a_constant_without_data_is_refused() -> None:
    """A plain tensor attribute on the meta device has no values to run with."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(4, device="meta")

        def forward(self, x: Tensor) -> Tensor:
            return x.to("meta") * self.scale

    with pytest.raises(UnsupportedError, match="register_buffer"):
        capture(Scaled(), torch.ones(4))
