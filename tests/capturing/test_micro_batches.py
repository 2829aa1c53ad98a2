"""A captured step in micro-batches equals a plain loop over them bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.state import initial_state
from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.graph.files import read_graph, write_graph
from placewright.operators.check import EagerSteps
from tests.capturing.against_eager import SEED, STEPS
from tests.capturing.reference_interpreter import random_order, run

LOSS = nn.functional.cross_entropy


def source(rows: int = 8, **recipe: Any) -> ModelSource:
    """Running statistics change with every micro-batch; random numbers are one sequence."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)]
    batch = torch.randn(rows, 6), torch.randint(0, 3, (rows,))
    model = nn.Sequential(*layers)
    return ModelSource(model, batch[0], LOSS, batch[1], "net", TrainingRecipe(**recipe))


def plain_loop(of: ModelSource, parts: int, weigh: bool = True) -> tuple[list[float], nn.Module]:
    """The losses, and the model, of what people write."""
    model = copy.deepcopy(of.model).train()
    updates = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    losses = []
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        updates.zero_grad()
        total = torch.zeros(())
        for x, y in zip(of.inputs.tensor_split(parts), of.targets.tensor_split(parts), strict=True):
            loss = LOSS(model(x), y) * (len(x) / len(of.inputs) if weigh else 1.0)
            loss.backward()
            total += loss.detach()
        updates.step()
        losses.append(float(total))
    return losses, model


@pytest.mark.parametrize(("parts", "shuffle"), [(1, None), (3, None), (3, 1), (4, 2)])
def test_steps_equal_a_plain_loop_over_the_micro_batches(parts: int, shuffle: int | None) -> None:
    """In any order that the graph allows; three of eight rows are not equally large."""
    of = source(micro_batches=parts)
    graph = capture_source(of, training=True)
    assert {op.micro_batch for op in graph.operators} == set(range(parts + 1 if parts > 1 else 1))
    state = initial_state(of, graph.program)
    order = None if shuffle is None else random_order(graph, shuffle)
    with torch.random.fork_rng(devices=[]):
        losses, model = plain_loop(of, parts)
        torch.manual_seed(SEED)
        assert [float(run(graph, state, order)["loss"]) for _ in range(STEPS)] == losses
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found = state.get(f"parameter:{name}", state.get(f"buffer:{name}"))
        assert found is not None
        assert torch.equal(found, value)


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of a mean."""
    return (outputs.sum(1) - targets).pow(2).mean().sqrt()


def alike(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each row is to be nearer to itself, moved, than to the others: contrastive."""
    return LOSS(outputs @ outputs.roll(1, 1).T, torch.arange(len(outputs)))


class Centred(nn.Module):
    """Takes the mean over the batch off."""

    def forward(self, x: Tensor) -> Tensor:
        """The difference."""
        return x - x.mean(0)


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean by hand, over what is no padding."""
    kept = (targets >= 0).to(outputs.dtype)
    return (LOSS(outputs, targets, reduction="none") * kept).sum() / kept.sum().clamp(min=1)


WEIGHTS = torch.tensor([0.5, 1.0, 3.0])
MEANS: dict[str, Any] = {
    "ignored labels": LOSS,
    "weights of classes": nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2),
    "log-likelihood": lambda o, t: nn.functional.nll_loss(o.log_softmax(1), t, WEIGHTS),
    "by hand": masked,
    "two means": lambda o, t: LOSS(o, t) + 0.1 * o.pow(2).mean(),
    "batchmean": lambda o, t: nn.functional.kl_div(
        o.log_softmax(1), o.detach().softmax(1).roll(1, 1), reduction="batchmean"
    ),
}


def plain(loss_fn: Any, rows: int, ignored: Sequence[int], **recipe: Any) -> ModelSource:
    """A small model without dropout; some labels are ignored."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(rows, 6), torch.randint(0, 3, (rows,))
    y[list(ignored)] = -100
    return ModelSource(model, x, loss_fn, y, "net", TrainingRecipe("sgd", 0.1, **recipe))


def check_against_the_whole(of: ModelSource, later: Tensor) -> None:
    """A captured step, on the example and on other targets, is eager's on the whole batch."""
    graph = capture_source(of, training=True)
    state = initial_state(of, graph.program)
    model = copy.deepcopy(of.model)
    for targets in (of.targets, later):
        state["target:0"] = targets.clone()
        model.zero_grad()
        loss = of.loss_fn(model(of.inputs), targets)
        loss.backward()
        assert float(run(graph, state)["loss"]) == pytest.approx(loss.item(), rel=1e-5)
        for name, value in model.named_parameters():
            value.data -= 0.1 * value.grad
            found = state[f"parameter:{name}"]
            assert torch.allclose(found, value, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("name", ["ignored labels", "by hand"])
def test_means_over_something_else_than_rows_are_those_of_the_batch(name: str) -> None:
    """A part without any label counts nothing; in a later batch other labels are ignored."""
    of = plain(MEANS[name], 9, [0, 1, 2, 5], micro_batches=3)
    later = of.targets.roll(4)
    check_against_the_whole(of, later)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(MEANS)),
    rows=st.integers(4, 12),
    parts=st.integers(2, 4),
    ignored=st.sets(st.integers(0, 11), max_size=3),
    moved=st.integers(0, 11),
)
def test_losses_in_any_number_of_parts_are_those_of_the_batch(
    name: str, rows: int, parts: int, ignored: set[int], moved: int
) -> None:
    """Reductions x ignored labels x numbers of parts, also in a later batch; without a capture."""
    of = plain(MEANS[name], rows, [k for k in ignored if k < rows], micro_batches=parts)
    whole = copy.deepcopy(of.model)
    try:
        steps = EagerSteps(of, training=True)
    except UnsupportedError:
        assert name == "by hand", "whose counts of parts without labels do not add up"
        return
    for targets in (of.targets, of.targets.roll(moved)):
        steps.feed(of.inputs, targets)
        whole.zero_grad()
        loss = of.loss_fn(whole(of.inputs), targets)
        loss.backward()
        (made,) = steps.step().outputs
        assert float(made) == pytest.approx(loss.item(), rel=1e-5)
        for key, value in whole.named_parameters():
            value.data -= 0.1 * value.grad
            assert torch.allclose(steps.state()[key], value, rtol=1e-5, atol=1e-6), key


def test_a_loss_that_is_a_sum_is_added_up() -> None:
    """By its reduction, which is asked for where it is missing."""

    def summed(outputs: Tensor, targets: Tensor) -> Tensor:
        return LOSS(outputs, targets, reduction="sum")

    of = plain(summed, 8, [1], micro_batches=3, reduction="sum")
    check_against_the_whole(of, of.targets.roll(1))
    with pytest.raises(UnsupportedError, match=r"sum over samples.*\n.*reduction='sum'"):
        capture_source(plain(summed, 8, [1], micro_batches=3), training=True)
    with pytest.raises(UnsupportedError, match="mean over samples"):
        capture_source(source(micro_batches=2, reduction="sum"), training=True)


@pytest.mark.parametrize("loss_fn", [spread, alike])
def test_losses_that_need_the_whole_batch_are_refused(loss_fn: Any) -> None:
    """By name, and by how much they differ."""
    words = rf"loss {loss_fn.__name__}, micro_batches=2: .*parts of the batch add up to"
    with pytest.raises(UnsupportedError, match=words):
        capture_source(plain(loss_fn, 8, [], micro_batches=2), training=True)
    capture_source(plain(loss_fn, 8, []), training=True)


def sure(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over the samples that the model is sure of."""
    mask = (outputs.softmax(1).max(1).values > 0.4).float()
    return (LOSS(outputs, targets, reduction="none") * mask).sum() / mask.sum()


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean by weights that the outputs give."""
    weights = outputs.detach().abs().sum(1)
    return (LOSS(outputs, targets, reduction="none") * weights).sum() / weights.sum()


@pytest.mark.parametrize("loss_fn", [sure, weighted])
def test_losses_whose_divisor_the_outputs_decide_are_refused(loss_fn: Any) -> None:
    """A micro-batch does not know what the others count."""
    with pytest.raises(UnsupportedError, match=f"loss {loss_fn.__name__}, .*the model's outputs"):
        capture_source(plain(loss_fn, 8, [], micro_batches=2), training=True)


def test_models_that_mix_samples_are_refused() -> None:
    """As a softmax over the batch does."""
    of = plain(LOSS, 8, [], micro_batches=2)
    of = replace(of, model=nn.Sequential(of.model, Centred()))
    with pytest.raises(UnsupportedError, match="mixes samples"):
        capture_source(of, training=True)


def test_copies_of_an_operator_share_a_device_and_their_number_is_kept(tmp_path: Path) -> None:
    """The forward pass has a copy per micro-batch; one colocation group has them all."""
    graph = capture_source(source(micro_batches=4), training=True)
    groups: dict[str, set[int]] = {}
    for op in graph.operators:
        if op.kind == "aten.relu.default":
            groups.setdefault(op.colocation, set()).add(op.micro_batch)
    assert list(groups.values()) == [{1, 2, 3, 4}]
    assert read_graph(write_graph(graph, tmp_path / "g.json")).operators == graph.operators


def test_outputs_are_put_together_row_by_row() -> None:
    """What the model returns for the whole batch, from its parts."""
    of = source(micro_batches=4, outputs=True)
    graph = capture_source(of, training=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        assert run(graph, initial_state(of, graph.program))["output"].shape == (8, 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"micro_batches": 9}, InputError, "8 rows, 9 micro-batches"),
        (
            {"micro_batches": 0},
            InputError,
            "micro_batches of TrainingRecipe: must be .* >= 1",
        ),
        ({"reduction": "median"}, PlacewrightError, "median"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    options: dict[str, Any], error: type[PlacewrightError], words: str
) -> None:
    """With the sizes."""
    with pytest.raises(error, match=words):
        capture_source(source(**options), training=True)


def test_an_output_without_rows_is_refused() -> None:
    """A mean over samples cannot be put together."""

    class Mean(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).mean()

    of = ModelSource(
        Mean(6, 3),
        torch.randn(8, 6),
        lambda made, _: made,
        None,
        "mean",
        TrainingRecipe(micro_batches=2, outputs=True),
    )
    with pytest.raises(UnsupportedError, match="row per sample"):
        capture_source(of, training=True)
