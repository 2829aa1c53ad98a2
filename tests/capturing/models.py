# ruff: noqa: D102 - the docstring of the class describes `forward`
"""Small models, each with a feature that is easily captured wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from placewright.capturing.source import ModelSource


class Separable(nn.Module):
    """MobileNet-like: depthwise convolutions, in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(inplace=True),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            nn.Conv2d(8, 16, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(16, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Dense(nn.Module):
    """DenseNet-like: every layer reads all layers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(8 + 4 * k), nn.ReLU(inplace=True), nn.Conv2d(8 + 4 * k, 4, 3, 1, 1)
            )
            for k in range(3)
        )
        self.last = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.first(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.last(functional.adaptive_avg_pool2d(torch.cat(features, 1), 1).flatten(1))


class UNet(nn.Module):
    """Skip connection, transposed convolution, two outputs, dropout of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.bottom = nn.Conv2d(8, 16, 3, 2, 1)
        self.dropout = nn.Dropout2d(0.3)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 3, 1)
        self.wide = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = functional.gelu(self.norm(self.down(x)))
        bottom = self.dropout(functional.silu(self.bottom(left)))
        return self.last(torch.cat([left, self.up(bottom)], 1)), self.wide(bottom)


class VisionTransformer(nn.Module):
    """ViT-like: an expanded parameter, positions, a transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.position = nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.last(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch's own and a linear one."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])


class Counting(nn.Module):
    """Changes its input, two buffers and a view of one in place; holds a tensor of no kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)[:, 0] += 1
        self.calls += 1
        y = self.linear(x) * self.scale
        self.mean.mul_(0.9).add_(y.mean(0).detach(), alpha=0.1)
        view = self.mean[:2]
        return y + view.sum() + torch.tensor(3.0) + self.calls


class Rebinding(nn.Module):
    """Puts new tensors in the place of its buffers: one averaged, two swapped, one handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("front", torch.ones(4))
        self.register_buffer("back", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, before = self.linear(x) * self.mean.add(1), self.mean
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.front, self.back = self.back, self.front
        return y * self.front + self.mean, before


class Tied(nn.Module):
    """One weight for the embedding and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.last = nn.Linear(8, 20, bias=False)
        self.last.weight = self.embedding.weight
        self.dropout = nn.Dropout(0.5)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.dropout(self.embedding(words)))


class Normed(nn.Module):
    """Weights that are computed from other weights and from buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.spectral(self.weight(x))


class Noisy(nn.Module):
    """Several kinds of random numbers, whose order matters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.AlphaDropout(0.3)
        self.rectify = nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(4) * 0.1 + torch.rand_like(x)
        return self.rectify(self.dropout(self.linear(x).T).T + noise)


class Frozen(nn.Module):
    """A frozen layer, an unused one, a dictionary as output."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.trained = nn.Linear(4, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": self.trained(self.frozen(x)), "n": 3}


class Transposed(nn.Module):
    """A parameter that is not row-major, so that its gradient must not be either."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6).T)
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias.expand(x.shape[0], -1).tanh().sum(0)


class DataDependent(nn.Module):
    """Branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


class Checkpointed(nn.Module):
    """Computes its forward again in the backward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(dropout), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def _words() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 50, (2, 6))}


def _transformer(kind: str, **settings: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=50, **settings)
    suffix = "ForConditionalGeneration" if kind == "T5" else "ForCausalLM"
    return getattr(transformers, f"{kind}{suffix}")(config), _words()


def _llama() -> tuple[nn.Module, Any]:
    return _transformer(
        "Llama",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def _t5() -> tuple[nn.Module, Any]:
    model, words = _transformer("T5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return model, {**words, "decoder_input_ids": words["input_ids"]}


def _rows() -> Tensor:
    return torch.randn(3, 4)


def _image(size: int) -> tuple[Tensor]:
    return (torch.randn(2, 3, size, size),)


UNSEEN: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "separable": lambda: (Separable(), _image(32)),
    "dense": lambda: (Dense(), _image(8)),
    "unet": lambda: (UNet(), _image(32)),
    "vision transformer": lambda: (VisionTransformer(), _image(32)),
    "llama": _llama,
    "t5": _t5,
    "lstm": lambda: (
        Recurrent(nn.LSTM(8, 12, 2, bidirectional=True, dropout=0.1), 24),
        torch.randn(5, 2, 8),
    ),
    "projected lstm": lambda: (Recurrent(nn.LSTM(8, 12, proj_size=5), 5), torch.randn(5, 2, 8)),
    "gru": lambda: (Recurrent(nn.GRU(8, 12, 2), 12), torch.randn(5, 2, 8)),
    "rnn": lambda: (Recurrent(nn.RNN(8, 12, batch_first=True), 12), [torch.randn(5, 2, 8)]),
    "counting": lambda: (Counting(), torch.randn(3, 4)),
    "rebinding": lambda: (Rebinding(), torch.randn(3, 4)),
    "tied": lambda: (Tied(), torch.randint(0, 20, (2, 3))),
    "normed": lambda: (Normed(), torch.randn(3, 4)),
    "noisy": lambda: (Noisy(), torch.randn(3, 4)),
    "frozen": lambda: (Frozen(), {"x": torch.randn(3, 4)}),
    "transposed": lambda: (Transposed(), torch.randn(3, 6)),
    "checkpointed": lambda: (Checkpointed(0.0), torch.randn(3, 4)),
    "checkpointed dropout": lambda: (nn.Sequential(*map(Checkpointed, (0.5, 0.3))), _rows()),
}


def unseen(name: str) -> ModelSource:
    """The model called `name`, really built, with inputs and no loss."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = UNSEEN[name]()
    return ModelSource(model, inputs, name=name)
