"""Training steps as layers: models without data, and what a failed trace says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placewright.capturing.source import ModelSource
from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, UnsupportedError
from placewright.layers.execution.layer_problem import layer_problem
from placewright.layers.execution.stage_orders import TracedModel

X, Y = torch.randn(8, 6), torch.randn(8, 6)
mse = nn.functional.mse_loss


class Tied(nn.Module):
    """One weight twice, and a buffer that is computed when the model is built."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.ones(6, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes buffers, positions and weights."""
        return self.second(self.first(x * self.table).relu() + torch.arange(6))


@pytest.mark.parametrize("there", ["cpu", "meta"])
def test_a_model_on_the_meta_device_takes_batches_of_any_device(there: str) -> None:
    """Costs and tied weights are those of the same model with data; it stays where it is."""
    with torch.device("meta"):
        empty = Tied()
    given: dict[str, Any] = {"loss_fn": mse, "cluster": Cluster.preset("edge-duo")}
    found = layer_problem(empty, X.to(there), targets=X.to(there), **given)
    real = layer_problem(Tied(), X, targets=X, **given)
    assert found.layer_names == real.layer_names
    assert (found.forward_s == real.forward_s).all()
    assert found.tied == real.tied
    assert empty.first.weight.is_meta
    assert empty.second.weight is empty.first.weight


def _norm() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))


class _Rounded(torch.autograd.Function):
    """Whose gradient is not that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Whole numbers."""
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """As if nothing had been rounded."""
        return gradients[0]


def _loss_of(change: Callable[[torch.Tensor], torch.Tensor]) -> ModelSource:
    return ModelSource(nn.Linear(6, 6), X, lambda made, y: change(made).mean(), Y)


MESSAGES: dict[str, tuple[Callable[[], ModelSource], str, str]] = {
    "no targets": (
        lambda: ModelSource(nn.Linear(6, 6), X, mse, None),
        "the loss needs targets",
        "give targets",
    ),
    "a loss of many numbers": (
        lambda: ModelSource(nn.Linear(6, 6), X, lambda made, y: (made - y) ** 2, Y),
        "must be one number",
        "mean",
    ),
    "values that decide about shapes": (
        lambda: _loss_of(lambda made: made[made > 0]),
        "depends on values",
        "torch.where",
    ),
    "a backward pass of its own": (
        lambda: _loss_of(_Rounded.apply),
        "_Rounded has a backward pass of its own",
        "placewright.place",
    ),
    "one row": (lambda: ModelSource(_norm(), X[:1], mse, Y[:1]), "more than 1 value", "one row"),
    "targets of another type": (
        lambda: ModelSource(nn.Linear(6, 6), X, nn.functional.cross_entropy, Y[:, 0]),
        "Expected dtype",
        "loss_fn",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_failed_trace_says_what_to_do(name: str) -> None:
    """Its hint fits the cause."""
    make, what, hint = MESSAGES[name]
    with pytest.raises((InputError, UnsupportedError), match=what) as caught:
        TracedModel(make())
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "around", [torch.no_grad, lambda: torch.autograd.set_detect_anomaly(True, check_nan=False)]
)
def test_modes_of_autograd_around_it_are_no_matter(
    around: Callable[[], AbstractContextManager[Any]],
) -> None:
    """A step is traced and priced with gradients, and without looking at values."""
    with around():
        problem = layer_problem(nn.Linear(6, 6), X, Cluster.preset("edge-duo"), targets=Y)
    assert problem.n == 1


class Wrap(nn.Module):
    """Adds one to what is inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """One level."""
        return self.inner(x) + 1


def test_modules_may_be_nested_as_deep_as_in_eager() -> None:
    """A trace has several frames per module."""
    model: nn.Module = nn.Linear(6, 6)
    for _ in range(240):
        model = Wrap(model)
    assert len(TracedModel(ModelSource(model, X, mse, Y)).layers) == 1


def _in_forward(x: Tensor) -> Tensor:
    x.register_hook(lambda g: 2 * g)
    return x


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "a backward hook of a module": lambda m: m.register_full_backward_hook(lambda *_: None),
    "a backward hook": lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    "a hook on a parameter": lambda m: m.weight.register_hook(lambda g: 2 * g),
    "a hook on a tensor": lambda m: m.register_forward_hook(lambda _m, _x, y: _in_forward(y)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_what_changes_a_backward_pass_is_refused(name: str) -> None:
    """Layers have the forward pass of a trace, and its own gradients."""
    layer = nn.Linear(6, 6)
    HOOKS[name](layer)
    with pytest.raises(UnsupportedError, match=name):
        TracedModel(ModelSource(nn.Sequential(layer, nn.ReLU()), X, mse, Y))


class Again(nn.Module):
    """A block in an activation checkpoint."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """The block, computed again in the backward pass."""
        made: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return made


def test_a_batch_norm_in_a_checkpoint_is_refused() -> None:
    """PyTorch updates its statistics twice a step; layers would once. Frozen, it has none to."""
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(Again(nn.Sequential(nn.Linear(6, 6), norm)))
    model.train()
    kept = norm.running_mean.clone()
    with pytest.raises(UnsupportedError, match="changes this buffer a second time") as caught:
        TracedModel(ModelSource(model, X, mse, Y))
    assert caught.value.where == "buffer '0.block.1.running_mean'"
    assert torch.equal(norm.running_mean, kept)
    norm.eval()
    TracedModel(ModelSource(model, X, mse, Y))


def test_a_batch_without_its_targets_is_refused() -> None:
    """It has fewer tensors than the one that was planned with."""
    model = TracedModel(ModelSource(nn.Linear(6, 6), X, mse, Y))
    with pytest.raises(InputError, match="other tensors"):
        model.feeds(ModelSource(model.source.model, X, mse, None))


class Experts(nn.Module):
    """Two experts in 32 bits; where it is compiled it would take another kernel, as transformers'.

    `torch.export` says that it compiles, and PyTorch's rule of shapes takes bfloat16 alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        """The first half of the rows by the first expert."""
        assert not torch.compiler.is_compiling()
        assert not torch.compiler.is_exporting()
        ends = torch.tensor([len(x) // 2, len(x)], dtype=torch.int32)
        made: Tensor = torch._grouped_mm(x, self.weight, offs=ends)
        return made


def test_a_model_is_traced_as_it_is_called() -> None:
    """And not as it would be compiled."""
    model = TracedModel(ModelSource(nn.Sequential(Experts(), nn.Linear(6, 6)), X, mse, Y))
    assert [each.kind for each in model.layers] == ["linear"]
    assert torch.compiler.is_exporting() is False
