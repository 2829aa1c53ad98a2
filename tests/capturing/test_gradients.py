"""Loss and gradients of batches of any size, against eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from placewright.capturing import gradients  # noqa: E402
from placewright.capturing.gradients import (  # noqa: E402
    BatchPrograms,
    ProgramRun,
    counting,
    evaluated,
)
from placewright.capturing.source import ModelSource  # noqa: E402


class Attention(nn.Module):
    """Takes two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        """Scores of a mean over positions."""
        x = self.embed(tokens)
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1)) * scale[:, None]


class BySize(nn.Module):
    """Computes something else for large batches, which lies on no line."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Another layer from five samples on."""
        return self.first(x) if len(x) < 5 else self.second(x).tanh()


def convolutions(count: int) -> tuple[nn.Module, Any, Any, Any]:
    """With batch norm, whose running statistics a step changes."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5)
    )
    x, y = torch.randn(count, 1, 6, 6), torch.randint(0, 5, (count,))
    return model, (x,), nn.CrossEntropyLoss(), y


def attention(count: int) -> tuple[nn.Module, Any, Any, Any]:
    """Inputs in a dict."""
    inputs = {"tokens": torch.randint(0, 11, (count, 7)), "scale": torch.rand(count)}
    return Attention(), inputs, nn.MSELoss(), torch.randn(count, 3)


def by_size(count: int) -> tuple[nn.Module, Any, Any, Any]:
    """See `BySize`."""
    return BySize(), (torch.randn(count, 4),), nn.MSELoss(reduction="sum"), torch.randn(count, 3)


def cut(value: Any, count: int) -> Any:
    """The first rows of nested tensors."""
    return torch.utils._pytree.tree_map(lambda x: x[:count], value)


@pytest.mark.parametrize("make", [convolutions, attention, by_size])
def test_every_batch_size_is_eager(make: Any) -> None:
    """Bit for bit, whether the size was captured or lies on the line of two others."""
    torch.manual_seed(0)
    model, inputs, loss_fn, targets = make(23)

    def source(count: int) -> ModelSource:
        return ModelSource(model, cut(inputs, count), loss_fn, cut(targets, count), "net")

    programs = BatchPrograms(source, training=True)
    for count in (1, 2, 6, 23):
        program = programs.of(count)
        values = source(count).values()
        state = {
            i.name: values[i.role, i.key].detach().clone()  # type: ignore[attr-defined]
            for i in program.inputs
            if (i.role, i.key) in values
        }
        made = ProgramRun(program, state)({})
        own = copy.deepcopy(model)
        given = cut(inputs, count)
        outputs = own(**given) if isinstance(given, dict) else own(*given)
        loss = loss_fn(outputs, cut(targets, count))
        loss.backward()
        assert torch.equal(made["loss"], loss.detach())
        for name, parameter in own.named_parameters():
            if name in made:
                assert torch.equal(made[name], parameter.grad)
        for name, buffer in own.named_buffers():
            assert torch.equal(state[f"buffer:{name}"], buffer)


def test_two_captures_tell_the_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three in all, and as many as there are sizes where they lie on no line."""
    captured: list[int] = []
    trace = gradients.trace

    def counted(source: ModelSource, *, training: bool) -> Any:
        captured.append(len(source.targets))
        return trace(source, training=training)

    monkeypatch.setattr(gradients, "trace", counted)
    for make, expected in ((convolutions, [3, 4, 7]), (by_size, [3, 4, 7, 6, 9, 12])):
        captured.clear()
        model, inputs, loss_fn, targets = make(23)
        programs = BatchPrograms(
            lambda n, m=model, i=inputs, f=loss_fn, t=targets: ModelSource(
                m, cut(i, n), f, cut(t, n), "net"
            ),
            training=True,
        )
        for count in (6, 9, 12, 6):
            programs.of(count)
        assert captured == expected


def test_a_loss_counts_labels_and_is_evaluated_without_gradients() -> None:
    """What a mean is divided by, from targets alone; loss and outputs in evaluation mode."""
    model, inputs, loss_fn, targets = convolutions(9)
    targets[2:5] = -100

    def source(count: int) -> ModelSource:
        return ModelSource(model, cut(inputs, count), loss_fn, cut(targets, count), "net")

    counts = BatchPrograms(lambda n: counting(source(n), (True,)), training=False).of(9)
    batch = {"input:0": inputs[0], "input:1": targets}
    values = {f"{role}:model.{key}": v for (role, key), v in source(9).values().items()}
    assert float(ProgramRun(counts, values)(batch)["output"]) == 6  # type: ignore[arg-type]
    tested = BatchPrograms(lambda n: evaluated(source(n)), training=False).of(9)
    made = ProgramRun(tested, values)(batch)  # type: ignore[arg-type]
    with torch.no_grad():
        model.eval()
        scores = model(*inputs)
        assert torch.equal(made["output.1"], scores)
        assert torch.equal(made["output.0"], loss_fn(scores, targets))


def test_capturing_for_evaluation_leaves_every_module_in_its_mode() -> None:
    """A frozen batch norm in a model that trains stays frozen, in the step too."""
    model, inputs, loss_fn, targets = convolutions(9)
    model[1].eval()
    before = {name: value.clone() for name, value in model.named_buffers()}

    def source(count: int) -> ModelSource:
        return ModelSource(model, cut(inputs, count), loss_fn, cut(targets, count), "net")

    for programs in (
        BatchPrograms(lambda n: evaluated(source(n)), training=False),
        BatchPrograms(lambda n: counting(source(n), (True,)), training=False),
        BatchPrograms(source, training=True),
    ):
        program = programs.of(6)
        assert [module.training for module in model] == [True, False, True, True, True]
    values = source(6).values()
    state = {i.name: values[i.role, i.key].clone() for i in program.inputs}  # type: ignore[attr-defined]
    made = ProgramRun(program, state)({})
    assert torch.equal(made["loss"], loss_fn(model(inputs[0][:6]), targets[:6]).detach())
    assert all(torch.equal(state[f"buffer:{name}"], value) for name, value in before.items())


def test_settings_of_the_process_go_with_a_program() -> None:
    """Integers that are divided become the default dtype, which a worker does not have."""

    class Divided(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """Of whole numbers."""
            return x / 3

    x = torch.arange(8).reshape(4, 2)
    torch.set_default_dtype(torch.float64)
    try:
        model = Divided()
        programs = BatchPrograms(
            lambda n: ModelSource(model, (x[:n],), None, None, "net"), training=False
        )
        program = programs.of(4)
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        made = ProgramRun(program, {})({"input:0": x})
    finally:
        torch.set_default_dtype(torch.float32)
    assert made["output"].dtype is torch.float64
