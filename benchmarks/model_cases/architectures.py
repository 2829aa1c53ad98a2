"""Small models, each of an architecture or with a habit that is easily captured wrong.

Each is a row: its parts, and what `forward` does with them.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, rnn

from placewright.capturing.source import ModelSource, TrainingRecipe, default_loss

Make = Callable[[], ModelSource]


class Net(nn.Module):
    """Parts as attributes, tensors as buffers, and a function ``(net, *inputs)`` as forward."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the function makes."""
        return self.run(self, *inputs, **named)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 6)))


def _tokens() -> Tensor:
    return torch.randint(0, 20, (4, 7))


def _net(run: Callable[..., Any], inputs: Any = _rows, **parts: Callable[[], Any]) -> Make:
    """A model whose parts are made at each use, so that each use has its own."""

    def make() -> ModelSource:
        model = Net(run, **{name: part() for name, part in parts.items()})
        return ModelSource(model, inputs(), default_loss)

    return make


def _of(make: Callable[[], nn.Module], inputs: Callable[[], Any] = _rows) -> Make:
    return lambda: ModelSource(make(), inputs(), default_loss)


def _linear(i: int = 6, o: int = 6, **more: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(i, o, **more)


def _stack(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(part() for part in parts))


def _conv(i: int, o: int, **more: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(i, o, **{"kernel_size": 3, "padding": 1, **more})


def _image() -> Tensor:
    return torch.randn(4, 3, 8, 8)


def _sequence() -> Tensor:
    return torch.randn(4, 5, 8)


def _in_evaluation(model: nn.Sequential, part: int) -> nn.Sequential:
    model[part].eval()
    return model


def _with(model: Any, change: Callable[[Any], Any]) -> Any:
    change(model)
    return model


def _turn() -> Tensor:
    angles = torch.outer(torch.arange(5.0), 10.0 ** -torch.arange(4.0))
    return torch.polar(torch.ones_like(angles), angles)


def _turned(m: Any, t: Tensor) -> Tensor:
    z = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
    return torch.view_as_real(z * m.turn).flatten(-2)


def _rotated(m: Any, t: Tensor) -> Tensor:
    first, second = t.chunk(2, -1)
    both = torch.cat([m.turn.real, m.turn.real], -1), torch.cat([m.turn.imag, m.turn.imag], -1)
    return t * both[0] + torch.cat([-second, first], -1) * both[1]


def _attend(m: Any, x: Tensor, bias: Tensor | float = 0.0, turn: Any = lambda _, t: t) -> Tensor:
    scores = turn(m, m.q(x)) @ turn(m, m.k(x)).mT / 8**0.5 + bias
    made: Tensor = scores.softmax(-1) @ m.v(x)
    return made


def _relative(m: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    return _attend(m, x, m.bias((places[:, None] - places).clamp(-3, 3) + 3).squeeze(-1))


def _slopes(m: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    return _attend(m, x, -0.5 * (places[:, None] - places).abs())


def _linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = functional.elu(m.q(x)) + 1, functional.elu(m.k(x)) + 1, m.v(x)
    kv = torch.einsum("bld,ble->blde", k, v).cumsum(1)
    norm = torch.einsum("bld,bld->bl", q, k.cumsum(1))
    return torch.einsum("bld,blde->ble", q, kv) / norm[..., None]


def _scan(m: Any, x: Tensor) -> Tensor:
    state, outputs = x.new_zeros(x.shape[0], 8), []
    for step in m.into(x).unbind(1):
        state = m.decay.sigmoid() * state + step
        outputs.append(m.out(state))
    return torch.stack(outputs, 1)


def _cells(m: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[0], 8)
    for step in x.unbind(1):
        h, c = m.lstm(step, (h, c))
        h = m.gru(step, h)
    return h


def _windows(m: Any, x: Tensor) -> Tensor:
    """Attention in windows of a map that is rolled, as Swin does it."""
    b, c, h, w = x.shape
    x = x.roll((-2, -2), (2, 3)).reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
    x = _attend(m, x.reshape(-1, 16, c)).reshape(b, h // 4, w // 4, 4, 4, c)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w).roll((2, 2), (2, 3))


def _packed(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    again, last = m.b(m.a(packed)[0])
    outputs: Tensor = rnn.pad_packed_sequence(again, batch_first=True)[0]
    made: Tensor = outputs.sum(1) + last[0]
    return made


def _spectral(m: Any, x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    mask = m.f(spectrum.abs().mT).sigmoid().mT
    return torch.istft(spectrum * mask, 16, 4, window=window, length=x.shape[-1])


def _experts(m: Any, x: Tensor) -> Tensor:
    weights, chosen = m.gate(x).softmax(-1).topk(2, -1)
    mask = torch.zeros_like(m.gate(x)).scatter(-1, chosen, weights)
    made = torch.stack([expert(x) for expert in m.experts], -2)
    return (made * mask[..., None]).sum(-2)


def _skips(m: Any, x: Tensor) -> Tensor:
    a = m.a(x).relu()
    b = m.b(functional.max_pool2d(a, 2)).relu()
    made: Tensor = m.c(
        torch.cat([a, functional.interpolate(b, scale_factor=2.0, mode="bilinear")], 1)
    )
    return made


def _mixed(m: Any, x: Tensor) -> Tensor:
    x = x + m.places(m.a(x).mT).mT
    made: Tensor = x + m.channels(m.b(x))
    return made


def _graph(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    sent = torch.zeros_like(x).index_add(0, edges[1], m.message(x[edges[0]]))
    made: Tensor = m.update(torch.cat([x, sent / 2], -1))
    return made


def _moved(m: Any, x: Tensor) -> Tensor:
    theta = m.theta(x.flatten(1)).view(-1, 2, 3)
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    made: Tensor = m.conv(functional.grid_sample(x, grid, align_corners=False))
    return made


class Pair(NamedTuple):
    """Outputs by name."""

    mean: Tensor
    spread: Tensor


def _sampled(m: Any, x: Tensor) -> Pair:
    mean, spread = m.mean(x), m.spread(x)
    return Pair(m.out(mean + torch.randn_like(mean) * (spread / 2).exp()), spread)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 0.5


@functools.cache
def _places(length: int, width: int) -> Tensor:
    return torch.arange(length)[:, None] / 10.0 ** torch.arange(width)


_BY_LENGTH: dict[int, Tensor] = {}

_GLOBAL = torch.arange(6.0)


def _masked(m: Any, x: Tensor) -> Tensor:
    n = x.shape[0]
    if n not in _BY_LENGTH:
        _BY_LENGTH[n] = torch.ones(n, n).tril()
    made: Tensor = _BY_LENGTH[n] @ m.f(x + _places(*x.shape))
    return made


def _layer_drop(m: Any, x: Tensor) -> Tensor:
    for layer in m.layers:
        if not m.training or random.random() > 0.5:
            x = x + layer(x).tanh()
    return x


def _count(m: Any, x: Tensor) -> Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    made: Tensor = m.f(x) * m.calls
    return made


def _int8(m: Any, x: Tensor) -> Tensor:
    return functional.linear(x, m.codes.float() * m.scale, m.bias)


def _ema(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.teacher.lerp_(m.f.weight, 0.1)
    made: Tensor = m.f(x) - functional.linear(x, m.teacher)
    return made


class Wrap(nn.Module):
    """A module around another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """One more."""
        return self.inner(x) + 1


def _nested(depth: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model: nn.Module = nn.Linear(6, 6)
        for _ in range(depth):
            model = Wrap(model)
        return model

    return make


def _hooked(kind: str, hook: Callable[..., Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        getattr(model[0], kind)(hook)
        return model

    return make


def _encoder() -> ModelSource:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    padding = torch.arange(5) >= torch.tensor([5, 3, 4, 2])[:, None]
    run = lambda m, x, mask: m.encoder(x, src_key_padding_mask=mask)  # noqa: E731
    encoder = nn.TransformerEncoder(layer, 2)
    return ModelSource(Net(run, encoder=encoder), (_sequence(), padding), default_loss)


_QKV = {name: _linear(8, 8) for name in "qkv"}
_F = {"f": _linear()}

ARCHITECTURES: dict[str, Make] = {
    "rotary by complex numbers": _net(
        lambda m, x: _attend(m, x, 0.0, _turned), _sequence, turn=_turn, **_QKV
    ),
    "rotary by halves": _net(
        lambda m, x: _attend(m, x, 0.0, _rotated), _sequence, turn=_turn, **_QKV
    ),
    "relative positions": _net(_relative, _sequence, bias=lambda: nn.Embedding(7, 1), **_QKV),
    "ALiBi": _net(_slopes, _sequence, **_QKV),
    "linear attention": _net(_linear_attention, _sequence, **_QKV),
    "state space scan": _net(
        _scan,
        _sequence,
        into=_linear(8, 8),
        out=_linear(8, 8),
        decay=lambda: nn.Parameter(torch.zeros(8)),
    ),
    "LSTM and GRU cells": _net(
        _cells, _sequence, lstm=lambda: nn.LSTMCell(8, 8), gru=lambda: nn.GRUCell(8, 8)
    ),
    "rolled windows": _net(_windows, lambda: torch.randn(4, 8, 8, 8), **_QKV),
    "dense experts": _net(
        _experts,
        gate=_linear(6, 4),
        experts=lambda: nn.ModuleList(nn.Linear(6, 6) for _ in range(4)),
    ),
    "U-Net": _net(_skips, _image, a=_conv(3, 4), b=_conv(4, 4), c=_conv(8, 3)),
    "MLP mixer": _net(
        _mixed,
        _sequence,
        places=_linear(5, 5),
        channels=_linear(8, 8),
        a=lambda: nn.LayerNorm(8),
        b=lambda: nn.LayerNorm(8),
    ),
    "graph network": _net(
        _graph,
        lambda: (_rows(), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])),
        message=_linear(),
        update=_linear(12, 6),
    ),
    "spatial transformer": _net(_moved, _image, theta=_linear(192, 6), conv=_conv(3, 4)),
    "transposed convolution": _of(
        _stack(
            lambda: nn.ConvTranspose2d(3, 8, 2, 2), lambda: nn.GroupNorm(2, 8), nn.GELU, _conv(8, 3)
        ),
        _image,
    ),
    "depthwise convolution": _of(
        _stack(
            _conv(3, 6, groups=3),
            lambda: nn.InstanceNorm2d(6, affine=True),
            nn.Hardswish,
            _conv(6, 3, kernel_size=1, padding=0),
            lambda: nn.PixelUnshuffle(2),
        ),
        _image,
    ),
    "convolution over time": _of(
        _stack(
            lambda: nn.Conv1d(5, 6, 3, padding=2, dilation=2),
            lambda: nn.BatchNorm1d(6),
            lambda: nn.PReLU(6),
            lambda: nn.AdaptiveAvgPool1d(3),
        ),
        _sequence,
    ),
    "Siamese": _net(
        lambda m, a, b: functional.cosine_similarity(m.f(a), m.f(b)),
        lambda: (_rows(), _rows()),
        **_F,
    ),
    "bilinear": _net(
        lambda m, a, b: m.f(a, b), lambda: (_rows(), _rows()), f=lambda: nn.Bilinear(6, 6, 4)
    ),
    "autoencoder that samples": _net(
        _sampled, mean=_linear(6, 3), spread=_linear(6, 3), out=_linear(3, 6)
    ),
    "stochastic depth": _net(
        lambda m, x: x + m.f(x) * (torch.rand(len(x), 1) > 0.3) if m.training else x + m.f(x), **_F
    ),
    "Gumbel softmax": _net(
        lambda m, x: functional.gumbel_softmax(m.f(x), hard=True) @ m.f.weight, **_F
    ),
    "embedding bag": _net(
        lambda m, x: m.f(m.bag(x)), _tokens, bag=lambda: nn.EmbeddingBag(20, 6, mode="mean"), **_F
    ),
    "sparse gradients": _net(
        lambda m, x: m.f(m.words(x)), _tokens, words=lambda: nn.Embedding(20, 6, sparse=True), **_F
    ),
    "complex layer, conj()": _net(
        lambda m, x: (m.f(x).conj() * x).real,
        lambda: torch.randn(4, 6, dtype=torch.cfloat),
        f=_linear(dtype=torch.cfloat),
    ),
    "conj() alone": _net(
        lambda m, x: m.f(x).mH.conj(),
        lambda: torch.randn(4, 6, dtype=torch.cfloat),
        f=_linear(dtype=torch.cfloat),
    ),
    "Fourier filter": _net(
        lambda m, x: torch.fft.irfft(torch.fft.rfft(m.f(x)) * m.filter, n=6),
        filter=lambda: nn.Parameter(torch.randn(4, dtype=torch.cfloat)),
        **_F,
    ),
    "short-time Fourier": _net(
        lambda m, x: m.f(torch.stft(x, 10, window=m.window, return_complex=True).abs().mT),
        lambda: torch.randn(4, 30),
        window=lambda: torch.hann_window(10),
        **_F,
    ),
    "distances to centres": _net(
        lambda m, x: (-torch.cdist(m.f(x), m.centres)).exp(),
        centres=lambda: nn.Parameter(torch.randn(3, 6)),
        **_F,
    ),
    "sorted and gathered": _net(
        lambda m, x: m.f(x).sort(-1).values.gather(1, x.argsort(-1)).cumprod(-1), **_F
    ),
    "straight-through rounding": _net(lambda m, x: m.f(_Rounded.apply(m.f(x) * 3)), **_F),  # type: ignore[no-untyped-call]
    "outputs by name": _net(
        lambda m, x: {"a": m.f(x), "b": [m.f(x).relu(), (x * 2, 3, None)]}, **_F
    ),
    "frozen batch norm": _of(
        lambda: _in_evaluation(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), 1
        )
    ),
    "batch norm": _of(
        _stack(_linear(6, 8), lambda: nn.BatchNorm1d(8, momentum=None), _linear(8, 2))
    ),
    "dropout that stays off": _of(
        lambda: _in_evaluation(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)), 1)
    ),
    "dropout": _of(
        _stack(
            _linear(6, 8),
            lambda: nn.Dropout(0.3),
            _linear(8, 8),
            lambda: nn.AlphaDropout(0.2),
            _linear(8, 2),
        )
    ),
    "caches filled in forward": _net(_masked, **_F),
    "layer drop by random": _net(
        _layer_drop, layers=lambda: nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
    ),
    "noise of NumPy": _net(lambda m, x: m.f(x + float(np.random.rand())), **_F),
    "counter in Python": _net(_count, **_F),
    "clock": _net(lambda m, x: m.f(x) * (1 + time.time() % 1), **_F),
    "boolean index": _net(lambda m, x: m.f(x)[x > 0], **_F),
    "loop until converged": _net(lambda m, x: m.f(x) * (2 if bool(m.f(x).norm() > 1) else 3), **_F),
    "read from a global": _net(lambda m, x: m.f(x) + _GLOBAL, **_F),
    "int8 weights": _net(
        lambda m, x: m.f(_int8(m, x)),
        codes=lambda: torch.randint(-127, 127, (6, 6), dtype=torch.int8),
        scale=lambda: torch.rand(6, 1) / 99,
        bias=lambda: torch.zeros(6),
        **_F,
    ),
    "average of weights in a buffer": _net(_ema, teacher=lambda: torch.zeros(6, 6), **_F),
    "pruned": _of(
        lambda: _with(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
            lambda m: prune.l1_unstructured(m[0], "weight", 0.5),  # type: ignore[no-untyped-call]
        )
    ),
    "weight norm, by hook": _of(
        lambda: _with(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh()), lambda m: nn.utils.weight_norm(m[0])
        )
    ),
    "weight norm": _of(lambda: parametrizations.weight_norm(nn.Linear(6, 6))),
    "spectral norm": _of(lambda: parametrizations.spectral_norm(nn.Linear(6, 6))),
    "orthogonal weights": _of(lambda: parametrizations.orthogonal(nn.Linear(6, 6))),
    "nested 120 deep": _of(_nested(120)),
    "forward hook": _of(_hooked("register_forward_hook", lambda m, i, o: o * 2)),
    "pre-hook": _of(_hooked("register_forward_pre_hook", lambda m, i: (i[0] + 1,))),
    "backward hook": _of(_hooked("register_full_backward_hook", lambda m, i, o: (i[0],))),
    "double precision": _of(
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Softplus()).double(), lambda: _rows().double()
    ),
    "bfloat16 autocast": _net(
        lambda m, x: torch.autocast("cpu", torch.bfloat16)(m.f)(x).float(), **_F
    ),
    "padded encoder": _encoder,
    "packed sequences": _net(
        _packed,
        lambda: (_sequence(), torch.tensor([3, 5, 1, 4])),
        a=lambda: nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, dropout=0.1),
        b=lambda: nn.GRU(12, 4, batch_first=True),
    ),
    "spectral mask": _net(_spectral, lambda: _rows(4, 64), f=_linear(9, 9)),
}
"""Name -> factory; as inference, training and layers training."""


def _labelled(loss: Callable[[Tensor, Tensor], Tensor]) -> Make:
    """A loss over labels under two micro-batches; of nine rows the first ones have no label."""

    def make() -> ModelSource:
        labels = torch.randint(0, 4, (9,))
        labels[:4] = -100
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        recipe = TrainingRecipe(torch.optim.SGD(model.parameters(), 0.1), micro_batches=2)
        return ModelSource(model, _rows(9, 6), loss, labels, "net", recipe)

    return make


def _mask_mean(o: Tensor, t: Tensor) -> Tensor:
    mask = t >= 0
    return (o.square().mean(-1) * mask).sum() / mask.sum()


def _ctc(o: Tensor, t: Tensor) -> Tensor:
    """Three times the same class probabilities, and a target of one class."""
    times, ones = torch.full((len(o),), 3), torch.ones(len(o), dtype=torch.long)
    scores = o.log_softmax(-1).expand(3, -1, -1)
    return functional.ctc_loss(scores, t.clamp(1, 3)[:, None], times, ones)


def _contrastive(o: Tensor, t: Tensor) -> Tensor:
    z = functional.normalize(o)
    return functional.cross_entropy(z @ z.roll(1, 1).T, torch.arange(len(o)))


LOSSES: dict[str, Make] = {
    f"loss: {name}": _labelled(loss)
    for name, loss in {
        "ignored labels": functional.cross_entropy,
        "weights of classes": lambda o, t: functional.cross_entropy(
            o, t, weight=torch.arange(1.0, 5.0)
        ),
        "smoothed labels": lambda o, t: functional.cross_entropy(o, t, label_smoothing=0.1),
        "sum": lambda o, t: functional.cross_entropy(o, t, reduction="sum") / 9,
        "root of a mean": lambda o, t: functional.mse_loss(o, torch.zeros_like(o)).sqrt(),
        "contrastive": _contrastive,
        "mean over a mask": _mask_mean,
        "divergence": lambda o, t: functional.kl_div(
            o.log_softmax(-1), o.new_full(o.shape, 0.25), reduction="batchmean"
        ),
        "variance of the batch": lambda o, t: (o.mean(0) - 1).square().sum() + o.var(0).sum(),
        "absolute": lambda o, t: functional.smooth_l1_loss(
            o, t[:, None].clamp(min=0).expand(-1, 4).float()
        ),
        "of no targets": lambda o, t: -o.logsumexp(-1).mean(),
        "CTC": _ctc,
        "Gaussian": lambda o, t: functional.gaussian_nll_loss(
            o[:, 0], t.clamp(min=0).float(), o[:, 1].exp()
        ),
    }.items()
}
"""Losses under micro-batches, and over layers that are split along samples."""
