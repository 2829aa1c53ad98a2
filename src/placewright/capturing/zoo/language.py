"""Language models: RNNLM and a GNMT-like translator, BERT-base and GPT-2, and a small GPT.

RNNLM is an LSTM language model (arXiv:1409.2329), the translator follows arXiv:1609.08144. Its
encoder reads both ways in its first layer; layers from the third on add their input to their
output. The decoder's first layer runs one step at a time, because it reads the attention of the
step before; the attended context goes to every layer above and to the output, as in the paper.
Those layers read the finished sequence, which computes the same as step by step.

BERT-base (arXiv:1810.04805) and the small GPT-2 come from configurations of transformers. They have
109.5 and 124.4 million parameters with their language-model heads; no weights are read.

The small GPT is a model of single bytes (decoder blocks of arXiv:1706.03762) with text for it. It
has 1.9 million parameters, no dropout, and nothing that looks at a batch as a whole: a step on
parts of a batch is the step on all of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from placewright.capturing.zoo.convolutional import token_loss, tokens, transformers_needed


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


def bert(
    *,
    batch: int = 1,
    sequence: int = 128,
    vocabulary: int = 30_522,
    hidden: int = 768,
    layers: int = 12,
) -> tuple[Any, ...]:
    """BERT on `batch` sequences of `sequence` tokens, built from a configuration, no weights."""
    transformers = transformers_needed("zoo:bert")
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
    )
    model = transformers.BertForMaskedLM(config)
    inputs = {"input_ids": tokens(batch, sequence, vocabulary)}
    return model, inputs, token_loss, tokens(batch, sequence, vocabulary)


def gpt2(
    *,
    batch: int = 1,
    sequence: int = 128,
    vocabulary: int = 50_257,
    hidden: int = 768,
    layers: int = 12,
) -> tuple[Any, ...]:
    """GPT-2 on `batch` sequences of `sequence` tokens, built from a configuration, no weights."""
    transformers = transformers_needed("zoo:gpt2")
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=max(1, hidden // 64),
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    inputs = {"input_ids": tokens(batch, sequence, vocabulary)}
    return model, inputs, token_loss, tokens(batch, sequence, vocabulary)


BYTES = 128
LENGTH = 64


class Block(nn.Module):
    """Causal attention and two linear layers, each with layer norm before and a skip around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        shape = (*x.shape[:2], self.heads, -1)
        parts = (f(y).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        query, key, value = parts
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        made: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return made


class SmallGpt(nn.Module):
    """Scores of the next byte at every position."""

    def __init__(self, width: int = 192, heads: int = 4, blocks: int = 4) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(BYTES, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.positions.weight[: text.shape[1]]
        return self.scores(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def small_gpt(*, batch: int = 24, width: int = 192, blocks: int = 4) -> tuple[Any, ...]:
    """The model on `batch` pieces of the source text of Python's ``argparse``.

    24 pieces can be shared 16 to 8 by two workers of which one is half as fast.
    """
    (words,), targets = next(text_batches(batch))
    return SmallGpt(width, blocks=blocks), (words,), token_loss, targets


def text_batches(batch: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], Tensor]]:
    """Batches without end: pieces of the text, and the same pieces one byte later."""
    text = Path(argparse.__file__).read_bytes()
    held = torch.tensor([min(byte, BYTES - 1) for byte in text], device="cpu")
    drawn = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(held) - LENGTH - 1, (batch,), generator=drawn, device="cpu")
        pieces = torch.stack([held[s : s + LENGTH + 1] for s in starts.tolist()])
        yield (pieces[:, :-1].contiguous(),), pieces[:, 1:].contiguous()
