"""RNNLM, an LSTM language model (arXiv:1409.2329), and a GNMT-like translator (arXiv:1609.08144).

The translator's encoder reads both ways in its first layer; layers from the third on add their
input to their output. The decoder's first layer runs one step at a time, because it reads the
attention of the step before; the attended context goes to every layer above and to the output, as
in the paper. Those layers read the finished sequence, which computes the same as step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.zoo.data import token_loss, tokens


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


class Attention(nn.Module):
    """Additive attention (arXiv:1409.0473) of one query over the encoder's outputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """Shape (batch, hidden): the mean of `memory`, weighted by the scores of `keys`."""
        energy = self.score(torch.tanh(self.query(query).unsqueeze(1) + keys))
        return (energy.softmax(1) * memory).sum(1)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """One bidirectional layer and unidirectional ones above it."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * hidden, hidden, batch_first=True)
        above = [nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers - 2)]
        self.above = nn.ModuleList(above)

    def forward(self, words: Tensor) -> Tensor:
        x, _ = self.first(self.dropout(self.embedding(words)))
        x, _ = self.second(self.dropout(x))
        for layer in self.above:
            x = x + layer(self.dropout(x))[0]
        return x  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """One attending layer, step by step, and layers above it that see what it attended to."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        self.keys = nn.Linear(hidden, hidden)
        self.attention = Attention(hidden)
        self.first = nn.LSTMCell(2 * hidden, hidden)
        above = [nn.LSTM(2 * hidden, hidden, batch_first=True) for _ in range(layers - 1)]
        self.above = nn.ModuleList(above)
        self.output = nn.Linear(2 * hidden, vocabulary)

    def forward(self, words: Tensor, memory: Tensor) -> Tensor:
        x, context = self._attend(self.dropout(self.embedding(words)), memory)
        for k, layer in enumerate(self.above):
            y, _ = layer(torch.cat([self.dropout(x), context], -1))
            x = y if k == 0 else x + y
        return self.output(torch.cat([x, context], -1))  # type: ignore[no-any-return]

    def _attend(self, embedded: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.keys(memory)
        context = torch.zeros_like(memory[:, 0])
        hidden = cell = context
        outputs, contexts = [], []
        for word in embedded.unbind(1):
            hidden, cell = self.first(torch.cat([word, context], -1), (hidden, cell))
            context = self.attention(hidden, keys, memory)
            outputs.append(hidden)
            contexts.append(context)
        return torch.stack(outputs, 1), torch.stack(contexts, 1)


class GNMT(nn.Module):
    """Encoder and decoder."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, hidden, layers, dropout)
        self.decoder = Decoder(vocabulary, hidden, layers, dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decoder(target, self.encoder(source))  # type: ignore[no-any-return]


def gnmt(
    *,
    batch: int = 1,
    sequence: int = 20,
    vocabulary: int = 32_000,
    hidden: int = 1024,
    layers: int = 4,
) -> tuple[Any, ...]:
    """The translator on `batch` pairs of sentences of `sequence` tokens.

    The paper has 8 layers; 4 is what most re-implementations train.
    """
    model = GNMT(vocabulary, hidden, layers)
    pair = (tokens(batch, sequence, vocabulary), tokens(batch, sequence, vocabulary))
    return model, pair, token_loss, tokens(batch, sequence, vocabulary)
