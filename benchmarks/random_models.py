"""Draw small models from the building blocks of the zoo, to fit residual models to.

A seed gives a model of a family, its batch, and whether it is trained. Widths, lengths, depths and
batches are uniform in their logarithm; none is chosen for a benchmark. Half of the families mix
kinds of operators as the zoo's models do, the others repeat one kind: whole steps say which of two
kinds is slow only where one goes without the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright import ModelSource, mean_square


class Draw:
    """Random sizes."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def size(self, low: int, high: int) -> int:
        """Uniform in its logarithm, both ends included."""
        return int(math.exp(self._rng.uniform(math.log(low), math.log(high + 1))))

    def of(self, *choices: Any) -> Any:
        """One of them."""
        return choices[int(self._rng.integers(len(choices)))]


def dense(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Linear layers with an activation, at times with layer norm, before each but the first."""
    widths = [draw.size(16, 1024) for _ in range(draw.size(3, 24))]
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    norm, activation = draw.of(False, False, True), draw.of(nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)
    for a, b in pairwise(widths[1:]):
        layers += [activation(), *([nn.LayerNorm(a)] if norm else []), nn.Linear(a, b)]
    return nn.Sequential(*layers), torch.randn(draw.size(1, 256), widths[0])


class Side(nn.Module):
    """Branches on one input, joined by a sum or along the channels."""

    def __init__(self, branches: list[nn.Module], summed: bool) -> None:
        super().__init__()
        self.branches, self.summed = nn.ModuleList(branches), summed

    def forward(self, x: Tensor) -> Tensor:
        """Of all branches."""
        found = [branch(x) for branch in self.branches]
        return torch.stack(found).sum(0) if self.summed else torch.cat(found, 1)


def towers(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Dense branches beside each other."""
    inputs, hidden = draw.size(16, 768), draw.size(16, 768)
    depth, count = draw.size(1, 4), draw.size(2, 6)
    summed = draw.of(False, True)

    def tower() -> nn.Module:
        widths = [inputs, *[hidden] * depth]
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        return nn.Sequential(*layers)

    joined = Side([tower() for _ in range(count)], summed)
    out = nn.Linear(hidden if summed else hidden * count, 10)
    return nn.Sequential(joined, out), torch.randn(draw.size(1, 256), inputs)


def convolved(draw: Draw, inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with a drawn kernel, its norm and its activation."""
    kernel = draw.of(1, 3, 3, 5, (1, 3), (3, 1), (1, 7))
    pad = tuple(k // 2 for k in kernel) if isinstance(kernel, tuple) else kernel // 2
    norm = draw.of("batch", "batch", "group", "none")
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, stride, pad, bias=norm == "none")]
    if norm == "batch":
        layers.append(nn.BatchNorm2d(outputs))
    elif norm == "group":
        layers.append(nn.GroupNorm(1, outputs))
    return [*layers, draw.of(nn.ReLU, nn.ReLU, nn.SiLU)()]


def plain(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Convolutions in a row with poolings, at times linear layers at the end."""
    layers: list[nn.Module] = []
    channels, pixels = 3, draw.size(16, 96)
    x = torch.randn(draw.size(1, 16), channels, pixels, pixels)
    for _ in range(draw.size(2, 12)):
        outputs = draw.size(4, 128)
        layers += convolved(draw, channels, outputs, draw.of(1, 1, 1, 2))
        channels = outputs
        if pixels >= 8 and draw.of(False, False, True):
            pool = draw.of(nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1))
            layers.append(pool)
            pixels //= 2
    side = draw.of(1, 1, 2, 4)
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()]
    width = channels * side * side
    for _ in range(draw.of(0, 0, 1, 2)):
        layers += [nn.Linear(width, hidden := draw.size(16, 1024)), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 10)), x


class Residual(nn.Module):
    """Its inner layers around a skip."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        """The input and what was found."""
        found: Tensor = functional.relu(x + self.inner(x))
        return found


def branching(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Convolutions with skips and with branches in parallel, narrower and deeper than `plain`."""
    channels = draw.size(4, 64)
    pixels = draw.size(8, 64)
    x = torch.randn(draw.size(1, 8), 3, pixels, pixels)
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, draw.of(1, 2), 1)]
    for _ in range(draw.size(2, 12)):
        inner = draw.size(4, 64)
        if draw.of(True, False):
            layers.append(
                Residual(*convolved(draw, channels, inner), *convolved(draw, inner, channels))
            )
            continue
        branches: list[nn.Module] = [
            nn.Sequential(*convolved(draw, channels, inner), *convolved(draw, inner, inner))
            if draw.of(True, False)
            else nn.Sequential(nn.AvgPool2d(3, 1, 1), *convolved(draw, channels, inner))
            for _ in range(draw.size(2, 4))
        ]
        layers.append(Side(branches, False))
        channels = inner * len(branches)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)), x


class Recurrent(nn.Module):
    """Recurrent layers over embedded tokens or over vectors, and a head over all steps."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        hidden, layers = draw.size(8, 320), draw.of(1, 1, 2, 3)
        both, vocabulary = draw.of(False, False, True), draw.size(20, 2000)
        self.embedding = nn.Embedding(vocabulary, hidden) if draw.of(True, False) else None
        kind = draw.of(nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU)
        self.layers = kind(hidden, hidden, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(hidden * (1 + both), draw.of(10, vocabulary))
        self.hidden, self.vocabulary = hidden, vocabulary

    def forward(self, x: Tensor) -> Tensor:
        """Of every step."""
        found, _ = self.layers(x if self.embedding is None else self.embedding(x))
        scores: Tensor = self.head(found)
        return scores


def recurrent(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Layers that run as one operator each."""
    model, shape = Recurrent(draw), (draw.size(1, 32), draw.size(2, 48))
    if model.embedding is None:
        return model, torch.randn(*shape, model.hidden)
    return model, torch.randint(0, model.vocabulary, shape)


class Steps(nn.Module):
    """A cell that attends to the whole sequence at every step."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        hidden = draw.size(8, 192)
        self.cell = draw.of(nn.LSTMCell, nn.LSTMCell, nn.GRUCell)(2 * hidden, hidden)
        self.keys, self.score = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.head = nn.Linear(hidden, draw.size(10, 500))
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        """Of every step."""
        keys, context = self.keys(x), torch.zeros_like(x[:, 0])
        hidden = cell = context
        found = []
        for step in x.unbind(1):
            joined = torch.cat([step, context], -1)
            if isinstance(self.cell, nn.LSTMCell):
                hidden, cell = self.cell(joined, (hidden, cell))
            else:
                hidden = self.cell(joined, hidden)
            weights = self.score(torch.tanh(keys + hidden.unsqueeze(1))).softmax(1)
            context = (weights * x).sum(1)
            found.append(hidden)
        scores: Tensor = self.head(torch.stack(found, 1))
        return scores


def stepped(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Recurrent cells in a loop that was unrolled."""
    model = Steps(draw)
    return model, torch.randn(draw.size(1, 16), draw.size(2, 12), model.hidden)


class Attending(nn.Module):
    """Transformer blocks over embedded tokens, written out or by PyTorch's own module."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        heads, layers = draw.of(1, 2, 4, 8), draw.size(1, 4)
        width = heads * draw.size(8, 48)
        self.heads, self.vocabulary = heads, draw.size(20, 2000)
        self.embedding = nn.Embedding(self.vocabulary, width)
        self.positions = nn.Embedding(64, width)
        self.own, self.causal = draw.of(True, False), draw.of(True, False)
        inner, activation = draw.of(2, 4) * width, draw.of("relu", "gelu")
        blocks = [
            nn.TransformerEncoderLayer(width, heads, inner, 0.0, activation, batch_first=True)
            for _ in range(layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, draw.of(10, self.vocabulary))

    def forward(self, x: Tensor) -> Tensor:
        """Of every position."""
        y = self.embedding(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = self._block(block, y) if self.own else block(y)
        scores: Tensor = self.head(y)
        return scores

    def _block(self, block: Any, y: Tensor) -> Tensor:
        attention, shape = block.self_attn, (*y.shape[:2], 3, self.heads, -1)
        mixed = functional.linear(block.norm1(y), attention.in_proj_weight, attention.in_proj_bias)
        query, key, value = mixed.view(shape).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        y = y + attention.out_proj(attended.transpose(1, 2).reshape(y.shape))
        inner = block.activation(block.linear1(block.norm2(y)))
        found: Tensor = y + block.linear2(inner)
        return found


def attending(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Transformers."""
    model = Attending(draw)
    return model, torch.randint(0, model.vocabulary, (draw.size(1, 16), draw.size(4, 48)))


class Last(nn.Module):
    """A recurrent layer without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of every step."""
        found: Tensor = self.layer(x)[0]
        return found


def on_images(draw: Draw) -> tuple[nn.Module, Tensor]:
    """One kind of operator on images, again and again: steps that blame no other kind."""
    channels, pixels, batch = draw.size(4, 128), draw.size(2, 48), draw.size(1, 16)
    kernel = draw.of(1, 3, 3, 5)
    kinds: tuple[Callable[[], nn.Module], ...] = (
        lambda: nn.Conv2d(channels, channels, kernel, padding=kernel // 2),
        lambda: nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False),
        lambda: nn.BatchNorm2d(channels),
        lambda: nn.GroupNorm(1, channels),
        lambda: nn.MaxPool2d(3, 1, 1),
        lambda: nn.AvgPool2d(3, 1, 1),
        nn.ReLU,
        nn.SiLU,
    )
    return again(draw, draw.of(*kinds[:2], *kinds)), torch.randn(batch, channels, pixels, pixels)


def on_vectors(draw: Draw) -> tuple[nn.Module, Tensor]:
    """One kind of operator on vectors."""
    width = draw.size(32, 1024)
    kinds: tuple[Callable[[], nn.Module], ...] = (
        lambda: nn.Linear(width, width),
        lambda: nn.LayerNorm(width),
        nn.Tanh,
        nn.GELU,
        nn.ReLU,
        lambda: nn.Softmax(-1),
        lambda: nn.Dropout(0.1),
    )
    return again(draw, draw.of(kinds[0], *kinds)), torch.randn(draw.size(8, 512), width)


def on_sequences(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Recurrent layers, or encoders of transformers, of one size."""
    width = 8 * draw.size(1, 32)
    kinds: tuple[Callable[[], nn.Module], ...] = (
        lambda: Last(nn.LSTM(width, width, batch_first=True)),
        lambda: nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True),
    )
    x = torch.randn(draw.size(1, 32), draw.size(3, 48), width)
    return again(draw, draw.of(kinds[0], *kinds), 6), x


def again(draw: Draw, kind: Callable[[], nn.Module], most: int = 40) -> nn.Module:
    """Layers of one kind in a row, after one that has weights."""
    return nn.Sequential(Scaled(), *(kind() for _ in range(draw.size(1, most))))


class Scaled(nn.Module):
    """One weight, so that every model can be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Times the weight."""
        return x * self.by


Family = Callable[[Draw], tuple[nn.Module, Tensor]]

MIXED: tuple[Family, ...] = (dense, towers, plain, branching, recurrent, stepped, attending)
SINGLE: tuple[Family, ...] = (on_images, on_vectors, on_sequences)
FIRST_SINGLE = 1000
"""Seed."""


def drawn_names(count: int) -> list[str]:
    """`count` models of mixed kinds and as many of one kind each; `drawn` makes one."""
    mixed = [f"{MIXED[k % len(MIXED)].__name__}-{k}" for k in range(count)]
    seeds = range(FIRST_SINGLE, FIRST_SINGLE + count)
    single = [f"{SINGLE[k % len(SINGLE)].__name__}-{k}" for k in seeds]
    return [name for pair in zip(mixed, single, strict=True) for name in pair]


def drawn(name: str) -> tuple[ModelSource, bool]:
    """A model ``FAMILY-SEED`` with weights and inputs, and whether it is trained."""
    family, _, seed = name.partition("-")
    draw = Draw(int(seed))
    training = draw.of(True, True, True, False)
    make = next(make for make in (*MIXED, *SINGLE) if make.__name__ == family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed))
        model, x = make(draw)
    if training:
        return ModelSource(model, (x,), mean_square, None, name), True
    return ModelSource(model.eval(), (x,), name=name), False
