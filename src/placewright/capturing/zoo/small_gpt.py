"""A small language model of single bytes (decoder blocks of arXiv:1706.03762), and text for it.

It has 1.9 million parameters, no dropout, and nothing that looks at a batch as a whole: a step on
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

from placewright.capturing.zoo.data import token_loss

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
