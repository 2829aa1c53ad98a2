"""Weights that only workers hold: loading from files and saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import prune

from placewright.capturing.model import capture
from placewright.capturing.source import ModelSource
from placewright.capturing.state import stored_state
from placewright.deployment import export
from placewright.errors import InputError
from placewright.io.tensor_files import INDEX, stored_tensors
from tests.deployment.test_calls import Net, X, expected, loss, net, placed, same


def on_meta() -> Net:
    """The model without its weights."""
    with torch.device("meta"):
        return Net()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The weights of `net`."""
    save_file(net().state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def test_workers_read_the_weights_of_a_model_on_the_meta_device(
    folder: Path, tmp_path: Path
) -> None:
    """Calls, the state dict, a plain module and saved files all have them."""
    with placed(on_meta(), weights=folder) as up:
        assert same(up(X), expected(net(), X))
        assert same(up(X[:2]), expected(net(), X[:2]))
        assert_equal(up.state_dict(), net().state_dict())
        assert same(expected(up.to_module(), X), expected(net(), X))
        saved = up.save_pretrained(tmp_path / "saved")
        with pytest.raises(InputError, match="read their weights from this folder"):
            up.save_pretrained(folder)
        with pytest.raises(InputError, match="no eager model to compare with"):
            up.run(1, check=True)
    with placed(on_meta(), weights=saved, plan=saved / "plan.json") as again:
        assert same(again(X), expected(net(), X))


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Names in order, and every bit."""
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_training_from_files_ends_in_files(folder: Path, tmp_path: Path) -> None:
    """What is learned is what the same model learns in memory."""
    y = torch.ones(5, 3)
    learned = []
    for model, weights in ((net(), None), (on_meta(), folder)):
        settings: dict[str, Any] = {"training": True, "loss_fn": loss, "targets": y}
        with placed(model, weights=weights, **settings) as up:
            torch.manual_seed(0)
            with up.trainer() as trainer:
                trainer.step(X, y)
                trainer.finish()
            called = up(X)
            up.save_pretrained(tmp_path / "learned")
            learned.append(up.state_dict())
        assert same(called, expected(up.to_module(), X))
    assert_equal(learned[0], learned[1])
    assert not torch.equal(learned[0]["a.weight"], net().a.weight)
    with placed(on_meta(), weights=tmp_path / "learned") as again:
        assert same(again(X), called)


def test_without_weights_a_model_is_planned_and_not_run() -> None:
    """Its inputs may be on the meta device, too."""
    model = placed(on_meta(), X.to("meta"))
    assert model.value > 0
    for attempt in (lambda: model(X), lambda: model.run(1), model.state_dict):
        with pytest.raises(InputError, match="has no weights"):
            attempt()


class Tied(nn.Module):
    """Two names of one weight, a buffer that is not saved, a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.full((6,), 0.5, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both layers."""
        h: Tensor = self.b(self.a(x)) * self.scale
        return h


def test_tied_weights_are_saved_once_and_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stay tied; what no operator reads is saved too."""
    monkeypatch.setattr(export, "MOST_BYTES", 100)
    torch.manual_seed(3)
    model = Tied()
    with placed(model) as up:
        saved = up.save_pretrained(tmp_path / "saved")
    assert len(list(saved.glob("*.safetensors"))) == 2
    torch.manual_seed(4)
    with torch.device("meta"):
        empty = Tied()
    with placed(empty, weights=saved) as again:
        assert torch.equal(again(X), expected(model, X))
        module = again.to_module()
        assert_equal(again.state_dict(), model.state_dict())
    assert isinstance(module, Tied)
    assert module.b.weight is module.a.weight
    assert torch.equal(expected(module, X), expected(model, X))


def test_a_save_leaves_no_file_of_an_earlier_one_that_readers_prefer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers reads ``model.safetensors`` before an index, and others an index before it."""
    whole, index = tmp_path / "model.safetensors", tmp_path / INDEX
    with placed(Tied()) as up:
        for most_bytes in (10**9, 100, 10**9):
            monkeypatch.setattr(export, "MOST_BYTES", most_bytes)
            up.save_pretrained(tmp_path)
            assert (whole.exists(), index.exists()) == (most_bytes > 100, most_bytes == 100)


def test_parameters_that_files_lack_are_the_models_own_unless_all_are(folder: Path) -> None:
    """A new head has its own values, with a warning; files of another model are refused."""
    program, files = capture(net(), X).program, stored_tensors(folder)
    source = ModelSource(net(), X)
    some = {name: file for name, file in files.items() if name != "a.weight"}
    with pytest.warns(UserWarning, match=r"'a\.weight': not there"):
        state = stored_state(source, program, some)
    assert torch.equal(state["parameter:a.weight"], net().a.weight)
    with pytest.raises(InputError, match=r"another model(?s:.*)none of the model"):
        stored_state(source, program, {f"other.{n}": file for n, file in files.items()})


def test_tensors_of_files_that_the_model_does_not_have_are_named(folder: Path) -> None:
    """A checkpoint with another head is used as far as it goes; names say what is not."""
    more = {f"head.{k}": torch.zeros(2) for k in range(5)}
    save_file(net().state_dict() | more, folder / "model.safetensors")
    with (
        pytest.warns(UserWarning, match=r"'head\.0', 'head\.1', 'head\.2' and 2 more.*not used"),
        placed(on_meta(), weights=folder) as up,
    ):
        assert_equal(up.state_dict(), net().state_dict())


def test_weights_of_another_model_are_named(folder: Path, tmp_path: Path) -> None:
    """By tensor, with both shapes, or with the nearest name."""
    state = net().state_dict()
    save_file(state | {"a.weight": torch.zeros(3, 3)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"a\.weight.*(3, 3).*(8, 6)"):
        placed(on_meta(), weights=folder)
    del state["a.weight"]
    save_file(state | {"a.weights": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"lack the parameter 'a\.weight'(?s:.*)nearest name"):
        placed(on_meta(), weights=folder)


@pytest.mark.parametrize("change", ["pruned", "normed"])
def test_models_whose_hooks_compute_weights_are_copied(change: str) -> None:
    """A plain module of them computes the same, and so does eager PyTorch in a check."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    if change == "pruned":
        prune.l1_unstructured(model[0], "weight", 0.5)
    else:
        nn.utils.weight_norm(model[0])
    with placed(model) as up:
        plain = up.to_module()
        assert torch.equal(expected(plain, X), expected(model, X))
        assert up.run(1, check=True).check is not None
