"""What two real calls give, a program gives too, or the model is refused."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture_call
from placewright.capturing.real_calls import SideEffectWarning, called
from placewright.capturing.source import ModelSource
from placewright.errors import InputError, UnsupportedError


class Stateful(nn.Module):
    """Three features to three; `forward` is given, and keeps what it likes."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.zeros(3))
        self.hidden: Any = None
        self.flag, self.word, self.kept = False, "first", list[Any]()
        self.compute = forward

    def forward(self, x: Tensor) -> Tensor:
        """As the given function."""
        return self.compute(self, x)


def hidden(m: Any, x: Tensor) -> Tensor:
    """As a recurrent layer that carries its state in an attribute."""
    y: Tensor = m.layer(x) if m.hidden is None else m.layer(x) + m.hidden
    m.hidden = y.detach()
    return y


def toggled(m: Any, x: Tensor) -> Tensor:
    """Every other call is another one."""
    m.flag = not m.flag
    return m.layer(x) if m.flag else 3 * m.layer(x)  # type: ignore[no-any-return]


def worded(m: Any, x: Tensor) -> Tensor:
    """The first call is another one."""
    y: Tensor = m.layer(x) * (2.0 if m.word == "first" else 1.0)
    m.word = "later"
    return y


def initialised(m: Any, x: Tensor) -> Tensor:
    """As an activation norm, whose first batch sets a parameter."""
    y: Tensor = m.layer(x)
    if not m.flag:
        m.shift.data.copy_(-y.mean(0))
        m.flag = True
    return y + m.shift


def remembered(m: Any, x: Tensor) -> Tensor:
    """A list grows."""
    y: Tensor = m.layer(x)
    m.kept.append(y.detach())
    return sum(m.kept) + 0 * y


def assigned(m: Any, x: Tensor) -> Tensor:
    """A buffer gets new memory."""
    m.mean.data = 0.5 * m.mean + x.mean(0)
    return m.layer(x) + m.mean  # type: ignore[no-any-return]


def classed(m: Any, x: Tensor) -> Tensor:
    """A trace's tensors are of another class."""
    return m.layer(x) if type(x) is Tensor else 3 * m.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "forward", [hidden, toggled, worded, initialised, remembered, assigned, classed]
)
def test_what_a_trace_cannot_see_is_refused(
    forward: Callable[[Any, Tensor], Tensor], training: bool
) -> None:
    """With the model as it was before."""
    model = Stateful(forward)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = ModelSource(model, (torch.randn(4, 3),))
    grows = forward is remembered  # is found before the trace is compared
    why = "computes with what it changes" if grows else "does not compute what the model computes"
    with pytest.raises(UnsupportedError, match=why):
        capture_call(source, training=training, real=called(source, training=training))
    assert (model.hidden, model.flag, model.word, model.kept) == (None, False, "first", [])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def cached(m: Any, x: Tensor) -> Tensor:
    """A table grows with the longest input, and an attribute is another name of a parameter."""
    if m.hidden is None or len(m.hidden) < len(x):
        m.hidden = torch.arange(len(x)).float()[:, None]
    m.kept = [m.shift]
    m.mean.mul_(0.9).add_(x.mean(0))
    y: Tensor = m.norm(m.layer(nn.functional.dropout(x, 0.5))) + m.hidden[: len(x)] + m.shift
    return y


@pytest.mark.parametrize("training", [False, True])
def test_caches_buffers_and_random_numbers_are_no_reason(training: bool) -> None:
    """Nor do copies of parameters stay in the model."""
    model = Stateful(cached)
    source = ModelSource(model, (torch.randn(4, 3),))
    random = torch.get_rng_state()
    capture_call(source, training=training, real=called(source, training=training))
    assert type(model.hidden) is Tensor
    assert not model.kept
    assert float(model.mean.abs().sum()) == 0.0
    assert torch.equal(random, torch.get_rng_state())


def collected(m: Any, x: Tensor) -> Tensor:
    """A count, a list, and an attribute that is new, none of which is computed with."""
    y: Tensor = m.layer(x)
    m.kept.append(y.detach().mean())
    m.flag, m.features = m.flag + 1, y.detach()
    return m.norm(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [False, True])
def test_what_every_call_leaves_in_python_is_warned_of(training: bool) -> None:
    """Also by a hook; the model is as it was."""
    seen: dict[str, Tensor] = {}
    model = Stateful(collected)
    model.norm.register_forward_hook(lambda _m, _x, y: seen.update(norm=y.detach()))
    source = ModelSource(model, (torch.randn(4, 3),))
    with pytest.warns(SideEffectWarning) as warned:
        capture_call(source, training=training, real=called(source, training=training))
    said = str(warned[0].message)
    assert all(text in said for text in ("the model.kept", "the model.flag", "features", "seen"))
    assert (model.flag, model.kept, seen) == (False, [], {})


@pytest.mark.parametrize("kept", [np.zeros(2), bytearray(2), array("i", [0, 0])])
def test_an_array_that_every_call_changes_is_warned_of(kept: Any) -> None:
    """Of NumPy and of Python; it holds what it held."""

    def counted(m: Any, x: Tensor) -> Tensor:
        m.kept[1] += 1
        return m.layer(x)  # type: ignore[no-any-return]

    model = Stateful(counted)
    model.kept = kept
    source = ModelSource(model, (torch.randn(4, 3),))
    with pytest.warns(SideEffectWarning, match=r"the model\.kept"):
        capture_call(source, real=called(source, training=False))
    assert list(kept) == [0, 0]


def test_a_parameter_that_the_first_call_makes_is_refused() -> None:
    """By its name; once it is there the model is captured."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if not hasattr(m, "late"):
            m.late = nn.Parameter(torch.full((3,), 2.0))
        return m.layer(x) * m.late  # type: ignore[no-any-return]

    model = Stateful(forward)
    source = ModelSource(model, (torch.randn(4, 3),))
    with pytest.raises(UnsupportedError, match="makes a parameter or a buffer") as caught:
        capture_call(source, real=called(source, training=False))
    assert "late" in str(caught.value)
    model(torch.randn(4, 3))
    capture_call(source, real=called(source, training=False))


def test_a_loss_that_counts_its_calls_is_refused() -> None:
    """In a list, where counts are no attributes."""
    calls = [0]

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        calls[0] += 1
        return ((outputs - targets) ** 2).mean() * calls[0]

    x = torch.randn(4, 3)
    source = ModelSource(nn.Linear(3, 3), (x,), loss_fn, x)
    with pytest.raises(UnsupportedError, match="call 2 of two"):
        capture_call(source, training=True, real=called(source, training=True))
    assert calls == [0]


def test_sparse_tensors_are_refused_with_a_way_out() -> None:
    """A table in a closure, and a buffer."""
    table = torch.eye(3).to_sparse()
    model = Stateful(lambda m, x: torch.sparse.mm(table, m.layer(x)))
    with pytest.raises(UnsupportedError, match=r"sparse_coo.*\n.*to_dense"):
        capture_call(ModelSource(model, (torch.randn(3, 3),)))
    model.register_buffer("table", table)
    source = ModelSource(model, (torch.randn(3, 3),))
    with pytest.raises(UnsupportedError, match="buffer table"):
        capture_call(source, real=called(source, training=False))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize("where", ["an input", "a buffer", "inside"])
def test_quantized_tensors_are_refused_with_a_way_out(where: str) -> None:
    """They have no shape rule that tells their type."""

    def quantized(value: Tensor) -> Tensor:
        return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)

    def forward(m: Any, x: Tensor) -> Tensor:
        given = {"an input": lambda: x, "a buffer": lambda: m.table, "inside": lambda: quantized(x)}
        return m.layer(given[where]().dequantize())  # type: ignore[no-any-return]

    model, x = Stateful(forward), torch.ones(3)
    model.register_buffer("table", quantized(x))
    if where != "a buffer":
        del model.table
    source = ModelSource(model, (quantized(x) if where == "an input" else x,))
    with pytest.raises(UnsupportedError, match=r"quantized tensor.*\n.*fake_quantize"):
        capture_call(source, real=called(source, training=False))


@pytest.mark.parametrize("training", [False, True])
def test_a_lazy_layer_is_refused_before_it_is_called(training: bool) -> None:
    """A call would initialise it."""
    source = ModelSource(nn.Sequential(nn.LazyLinear(3)), (torch.ones(2, 3),), torch.sum)
    with pytest.raises(InputError, match=r"'0\.weight': a lazy module"):
        called(source, training=training)


def test_distributions_do_not_check_their_arguments_in_a_trace() -> None:
    """Which reads values: a sampled latent, its divergence and an entropy."""

    def sampled(m: Any, x: Tensor) -> Tensor:
        mean = torch.distributions.Normal(m.layer(x), 1.0)
        prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        chosen = torch.distributions.Categorical(logits=m.layer(x)).entropy()
        found: Tensor = mean.rsample() + torch.distributions.kl_divergence(mean, prior)
        return found + chosen[:, None]

    source = ModelSource(Stateful(sampled), (torch.randn(4, 3),))
    capture_call(source, training=True, real=called(source, training=True))
