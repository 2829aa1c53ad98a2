"""A captured step in micro-batches equals a plain loop over them bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placewright.capturing.model import capture_source
from placewright.capturing.recipe import TrainingRecipe
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.graph.files import read_graph, write_graph
from tests.capturing.against_eager import SEED, STEPS, one_thread
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
    with one_thread():
        losses, model = plain_loop(of, parts)
        torch.manual_seed(SEED)
        assert [float(run(graph, state, order)["loss"]) for _ in range(STEPS)] == losses
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found = state.get(f"parameter:{name}", state.get(f"buffer:{name}"))
        assert found is not None
        assert torch.equal(found, value)


def test_a_loss_that_is_a_sum_is_not_divided() -> None:
    """Of two losses of equal weight twice the mean is left."""
    losses = {}
    for reduction in ("mean", "sum"):
        of = source(micro_batches=2, reduction=reduction)
        graph = capture_source(of, training=True)
        with one_thread():
            torch.manual_seed(SEED)
            losses[reduction] = float(run(graph, initial_state(of, graph.program))["loss"])
    assert losses["sum"] == 2 * losses["mean"]


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
    with one_thread():
        torch.manual_seed(SEED)
        assert run(graph, initial_state(of, graph.program))["output"].shape == (8, 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"micro_batches": 9}, InputError, "8 rows, 9 micro-batches"),
        ({"micro_batches": 0}, InputError, "micro_batches must be at least 1"),
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
