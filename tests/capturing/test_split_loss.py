"""How a loss is split: what the example shows by chance is no way to split it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.source import Loss, ModelSource
from placewright.capturing.split_loss import split_loss
from placewright.capturing.value_reads import ValueReads

ROWS = 8


def source(loss_fn: Loss, targets: Any, inputs: Tensor | None = None) -> ModelSource:
    """A linear layer with a loss."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        return ModelSource(
            model, torch.randn(ROWS, 6) if inputs is None else inputs, loss_fn, targets
        )


def masked_sum(outputs: Tensor, mask: Tensor) -> Tensor:
    """A sum over the samples of a mask."""
    return (outputs.square().sum(1) * mask).sum()


def both(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    """A mean over labels, and a sum over a mask."""
    return nn.functional.cross_entropy(outputs, targets[0]) + masked_sum(outputs, targets[1])


def by_longest(outputs: Tensor, lengths: Tensor) -> Tensor:
    """A sum divided by the longest length."""
    return outputs.square().sum() / lengths.max()


def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
    """A mean over labels that are not ignored, by weights that add up to one."""
    kept = (labels != -100).float()
    return (
        nn.functional.cross_entropy(outputs, labels, reduction="none") * kept / kept.sum()
    ).sum()


def of_means(outputs: Tensor, labels: Tensor) -> Tensor:
    """The same as a quotient of two means, with another mark."""
    kept = (labels != 255).float()
    labels = labels.where(labels != 255, 0)
    each = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return (each * kept).mean() / kept.mean()


def balanced(outputs: Tensor, labels: Tensor) -> Tensor:
    """Weighted by how many of the batch are of class 0."""
    each = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return (each * (1 + 5 * (labels == 0).float().mean())).mean()


class Padded(nn.Module):
    """Weighs tokens by a mask, which a batch without padding has all ones of."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.layer, self.shared = nn.Linear(6, 5), shared

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The mean over tokens."""
        share = mask / (mask.mean() if self.shared else mask.mean(1, keepdim=True))
        return (self.layer(x) * share[..., None]).mean(1)


LABELS, NOTHING = torch.arange(ROWS) % 5, torch.zeros(ROWS)


@pytest.mark.parametrize(
    ("loss_fn", "targets", "why"),
    [
        (masked_sum, NOTHING, "the loss of the example is 0"),
        (masked_sum, torch.full((ROWS,), torch.inf), "the loss of the example is inf"),
        (nn.functional.cross_entropy, torch.full((ROWS,), -100), "the loss of the example is nan"),
        (by_longest, torch.full((ROWS,), 7.0), "with other targets"),
        (weighted, torch.arange(ROWS) % 5, "with labels of -100 in the batch, parts"),
        (of_means, torch.arange(ROWS) % 5, "with labels of 255 in the batch, parts"),
        (balanced, torch.arange(ROWS) % 4 + 1, "with labels of 0 in the batch, parts"),
        (by_longest, torch.tensor([7, 7, 7, 7, 3, 3, 3, 3]), "of one row by"),
    ],
)
def test_an_example_that_shows_nothing_is_no_way_to_split(
    loss_fn: Loss, targets: Any, why: str
) -> None:
    """Zero, infinity, and a divisor that two parts have by chance."""
    assert why in split_loss(source(loss_fn, targets)).refusal


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean square difference."""
    return nn.functional.mse_loss(outputs, targets)


BEHIND_LIMITS: dict[str, Loss] = {
    "at most": lambda o, t: squares(o, t).clamp(max=20.0),
    "at least": lambda o, t: squares(o, t).clamp(min=1e-3),
    "flooding": lambda o, t: (squares(o, t) - 1e-2).abs() + 1e-2,
    "free bits": lambda o, t: squares(o, t) + nn.functional.relu(squares(o, t) - 30.0),
    "doubled": lambda o, t: torch.where(squares(o, t) > 25, 2 * squares(o, t), squares(o, t)),
    "spread": lambda o, t: squares(o, t) + nn.functional.relu(0.01 - o.std(0)).sum(),
    "missing": lambda o, t: torch.nanmean((o - t).square()),
}


@pytest.mark.parametrize("kind", BEHIND_LIMITS)
def test_a_limit_that_the_example_keeps_to_is_found(kind: str) -> None:
    """What a loss does with the mean of a batch beyond it is another thing for parts."""
    targets = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
    found = split_loss(source(BEHIND_LIMITS[kind], targets))
    assert " in the batch, parts of the batch add up to" in found.refusal


LIMITED_ROWS: dict[str, Loss] = {
    "elements": lambda o, t: (o - t).square().clamp(max=0.5).mean(),
    "samples": lambda o, t: (o - t).square().mean(1).clamp(max=0.5).mean(),
    "huber": nn.functional.huber_loss,
    "hinge": lambda o, t: nn.functional.relu(1 - o * t.sign()).mean(),
    "sum": lambda o, t: (o - t).abs().sum(),
    "log": lambda o, t: (o - t).square().log1p().mean(),
}


@pytest.mark.parametrize("kind", LIMITED_ROWS)
def test_limits_of_samples_are_split_like_others(kind: str) -> None:
    """They are the same in a part."""
    targets = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
    found = split_loss(source(LIMITED_ROWS[kind], targets))
    assert not found.refusal
    assert found.tried


class Clipped(nn.Module):
    """A linear layer, and outputs that are scaled down where all of them together are large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs of a norm of at most 100."""
        x = self.layer(x)
        return x / (x.norm() / 100).clamp(min=1)


def test_a_model_that_mixes_samples_beyond_a_limit_is_found() -> None:
    """With inputs that are larger than those of the example."""
    found = split_loss(replace(source(nn.functional.cross_entropy, LABELS), model=Clipped()))
    assert found.refusal.startswith("with inputs 100 times as large in the batch")


@pytest.mark.parametrize("shared", [False, True])
def test_an_example_without_padding_shows_no_way_to_split(shared: bool) -> None:
    """Where padding of one sample counts for others; not where each is divided by its own."""
    x, mask = torch.randn(ROWS, 3, 6), torch.ones(ROWS, 3)
    found = split_loss(
        replace(source(nn.functional.cross_entropy, LABELS), model=Padded(shared), inputs=(x, mask))
    )
    assert ("with padding in the batch, parts" in found.refusal) == shared
    assert found.tried != shared


def test_a_term_that_is_zero_in_the_example_is_split_like_others() -> None:
    """A sum beside a mean, under a mask of zeros: parts of other batches add up, too."""
    found = split_loss(source(both, (LABELS, NOTHING)))
    assert (found.reduction, found.counted, found.refusal) == ("sum", (True,), "")


def test_a_batch_that_is_not_along_its_first_dimension_fails_in_parts() -> None:
    """Time first, and a loss that knows how long each sequence is."""

    def loss_fn(outputs: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return nn.functional.ctc_loss(outputs.log_softmax(-1), *targets)

    words = torch.ones(4, 2, dtype=torch.int64)
    lengths = torch.full((4,), 12), torch.full((4,), 2)
    with ValueReads(lambda lengths: None):
        found = split_loss(source(loss_fn, (words, *lengths), torch.randn(12, 4, 6)))
    assert found.fails
    assert "on a part" in found.refusal


def test_rows_that_must_be_sorted_are_tried_in_order() -> None:
    """A model that takes rows in descending order of a length: its parts are sorted, too."""

    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 5)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            if bool((lengths.diff() > 0).any()):
                raise ValueError("lengths must be sorted")
            out: Tensor = self.linear(x)
            return out

    given = torch.randn(ROWS, 6), torch.arange(ROWS, 0, -1)
    found = split_loss(ModelSource(Sorted(), given, nn.functional.cross_entropy, LABELS))
    assert found.tried


@pytest.mark.parametrize("normalised", [False, True])
def test_a_model_that_draws_is_compared_without_random_numbers(
    tmp_path: Path, normalised: bool
) -> None:
    """Once with each of two seeds, and its parts without; where the loss is the same for both."""
    modes = tmp_path / "modes"  # what Python changes in a comparison is taken back

    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 5)
            self.norm = nn.LayerNorm(5) if normalised else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            with modes.open("a") as file:
                file.write("train " if self.training else "eval ")
            drawn = nn.functional.dropout(self.linear(x), 0.5, self.training)
            return self.norm(drawn)  # type: ignore[no-any-return]

    def square(outputs: Tensor, _: Tensor) -> Tensor:
        mean = (outputs**2).mean()
        return mean - mean.detach() + 1  # which it is but for rounding

    loss = square if normalised else nn.functional.cross_entropy
    found = split_loss(replace(source(loss, LABELS), model=Draws()))
    assert (found.reduction, found.tried, found.refusal) == ("mean", True, "")
    trained, still = (modes.read_text().split()[part] for part in (slice(2), slice(2, None)))
    assert (trained, set(still)) == (["train", "train"], {"eval"})
