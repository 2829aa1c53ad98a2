"""A placed model is called as it is now: changes are taken over, captured again or refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright import Cluster, Device, PlacedModel
from placewright.errors import InputError

DUO = Cluster((Device("a"), Device("b")), name="two")


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """Some tests change it."""
    yield
    torch.set_default_dtype(torch.float32)


def _placed(model: nn.Module, x: Any, **options: Any) -> PlacedModel:
    return placewright.place(model, x, DUO, planner="round-robin", method="analytic", **options)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.factor, self.table = 1.0, torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x)) * self.factor) * self.table


@torch.no_grad()
def _same(model: nn.Module, placed: PlacedModel, x: Tensor) -> bool:
    return torch.equal(model(x), placed(x))


def test_a_call_computes_with_the_model_as_it_is_now() -> None:
    """Attributes, tensors, hooks, weights, modules, autocast and modes, one after the other."""
    model, x = _Net().eval(), torch.randn(4, 6)
    with _placed(model, x) as placed:
        assert _same(model, placed, x)
        model.factor = 2.0
        assert _same(model, placed, x)
        model.table.mul_(3)
        assert _same(model, placed, x)
        model.first.weight.data.clamp_(-0.1, 0.1)
        assert _same(model, placed, x)
        hook = model.first.register_forward_hook(lambda _m, _x, y: y * 3)
        assert _same(model, placed, x)
        hook.remove()
        assert _same(model, placed, x)
        model.last = nn.Linear(8, 3)
        assert _same(model, placed, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert _same(model, placed, x)
        assert _same(model, placed, x)
        model.drop.train()
        assert not torch.equal(placed(x), placed(x))
        model.drop.eval()
        assert _same(model, placed, x)
        with pytest.raises(InputError, match="has changed since it was placed"):
            placed.run(1)
        model.last = nn.Linear(8, 5)
        with pytest.raises(InputError, match=r"last\.weight"):
            placed(x)


def test_a_stream_refuses_a_model_that_changes_meanwhile() -> None:
    """Batches in flight have the model of before."""
    model, x = _Net().eval(), torch.randn(4, 6)

    def batches() -> Iterator[Tensor]:
        yield x
        model.factor = 2.0
        yield x

    with _placed(model, x) as placed, pytest.raises(InputError, match=r"the model\.factor"):
        list(placed.stream(batches()))


class _Thirds(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i / 3


def test_workers_have_the_default_dtype() -> None:
    """Of when the model is called: integers divided become it."""
    i = torch.arange(1, 7)
    torch.set_default_dtype(torch.float64)
    with _placed(_Thirds(), i) as placed:
        assert _same(_Thirds(), placed, i)
        torch.set_default_dtype(torch.float32)
        assert _same(_Thirds(), placed, i)


class _Rotary(nn.Module):
    """Attention scores with rotary positions as complex factors."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        angle = torch.outer(torch.arange(5.0), 1.0 / 10.0 ** torch.arange(4.0))
        self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle).conj())

    def turned(self, t: Tensor) -> Tensor:
        z = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
        return torch.view_as_real((z * self.turn).conj().resolve_conj()).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(self.q(x)) @ self.turned(self.k(x)).mT


def test_lazy_conjugates_are_computed() -> None:
    """Of buffers, values and arguments, forward and backward."""
    model, x = _Rotary(), torch.randn(2, 5, 8)
    with _placed(model, x, training=True) as placed:
        assert placed.run(1, check=True).check.passed


class _Imaginary(nn.Module):
    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z.conj().imag * 1.0, z.conj() + 1


def test_lazy_views_of_arguments_are_computed() -> None:
    """Conjugated and negated."""
    z = torch.randn(4, dtype=torch.cfloat)
    with _placed(_Imaginary(), z) as placed:
        for given in (z, z.conj(), torch._neg_view(z)):
            for one, other in zip(_Imaginary()(given), placed(given), strict=True):
                assert torch.equal(one, other)


def test_threads_place_at_once() -> None:
    """Each what it asked for."""
    found: list[bool] = []

    def work() -> None:
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4)
        with _placed(model, x) as placed:
            found.append(_same(model, placed, x))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
