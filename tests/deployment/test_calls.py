"""Calls of a placed model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright.deployment import calls
from placewright.deployment.placed_model import PlacedModel
from placewright.errors import InputError, RunError, UnsupportedError, WorkerError
from tests.operators.adaptive.jobs import TRIO
from tests.processes import limit_memory


class Pair(NamedTuple):
    """A structure that PyTorch's pytrees know."""

    first: Tensor
    rows: int


@dataclass
class Out:
    """One that they do not know."""

    y: Tensor
    pair: Pair
    note: str = "n"


def loss(out: Out, y: Tensor) -> Tensor:
    """Mean square of the difference."""
    return (out.y - y).square().mean()


class Net(nn.Module):
    """Three devices' worth of layers, with arguments of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.randn(8))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None) -> Out:
        """Two layers, maybe masked, and a third."""
        h = self.drop(self.b(self.a(x).relu()) + self.shift)
        h = h if mask is None else h * mask
        return Out(self.c(h) * scale, Pair(h.t(), x.shape[0]))


def expected(model: nn.Module, *args: Any, **keywords: Any) -> Any:
    """What eager PyTorch answers."""
    with torch.no_grad():
        return model.eval()(*args, **keywords)


def same(found: Out, wanted: Out) -> bool:
    """Equal bit for bit, in structure and in layout."""
    tensors = zip((found.y, found.pair.first), (wanted.y, wanted.pair.first), strict=True)
    equal = all(torch.equal(a, b) and a.stride() == b.stride() for a, b in tensors)
    types = type(found) is type(wanted) and type(found.pair) is type(wanted.pair)
    return equal and types and (found.pair.rows, found.note) == (wanted.pair.rows, wanted.note)


def net() -> Net:
    """The same one every time."""
    torch.manual_seed(0)
    return Net()


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def placed(model: nn.Module, example: Any = X, **settings: Any) -> PlacedModel:
    """On three devices of this machine, planned at once."""
    options = {"planner": "round-robin", "method": "analytic"} | settings
    return placewright.place(model, example, TRIO, **options)


@pytest.fixture(scope="module")
def up() -> Iterator[PlacedModel]:
    """A placed model whose workers stay up."""
    with placed(net()) as model:
        yield model


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((X,), {}),
        ((X * 2,), {}),
        ((torch.randn(2, 6),), {}),
        ((torch.randn(0, 6),), {}),
        ((X, 2.0), {}),
        ((X,), {"scale": 3.0, "mask": torch.rand(8)}),
        ((), {"x": X}),
        ((torch.randn(6, 5).t(),), {}),
    ],
)
def test_a_call_returns_what_the_model_returns(
    up: PlacedModel, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Other contents, other shapes, other constants and keywords; bit for bit."""
    assert same(up(*args, **keywords), expected(up.workload.source.model, *args, **keywords))


class Asks(nn.Linear):
    """Computes something else by what it asks of its arguments."""

    def __init__(self, question: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
        super().__init__(6, 3)
        self.question = question

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One multiple or another."""
        return super().forward(x) * (2.0 if self.question(x, y) else 3.0)


def test_a_call_sees_whether_an_argument_requires_a_gradient() -> None:
    """As code does that asks for it."""
    model = Asks(lambda x, _: x.requires_grad).eval()
    with placed(model, (X, X), planner="only:a") as asked, torch.no_grad():
        for x in (X, X.clone().requires_grad_(), X):
            assert torch.equal(asked(x, X), model(x, X))


def marked(x: torch.Tensor) -> torch.Tensor:
    """A copy with an attribute."""
    made = x.clone()
    made.mark = True  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("question", "other"),
    [
        (lambda x, y: x is y, (X, X)),
        (lambda x, y: isinstance(x, nn.Parameter), (nn.Parameter(X), X)),
        (lambda x, y: hasattr(x, "mark"), (marked(X), X)),
    ],
)
def test_what_a_trace_cannot_ask_of_arguments_is_refused(question: Any, other: Any) -> None:
    """In a later call, and in the example."""
    model, plain = Asks(question).eval(), (X, X.clone())
    with placed(model, plain, planner="only:a") as asked:
        assert torch.equal(asked(*plain), expected(model, *plain))
        with pytest.raises(UnsupportedError, match="does not compute what the model"):
            asked(*other)
        assert torch.equal(asked(*plain), expected(model, *plain))
    with pytest.raises(UnsupportedError, match="does not compute what the model"):
        placed(model, other, planner="only:a")


def test_a_known_form_is_not_captured_again(
    up: PlacedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms are kept, up to a bound."""
    up(X), up(X[:3])
    monkeypatch.setattr(calls, "capture_call", None)
    for _ in range(2):
        up(X), up(X[:3]), up(x=X)
    monkeypatch.undo()
    monkeypatch.setattr(calls, "MOST_PROGRAMS", 2)
    for rows in (1, 2, 3, 4):
        up(X[:rows])
    assert len(up.calls._forms) == 2


def test_steps_and_calls_share_the_workers(up: PlacedModel) -> None:
    """A measurement in between loads the plan again."""
    before = up(X)
    assert up.run(1, check=True).check is not None
    assert same(up(X), before)


def test_a_call_follows_the_weights_of_the_model() -> None:
    """As eager does, after a change in place."""
    model = net()
    with placed(model) as up:
        before = up(X)
        with torch.no_grad():
            model.b.weight.mul_(2)
        assert not same(up(X), before)
        assert same(up(X), expected(model, X))


def test_a_model_placed_for_training_is_called_with_what_it_learned() -> None:
    """In evaluation mode, before and after."""
    model = net()
    with placed(model, training=True, loss_fn=loss, targets=torch.zeros(5, 3)) as up:
        assert same(up(X), expected(model, X))
        before = expected(model, X)
        with up.trainer() as trainer:
            trainer.step(X, torch.ones(5, 3))
            trainer.finish()
        assert same(up(X), expected(model, X))
        assert not same(up(X), before)


def _kill_and_call(model: PlacedModel) -> None:
    with model.session() as session:
        os.kill(session.group.processes[1].pid or 0, 9)
    model(X)


def test_what_cannot_be_called_is_refused_and_nothing_is_lost(up: PlacedModel) -> None:
    """Each error says where, by how much and what next; the next call works."""
    for args, what in (
        ((X.double(),), "another dtype"),
        ((X.to("meta"),), "has no values"),
        ((torch.randn(5, 7),), "calling it raised"),
        ((), "does not take these arguments|calling it raised"),
    ):
        with pytest.raises(InputError, match=what) as error:
            up(*args)
        assert error.value.where
        assert error.value.hint
    with pytest.raises(InputError, match="does not take these arguments"):
        up(X, nonsense=1)
    with pytest.raises(WorkerError, match="killed by signal 9"):
        _kill_and_call(up)
    assert same(up(X), expected(up.workload.source.model, X))


def test_arguments_that_the_example_has_may_be_left_out() -> None:
    """Remaining arguments are known by name; dtypes are those of the same argument."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 4)

        def forward(self, x: Tensor, mask: Tensor | None = None, k: Tensor | None = None) -> Tensor:
            y = self.a(x) if mask is None else self.a(x) * mask[:, None]
            return y if k is None else y + k

    model, mask, k = Masked(), torch.ones(5), torch.tensor(2)
    with placed(model, example={"x": X, "mask": mask, "k": k}) as up:
        for call in ({"x": X}, {"x": X, "k": k}, {"x": X, "mask": mask.expand(5)}):
            assert torch.equal(up(**call), expected(model, **call))
        with pytest.raises(InputError, match=r"argument k: .*another dtype"):
            up(x=X, k=mask[0])


def test_expanded_tensors_go_in_and_come_out() -> None:
    """They have fewer elements in memory than values."""

    class Wide(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (x * 2).mean(0, keepdim=True).expand(5, 6), (x + 1)[:, ::2]

    model = Wide()
    with placed(model, example=torch.randn(1, 6).expand(5, 6)) as up:
        for x in (X, torch.randn(1, 6).expand(5, 6), torch.randn(5, 1).expand(5, 6)):
            for found, true in zip(up(x), expected(model, x), strict=True):
                assert torch.equal(found, true)
                assert found.stride() == true.stride()


def test_threads_of_the_caller_take_turns(up: PlacedModel) -> None:
    """Each gets the answer to its own call."""

    def call(k: int) -> bool:
        x = torch.full((2 + k % 2, 6), float(k))
        return same(up(x), expected(up.workload.source.model, x))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(9)))


class Growing(nn.Module):
    """Needs as much memory as it is asked to, and returns a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor, n: int = 1) -> Tensor:
        """The size of what is made is a constant of the capture."""
        made = self.a(x).sum() * torch.ones(n)
        return made.sum()


def starve(model: PlacedModel, spare_bytes: int) -> None:
    """Limit the memory of all workers."""
    with model.session() as session:
        for process in session.group.processes:
            limit_memory(process.pid, spare_bytes)


def test_a_worker_without_memory_says_by_how_much_the_judge_was_wrong() -> None:
    """And what each had needed before."""
    with placed(Growing(), planner="only:b") as model:
        model(X)
        assert model.memory()["b"].predicted_bytes > 0
        assert model.memory()["b"].measured_bytes >= 0
        starve(model, 64 << 20)
        with pytest.raises(WorkerError, match="ran out of memory") as error:
            model(X, 100_000_000)
        assert error.value.where == "device 'b'"
        assert "asked for 381 MiB more" in error.value.by
        assert "the judge expected" in error.value.by
        assert model(X, 100) is not None


def test_memory_of_a_plan_is_seen_again_after_a_run() -> None:
    """A run loads and measures other plans; what a plan needs does not depend on what came before.

    64 MB of weights, of which the process has had as many before: they are counted again.
    """
    big = nn.Linear(4096, 4096)
    x = torch.ones(2, 4096)
    with placewright.place(big, x, TRIO, planner="only:b", method="analytic") as model:
        before = model(x)
        model.run(steps=1, warmup=0, check=True)
        for _ in range(2):
            found = model.memory()["b"]
            assert found.measured_bytes > 0.9 * found.predicted_bytes > 60e6
        assert torch.equal(model(x), before)


def test_a_closed_model_is_not_called() -> None:
    """And says what to do."""
    with placed(net()) as model:
        pass
    with pytest.raises(RunError, match="the placed model is closed"):
        model(X)


class Changing(nn.Module):
    """Writes into its argument."""

    def forward(self, x: Tensor) -> Tensor:
        """In place."""
        return x.add_(1)


def test_an_argument_that_is_changed_in_place_is_refused_by_name() -> None:
    """A call would leave it as it is, and measured steps would go on from there."""
    with pytest.raises(UnsupportedError, match="argument in place") as caught, placed(Changing()):
        pass
    assert "DynamicCache" in caught.value.hint


def test_caches_and_output_classes_of_transformers_go_in_and_out() -> None:
    """A token after others: the cache of one call is an argument of the next."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=9, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model, ids = transformers.GPT2LMHeadModel(config), torch.tensor([[1, 2, 3]])
    options = {"planner": "round-robin", "method": "analytic"}
    with placewright.place(model, {"input_ids": ids}, TRIO, **options) as up:
        first, wanted = up(input_ids=ids), expected(model, ids)
        then = up(input_ids=ids[:, :1], past_key_values=first.past_key_values)
    assert type(first) is type(wanted)
    assert list(first.keys()) == list(wanted.keys())
    assert torch.allclose(first.logits, wanted.logits, rtol=0, atol=1e-6)
    after = expected(model, ids[:, :1], past_key_values=wanted.past_key_values)
    assert torch.allclose(then.logits, after.logits, rtol=0, atol=1e-6)
    assert then.past_key_values.get_seq_length() == 4


def test_calls_draw_from_the_generator_of_the_caller() -> None:
    """What `torch.manual_seed` sets holds, in calls and for what is drawn between them."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)).eval()
    model[1].train()
    with placed(model) as up:
        found = drawn(up)
        assert not torch.equal(found[0], found[1])
    with torch.no_grad():
        assert all(map(torch.equal, found, drawn(model)))


def drawn(model: Any) -> list[Tensor]:
    """Two calls, a number of the caller's and a smaller call, from one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return [model(X), model(X), torch.rand(1), model(X[:3])]


class Turned(nn.Module):
    """Has complex numbers among its constants."""

    def forward(self, x: Tensor) -> Tensor:
        """Turned by a quarter, and a little further."""
        return (x * 1j).conj() * complex(0.5, -0.0)


def test_complex_constants_reach_the_workers() -> None:
    """Bit for bit, signs of zeros too."""
    with placed(Turned(), X) as up:
        assert torch.equal(torch.view_as_real(up(X)), torch.view_as_real(Turned()(X)))
