"""RNNLM: an LSTM language model (arXiv:1409.2329, the medium one by default)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from placewright.capturing.zoo.words import token_loss, tokens


class RNNLM(nn.Module):
    """Embedding, stacked LSTM layers, linear layer over the vocabulary, dropout between."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=between)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        output, _ = self.lstm(self.dropout(self.embedding(words)))
        return self.decoder(self.dropout(output))  # type: ignore[no-any-return]


def rnnlm(
    *,
    batch: int = 1,
    sequence: int = 35,
    vocabulary: int = 10_000,
    hidden: int = 650,
    layers: int = 2,
) -> tuple[Any, ...]:
    """The model on `batch` sequences of `sequence` tokens."""
    model = RNNLM(vocabulary, hidden, layers)
    words = tokens(batch, sequence, vocabulary)
    return model, (words,), token_loss, tokens(batch, sequence, vocabulary)
