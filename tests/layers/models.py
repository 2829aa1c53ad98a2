"""Small models for tests of layers."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from placewright.capturing.source import ModelSource


class Block(nn.Module):
    """A transformer block with separate projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the two linear layers."""
        batch, length, width = x.shape
        y = self.before(x)
        query, key, value = (
            part(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.between(x))))


class LanguageModel(nn.Module):
    """Embedding, blocks, linear layer over the vocabulary."""

    def __init__(self, words: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.out = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the next words."""
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all words."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def language_model(batch: int = 12, heads: int = 4, blocks: int = 3) -> ModelSource:
    """A small transformer on `batch` sequences of 7 words."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LanguageModel(50, 8 * heads, heads, blocks)
        words, next_words = (torch.randint(0, 50, (batch, 7)) for _ in range(2))
    return ModelSource(model, (words,), token_loss, next_words, "language_model")


def image_model(batch: int = 12) -> ModelSource:
    """A small convolutional network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 10, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(90, 20),
            nn.ReLU(),
            nn.Linear(20, 5),
        )
        images, labels = torch.randn(batch, 3, 10, 10), torch.randint(0, 5, (batch,))
    return ModelSource(model, (images,), cross_entropy, labels, "image_model")


def one_process(source: ModelSource) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole batch by plain eager PyTorch; the model is left as it was."""
    model = deepcopy(source.model)
    assert source.loss_fn is not None
    loss = source.loss_fn(model(*source.inputs), source.targets)
    loss.backward()
    found = {f"model.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), found
