"""Models given by name, and the messages about names that are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from placewright.capturing.source import default_loss, load_model
from placewright.errors import InputError, Terminated, UnknownNameError

FACTORIES = """
import torch
from torch import nn

def plain():
    return nn.Linear(4, 2), (torch.randn(3, 4),)

def whole(batch=2):
    return nn.Linear(4, 2), torch.randn(batch, 4), nn.functional.mse_loss, torch.randn(batch, 2)

def broken():
    raise ValueError("no such weights")

def wordy():
    raise ValueError("too large\\nframe #15")

class Own(BaseException):
    def __str__(self):
        return self.text

def own():
    raise Own

def terminated():
    from placewright.errors import Terminated
    raise Terminated(143)

def wrong():
    return nn.Linear(4, 2)

def no_model():
    return "model", (torch.ones(1),)

def bad_loss():
    return nn.Linear(4, 2), torch.randn(3, 4), "mse", torch.randn(3, 2)

number = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of factories in the current directory, which is not on the path."""
    name = f"factories_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    return name


def test_a_users_factory_is_found_in_the_current_directory(factories: str) -> None:
    """`package.module:factory`, two parts."""
    source = load_model(f"{factories}:plain")
    assert (source.name, source.loss_fn) == ("plain", None)
    assert source.inputs[0].shape == (3, 4)


def test_a_users_factory_is_found_in_a_file(factories: str, tmp_path: Path) -> None:
    """`folder/file.py:factory`, from any directory; another module's name is refused."""
    assert load_model(f"{tmp_path / factories}.py:plain").inputs[0].shape == (3, 4)
    (tmp_path / "json.py").write_text(FACTORIES)
    with pytest.raises(InputError, match="'json' is imported already"):
        load_model("json.py:plain")
    with pytest.raises(InputError, match="no such file"):
        load_model("nowhere.py:plain")


def test_training_without_a_loss_takes_the_mean_square(factories: str) -> None:
    """And a loss that is given stays."""
    assert load_model(f"{factories}:plain", training=True).loss_fn is default_loss
    loss = load_model(f"{factories}:whole", training=True).loss_fn
    assert loss is torch.nn.functional.mse_loss


def test_batch_reaches_the_factory(factories: str) -> None:
    """Where it takes one."""
    assert load_model(f"{factories}:whole", batch=5).inputs.shape == (5, 4)


def test_the_same_seed_gives_the_same_weights(factories: str) -> None:
    """And the caller's random state is left alone."""
    before = torch.get_rng_state()
    one, two = (load_model(f"{factories}:plain", seed=3) for _ in range(2))
    other = load_model(f"{factories}:plain", seed=4)
    assert torch.equal(one.model.weight, two.model.weight)
    assert not torch.equal(one.model.weight, other.model.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_weights_a_zoo_model_takes_no_memory() -> None:
    """VGG-16 on the meta device."""
    source = load_model("zoo:vgg16", weights=False)
    assert {p.device.type for p in source.model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("broken", "ValueError: no such weights"),
        ("wrong", r"got Linear"),
        ("no_model", r"got \(str, tuple\)"),
        ("bad_loss", "loss_fn is not callable"),
        ("number", "is not a function"),
        ("wordy", r"raised ValueError: too large\n  next"),
        ("own", "raised Own: its text cannot be read"),
        ("plane", "did you mean 'plain'"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(factories: str, factory: str, says: str) -> None:
    """With the factory's name in the message."""
    with pytest.raises(InputError, match=says) as caught:
        load_model(f"{factories}:{factory}")
    assert factories in str(caught.value)


def test_a_signal_is_no_error_of_the_factory(factories: str) -> None:
    """SIGTERM while a model is built ends the command."""
    with pytest.raises(Terminated, match="SIGTERM"):
        load_model(f"{factories}:terminated")


def test_batch_for_a_factory_that_takes_none(factories: str) -> None:
    """The hint tells of the keyword."""
    with pytest.raises(InputError, match="keyword `batch`"):
        load_model(f"{factories}:plain", batch=2)


def test_no_such_module() -> None:
    """Says from which directory it was looked for."""
    with pytest.raises(InputError, match="no module named 'nowhere'"):
        load_model("nowhere:factory")


def test_a_module_that_raises_when_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the module is part of ours."""
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_model("raises_at_import:factory")


@pytest.mark.parametrize("source", ["resnet50", "", ":", "module:", ":factory"])
def test_neither_zoo_nor_factory(source: str) -> None:
    """The hint lists the zoo."""
    with pytest.raises(InputError, match=r"(?s)neither zoo:NAME.*alexnet"):
        load_model(source)


def test_unknown_zoo_model() -> None:
    """With the nearest name."""
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        load_model("zoo:resnet-50")


def test_the_default_loss_sums_over_the_outputs() -> None:
    """Integers do not count."""
    outputs = {"a": torch.tensor([1.0, 3.0]), "b": [torch.tensor(2.0), torch.tensor(7)]}
    assert default_loss(outputs).item() == 5.0 + 4.0


@pytest.mark.parametrize("named", [False, True])
def test_a_model_that_returns_its_loss_is_trained_by_it(named: bool) -> None:
    """Not by its square; of several outputs by what is called the loss."""
    loss = torch.tensor(-3.0)
    outputs = {"loss": loss, "logits": torch.ones(2, 3)} if named else loss
    assert default_loss(outputs) is loss
    assert default_loss(SimpleNamespace(loss=loss)) is loss
    assert default_loss((loss, torch.ones(2, 3))).item() == 10.0
    assert default_loss({"loss": torch.ones(2)}).item() == 1.0
