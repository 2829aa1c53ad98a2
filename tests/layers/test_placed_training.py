"""`train`: refusals and notes, on worker processes."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placewright.capturing.source import ModelSource, default_loss
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import CheckError, InputError, UnsupportedError
from placewright.layers import run as layer_run
from placewright.layers.conformance import tiny
from placewright.layers.execution.layer_module import LayerModule
from placewright.layers.execution.layer_problem import TENSORS, with_shards
from placewright.layers.execution.session import LayerTrials, executables
from placewright.layers.execution.stage_orders import TracedModel, demand_executable, inexact_layers
from placewright.layers.placed_training import train
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.layers.transfers import ring_times
from placewright.layers.workers import Link
from placewright.planning.solving import solve
from tests.layers.models import image_model, one_process

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")


def norm_model() -> ModelSource:
    """Convolutions with batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()
        )
        return ModelSource(model, (torch.randn(8, 3, 12, 12),), name="norms")


def test_peak_memory_is_that_of_the_processes() -> None:
    """A worker holds at least its framework, and what is left out has no number."""
    with train(image_model(), cluster=TWO, time_limit_s=0.5, trials=False) as placed:
        measured = placed.run(2, check=True)
        problem = placed.problem
    assert ((problem.gather_s > 0) <= (problem.parameters[:, 0] > 0)).all()
    assert problem.training.shards_wait
    measured.demand()
    found = measured.as_json()["memory"]
    assert set(found) == {TWO.device_names[w] for w in placed.result.plan.workers}
    for entry in found.values():
        assert entry["measured_peak_bytes"] > 50e6
        assert entry["predicted_peak_bytes"] == pytest.approx(entry["measured_peak_bytes"], rel=0.5)


def test_a_cluster_is_given_by_name_or_refused() -> None:
    """As `placewright.place` takes it."""
    with pytest.raises(InputError, match="edge-duos"):
        train(image_model(), cluster="edge-duos")
    with pytest.raises(InputError, match="cluster"):
        train(image_model(), cluster=3)  # type: ignore[arg-type]


def test_a_model_without_data_is_refused() -> None:
    """Before anything is started; it can be planned."""
    with torch.device("meta"):
        model = nn.Linear(6, 6)
    with pytest.raises(UnsupportedError, match="meta device") as caught:
        train(model, torch.randn(8, 6), TWO, targets=torch.randn(8, 6))
    assert "to_empty" in caught.value.hint


def test_a_loss_that_is_to_be_trained_is_refused() -> None:
    """It stayed as it was without a word; frozen, it is taken."""
    model, loss = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 1))
    source = ModelSource(model, torch.randn(8, 6), _Judged(loss), torch.randn(8, 6), "judged")
    with pytest.raises(UnsupportedError, match="the loss has parameters of its own") as caught:
        TracedModel(source)
    assert "requires_grad_(False)" in caught.value.hint
    loss.requires_grad_(False)
    assert TracedModel(source).trained()


class _Judged(nn.Module):
    """A loss with a part that could learn."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean of squares of what the part makes of the difference."""
        return torch.as_tensor(self.part(outputs - targets).pow(2).mean())


def test_slow_shards_take_what_messages_do_not() -> None:
    """One second, and for each further parameter what many in one take more; none without any."""
    small = tiny([1.0, 1.0], parameters=np.array([[8.0, 4.0], [0.0, 0.0]]))
    problem = small.replace(training=replace(small.training, shards_wait=True))
    weighed = problem.parameters[:, 0] > 0
    layers = [SimpleNamespace(parameters=[None] * 2 * int(some)) for some in weighed]
    seconds = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0 + TENSORS - 1, 1.0]]
    session: Any = SimpleNamespace(
        group=SimpleNamespace(order_all=lambda *_, **__: [seconds, seconds]),
        model=SimpleNamespace(layers=layers),
    )
    slow = with_shards(session, problem)
    sent = problem.parameters[:, 0] * problem.training.weight_bytes
    messages = ring_times(problem, range(problem.w), sent, 1)
    np.testing.assert_allclose(slow.gather_s[weighed], 2.0 - messages[weighed])
    np.testing.assert_allclose(slow.scatter_s[weighed], 1.0 - messages[weighed])
    assert not slow.gather_s[~weighed].any()


def test_batch_norm_is_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly: the whole batch in one place; a plan that splits it is refused by name."""
    monkeypatch.setattr(LayerTrials, "least_rounds", 1)
    monkeypatch.setattr(LayerTrials, "budget_s", 0.0)
    source = norm_model()
    with train(source, cluster=TWO, planner="auto", time_limit_s=0.5) as placed:
        plan = placed.result.plan
        assert plan.micro_batches == 1
        assert all(len(stage.replicas) == 1 for stage in plan.stages)
        norm = next(x.layer for x in placed.problem.refusals if x.strategy is Strategy.DATA)
        assert "conv" in placed.problem.layer_kinds[norm]
        placed.run(1, check=True).demand()
        with pytest.raises(UnsupportedError, match="takes mean and variance"):
            solve(placed.problem, "data")
    model = TracedModel(source)
    both = (Replica((0,), 4), Replica((1,), 4))
    plan = LayerPlan((Stage(0, len(model.layers) - 1, both),))
    with pytest.raises(UnsupportedError, match="part of the batch"):
        demand_executable(model, plan, 2, exact=True)
    demand_executable(model, plan, 2, exact=False)


def test_a_plan_that_cannot_be_executed_is_left_out_with_a_note() -> None:
    """And the next best one is taken, never one that was not the best of the rest."""
    ones, each = np.ones((3, 1)), np.array([[[[1.0, 2.0, 1.0]]]])
    problem = LayerProblem(
        ("a", "b", "c"),
        ones,
        ones,
        each,
        each,
        ("u", "v"),
        (Link.linear(1e9, 1e-3),),
        np.zeros((1, 1), dtype=np.int64),
        8,
    )
    found: list[LayerPlan] = []

    def demand(plan: LayerPlan) -> None:
        if not found or plan == found[0]:
            found.append(plan)
            raise UnsupportedError("has no executor", where="the plan")

    result = next(executables(problem, "auto", demand, time_limit_s=0.5))

    assert result.plan != found[0]
    assert "has no executor" in result.note


def test_a_run_whose_check_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was measured kept, and a hint that fits."""
    model = ModelSource(nn.Linear(3, 1), (torch.randn(4, 3),), name="linear")
    monkeypatch.setattr(layer_run, "checked", lambda session, plan: (1.0, 1.0))
    with train(model, cluster=TWO, time_limit_s=0.5, trials=False) as placed:
        with pytest.raises(CheckError, match="report this plan"):
            placed.run(1, check=True)
        assert placed.measurement is not None
        placed.run(1)
        for refused in (
            lambda: placed.run(0),
            lambda: placed.trainer(snapshot_every=0),
            lambda: placed.trainer(rejoin_every=0),
        ):
            with pytest.raises(InputError, match=">= 1"):
                refused()


def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The root of a mean."""
    return (outputs.sum(1) - targets).pow(2).mean().sqrt()


def masked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean by hand, over what is no padding."""
    kept = (targets >= 0).to(outputs.dtype)
    each = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (each * kept).sum() / kept.sum()


LOSSES: dict[str, Any] = {
    "ignored labels": nn.functional.cross_entropy,
    "weights of classes": nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 3.0])),
    "by hand": masked,
    "sum": lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum") / 7,
}


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_a_loss_are_weighed_by_what_they_count(name: str) -> None:
    """In layers as workers execute them; a part without labels; a batch with other ones."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
    y[:4] = -100
    model = TracedModel(ModelSource(net, (x,), LOSSES[name], y, "net"))
    for targets in (y, y.roll(3)):
        source = replace(model.source, targets=targets)
        expected, gradients = one_process(source)
        feeds, state = model.feeds(source), model.held()
        found, start = 0.0, 0
        net.zero_grad()
        for share in (4, 2, 3):
            part = {k: v[start : start + share] if v.dim() else v for k, v in feeds.items()}
            values: tuple[torch.Tensor, ...] = ()
            for program in model.programs(share):
                values = LayerModule(program, state)(*values, feeds=part)
            loss = values[0] * model.loss_share(share)
            loss.backward()
            found, start = found + float(loss.detach()), start + share
        assert found == pytest.approx(expected, rel=1e-5)
        for key, value in net.named_parameters():
            assert value.grad is not None
            assert torch.allclose(value.grad, gradients[f"model.{key}"], rtol=1e-4, atol=1e-6)


def test_losses_that_need_the_whole_batch_are_not_split() -> None:
    """The last layer sees all of it, and a plan that splits it is refused by the loss's name."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    model = TracedModel(ModelSource(net, (torch.randn(9, 5),), spread, torch.randn(9), "net"))
    (reason,) = set(inexact_layers(model).values())
    assert re.search("loss spread is no mean or sum over samples: parts of the batch add", reason)
    both = (Replica((0,), 4), Replica((1,), 5))
    plan = LayerPlan((Stage(0, len(model.layers) - 1, both),))
    with pytest.raises(UnsupportedError, match="loss spread"):
        demand_executable(model, plan, 2, exact=True)
    demand_executable(model, plan, 2, exact=False)


def test_inputs_whose_first_dimension_is_no_batch_are_not_split() -> None:
    """A recurrent network that takes time first: no layer may have a part of it."""
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    y = torch.randn(6, 3, 5)
    model = TracedModel(ModelSource(Last(), (torch.randn(6, 3, 4),), default_loss, y, "rnn"))
    assert set(inexact_layers(model)) == set(range(len(model.layers)))


class Counting(nn.Module):
    """Counts its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        self.seen.add_(x.shape[0])
        return torch.as_tensor(self.linear(x))


@pytest.mark.parametrize(
    ("model", "inputs", "state"),
    [
        (Counting(), torch.randn(8, 6), "seen"),
        (
            nn.Sequential(nn.Embedding(9, 6, max_norm=0.1), nn.Linear(6, 3)),
            torch.arange(8),
            "0.weight",
        ),
    ],
    ids=["a buffer", "an embedding with max_norm"],
)
def test_what_changes_the_model_itself_sees_the_whole_batch(
    model: nn.Module, inputs: torch.Tensor, state: str
) -> None:
    """Parts would each change it: replicas their own copy, micro-batches one after another."""
    traced = TracedModel(ModelSource(model, inputs, targets=torch.randn(8, 3)))
    (reason,) = set(inexact_layers(traced).values())
    assert f"{state!r} in place" in reason


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_recurrent_layers_draw_for_their_dropout_alone(layer: Any, rate: float) -> None:
    """Without one they may be split along samples."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(6, 3, num_layers=2, dropout=rate, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.layer(x)[0])

    source = ModelSource(Net(), torch.randn(4, 5, 6), targets=torch.randn(4, 5, 3))
    assert TracedModel(source).draws == bool(rate)


@pytest.mark.parametrize("trained", [True, False])
def test_sparse_gradients_are_refused_before_anything_starts(*, trained: bool) -> None:
    """Adam takes none, and replicas exchange none; a table that is frozen has no gradient."""
    model = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Linear(6, 3))
    model[0].requires_grad_(trained)
    source = ModelSource(model, torch.arange(8), targets=torch.randn(8, 3))
    if not trained:
        assert TracedModel(source).trained() == ("model.1.weight", "model.1.bias")
        return
    with pytest.raises(UnsupportedError, match=r"parameter '0\.weight': a sparse") as caught:
        TracedModel(source)
    assert "sparse=False" in caught.value.hint


def test_models_that_no_trace_sees_are_refused_by_name() -> None:
    """Compiled, scripted, and lazy ones, which a trace would have initialised."""
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    plain = nn.Linear(6, 3)
    for model, why in (
        (torch.compile(plain, backend="eager"), "a compiled model"),
        (nn.Sequential(torch.jit.script(plain)), "module '0': a scripted model"),
        (nn.Sequential(nn.LazyLinear(3)), "'0.weight': a lazy module"),
    ):
        with pytest.raises(InputError, match=why):
            TracedModel(ModelSource(model, x, targets=y))


class Wide(nn.Module):
    """Weights of two types, and one without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8).double(), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        return torch.as_tensor(self.last(self.first(x.double()).float()) * self.scale)


class Adapted(nn.Module):
    """A layer with an adapter of two small weights, whose transposes pass a cut."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, outputs)
        self.down, self.up = (
            nn.Parameter(torch.ones(2, width)),
            nn.Parameter(torch.ones(outputs, 2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of both."""
        return torch.as_tensor(self.layer(x)) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize(
    ("net", "zero_stage", "why"),
    [
        (Wide(), 1, "of several types"),
        (Wide(), 3, "without dimensions"),
        (
            nn.Sequential(Adapted(6, 8), nn.ReLU(), Adapted(8, 3)),
            3,
            "passes from one layer to the next",
        ),
    ],
    ids=["types", "scalar", "views"],
)
def test_weights_that_pytorch_cannot_divide_are_refused(
    net: nn.Module, zero_stage: int, why: str
) -> None:
    """By name, before workers raise an error of PyTorch's; without ZeRO they are trained."""
    model = TracedModel(ModelSource(net, torch.randn(8, 6), targets=torch.randn(8, 3)))
    both = (Replica((0,), 4), Replica((1,), 4))
    stage = Stage(0, len(model.layers) - 1, both, zero_stage=zero_stage)
    with pytest.raises(UnsupportedError, match=why) as caught:
        demand_executable(model, LayerPlan((stage,)), 2, exact=True)
    assert "stage 0" in str(caught.value)
    plain = LayerPlan((replace(stage, zero_stage=0),))
    demand_executable(model, plan=plain, workers=2, exact=True)


class Changing(nn.Module):
    """Changes a weight or a buffer without gradients, and computes with it later."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        with torch.no_grad():
            if self.kind == "weight":
                self.last.weight.clamp_(-0.1, 0.1)
            elif self.kind == "buffer":
                self.calls.add_(1)
            elif self.kind == "out":
                torch.add(self.calls, 1, out=self.calls)
        if self.kind == "checkpoint":
            x = checkpoint(torch.relu, self.first(x), use_reentrant=True)
        else:
            x = self.first(x).relu()
        return torch.as_tensor(self.last(x) * self.calls)


def _changing(kind: str) -> TracedModel:
    inputs = torch.randn(8, 6)
    return TracedModel(ModelSource(Changing(kind), inputs, targets=torch.randn(8, 3)))


def test_weights_that_forward_changes_and_reentrant_checkpoints_are_refused() -> None:
    """One lasts where it is, one has no gradients in a trace."""
    with pytest.raises(UnsupportedError, match=r"'last\.weight': the forward pass changes a para"):
        _changing("weight")
    with pytest.raises(UnsupportedError, match="reentrant activation checkpoint"):
        _changing("checkpoint")


@pytest.mark.parametrize("kind", ["buffer", "out"])
def test_a_buffer_that_is_changed_without_gradients_sees_the_whole_batch(kind: str) -> None:
    """In place, or as what a call writes its result to."""
    (reason,) = set(inexact_layers(_changing(kind)).values())
    assert "'calls' in place" in reason
