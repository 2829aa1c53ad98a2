"""Calls that read values in eager PyTorch: packed sequences, CTC, counted batch norms, checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.errors import InputError, UnsupportedError
from placewright.graph.files import read_graph, write_graph
from tests.capturing.against_eager import differences, inference_differences
from tests.capturing.reference_interpreter import run


class Sequences(nn.Module):
    """A recurrent layer over packed sequences, its outputs padded again, and its last states."""

    def __init__(
        self,
        layer: nn.Module,
        *,
        total: int | None = None,
        fill: float = 0.0,
        ordered: bool = False,
        rows: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.into, self.layer, self.rows = nn.Linear(4, 6), layer, rows
        self.total, self.fill, self.ordered = total, fill, ordered

    def forward(self, x: Tensor, lengths: Any) -> Any:
        """Outputs, their lengths and the last states."""
        first = self.layer.batch_first
        packed = pack_padded_sequence(
            self.into(x), lengths, batch_first=first, enforce_sorted=self.ordered
        )
        made, last = self.layer(packed)
        if self.rows is not None:
            return self.rows(made)
        padded, found = pad_packed_sequence(
            made, batch_first=first, total_length=self.total, padding_value=self.fill
        )
        return padded.sigmoid(), found, last


class Listed(nn.Module):
    """Sequences in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 6)

    def forward(self, *sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Padded outputs, last states."""
        made, last = self.layer(pack_sequence(list(sequences), enforce_sorted=False))
        return pad_packed_sequence(made, padding_value=-1.0)[0], last


def _loss(outputs: Any, _: Any) -> Tensor:
    padded, *_, last = outputs
    states = last if isinstance(last, tuple) else (last,)
    return padded.square().mean() + sum(x.square().sum() for x in states)


LENGTHS = torch.tensor([2, 5, 1, 4])

LAYERS = {
    "LSTM": lambda: Sequences(nn.LSTM(6, 5, batch_first=True)),
    "LSTM, all settings": lambda: Sequences(
        nn.LSTM(6, 5, 3, dropout=0.4, bidirectional=True, proj_size=2, bias=False), fill=0.5
    ),
    "GRU": lambda: Sequences(nn.GRU(6, 5, 2, batch_first=True, dropout=0.3), total=7),
    "RNN, frozen": lambda: Sequences(nn.RNN(6, 5, nonlinearity="relu").requires_grad_(False)),
}


def _sequences(name: str, lengths: Any = LENGTHS) -> ModelSource:
    torch.manual_seed(0)
    model: Any = LAYERS[name]()
    x = torch.randn(4, 5, 4) if model.layer.batch_first else torch.randn(5, 4, 4)
    return ModelSource(model, (x, lengths), _loss)


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_equal_eager(name: str, tmp_path: Path) -> None:
    """Bit for bit, through a file; inference of other lengths than those of the capture."""
    source = _sequences(name)
    graph = read_graph(write_graph(capture_source(source, training=True), tmp_path / "g.json"))
    assert differences(source, graph) == {}
    graph = capture_source(source)
    assert inference_differences(source, graph) == {}
    other = replace(source, inputs=(source.arguments[0], torch.tensor([5, 1, 3, 2])))
    assert inference_differences(other, graph) == {}


def test_lengths_that_are_no_input_are_known() -> None:
    """Of a list the longest one may be shorter than the batch is padded to."""
    assert inference_differences(_sequences("LSTM", [3, 4, 1, 4])) == {}
    source = ModelSource(Listed(), tuple(torch.randn(n, 4) for n in (3, 5, 2)), default_loss)
    assert differences(source) == {}
    assert inference_differences(source) == {}


def test_a_shape_that_lengths_decide_is_refused() -> None:
    """By the program, when it gets them."""
    short = torch.tensor([2, 3, 1, 3])
    source = _sequences("LSTM", short)
    graph = capture_source(_sequences("LSTM"))
    with pytest.raises(InputError, match=r"(?s)3 of 5 steps.*total_length"):
        run(graph, initial_state(source, graph.program))
    assert inference_differences(_sequences("GRU", short)) == {}


@pytest.mark.parametrize(
    "rows",
    [
        lambda made: made.data.mean(),
        lambda made: functional.relu(made.data),
        lambda made: made.data + 1,
        lambda made: made.batch_sizes.sum(),
        lambda made: torch.zeros(len(made.data)),
        lambda made: made,
    ],
)
def test_rows_of_unknown_number_are_refused(rows: Callable[[Any], Any]) -> None:
    """Also where they are what the model returns."""
    model = Sequences(nn.LSTM(6, 5, batch_first=True), rows=rows)
    with pytest.raises(UnsupportedError, match=r"(?s)packed sequence.*pad_packed_sequence"):
        capture(model, (torch.randn(4, 5, 4), LENGTHS))


CTC: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "tensors": lambda y, t: functional.ctc_loss(y, t, torch.tensor([9, 7, 3]), LENGTHS[:3]),
    "numbers": lambda y, t: functional.ctc_loss(y, t, (9, 2, 8), (4, 5, 1), zero_infinity=True),
    "sum": lambda y, t: nn.CTCLoss(blank=2, reduction="sum")(y, t, (9, 9, 8), (4, 0, 1)),
    "none": lambda y, t: functional.ctc_loss(y, t, [9, 9, 8], [4, 2, 1], reduction="none").norm(),
    "in a row": lambda y, t: functional.ctc_loss(y, t.flatten()[:7], [9, 9, 8], [4, 2, 1]),
    "of one": lambda y, t: functional.ctc_loss(y[:, 1], t[1], (9,), (5,)),
}


@pytest.mark.parametrize("name", CTC)
def test_ctc_equals_eager(name: str) -> None:
    """Losses that are infinite, targets in a row, sequences of one sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LogSoftmax(-1))
    targets = torch.randint(3, 6, (3, 5))
    assert differences(ModelSource(model, torch.randn(9, 3, 4), CTC[name], targets)) == {}


LOSSES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "gaussian": lambda y, t: functional.gaussian_nll_loss(y, t, y.detach().exp(), full=True),
    "one variance": lambda y, t: nn.GaussianNLLLoss(eps=1e-3)(y, t, y[:, :1].square()),
    "spectrum": lambda y, t: torch.istft(
        torch.complex(y.T, t.T)[None], 8, 4, window=y.new_tensor([0.5, 1.0] * 4)
    ).norm(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_functions_that_check_their_values_equal_eager(name: str) -> None:
    """Their checks are made when a program runs."""
    torch.manual_seed(0)
    source = ModelSource(nn.Linear(4, 5), torch.randn(6, 4), LOSSES[name], torch.randn(6, 5))
    assert differences(source) == {}


def test_what_they_do_not_allow_is_an_error_of_the_program() -> None:
    """As it is in eager mode."""

    class Likelihood(nn.Module):
        def forward(self, x: Tensor, spread: Tensor) -> Tensor:
            return functional.gaussian_nll_loss(x, x, spread)

    rows, spread = torch.randn(3, 2), torch.ones(3, 2)
    graph = capture(Likelihood(), (rows, spread))
    source = ModelSource(Likelihood(), (rows, -spread))
    with pytest.raises(InputError, match="negative"):
        run(graph, initial_state(source, graph.program))
