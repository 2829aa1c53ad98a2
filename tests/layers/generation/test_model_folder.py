"""Folders of language models from strangers: data are read, and nothing else happens."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
import torch

from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.layers.devicemap.text import Tokenizer
from placewright.layers.generation.stage import (
    Checkpoint,
    Stage,
    StageOrder,
    needed_names,
    skeleton,
)
from tests.layers.generation.test_generator import model_of

transformers = pytest.importorskip("transformers")

CODE = """
import pathlib
from transformers import LlamaConfig as Config, PreTrainedTokenizerFast as Words
pathlib.Path(__file__).with_name("executed").touch()
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in three files, with an index and a tokenizer."""
    from tokenizers import Tokenizer as Made
    from tokenizers.models import WordLevel

    folder = tmp_path_factory.mktemp("published")
    model_of("llama").save_pretrained(folder, max_shard_size="100KB")
    Made(WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"unk_token": "[UNK]"}')
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    return copytree(published, tmp_path / "model")


def change(file: Path, **values: Any) -> None:
    """Give a file of JSON other values."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def opened(folder: Path) -> None:
    """As a command opens it."""
    Tokenizer(folder).encode("word")
    found = Checkpoint(folder)
    shell = skeleton(found.config, found.dtype, found.attention)
    found.generation_config(shell)
    found.tensors(sorted(found.stored))


def test_what_was_published_is_opened(folder: Path) -> None:
    """So that the others are refused for what was changed."""
    opened(folder)
    assert Tokenizer(folder).encode("word nothing") == [0]


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.Words"] * 2}}),
        ("config.json", {"auto_map": {"AutoConfig": "code.Config"}}),
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}),
    ],
    ids=["tokenizer", "configuration", "architecture"],
)
def test_code_beside_a_model_is_not_executed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, values: dict[str, Any]
) -> None:
    """Nobody is asked whether it may be: where input is piped in, the answer may be yes."""
    asked: list[object] = []
    monkeypatch.setattr(builtins, "input", lambda *words: asked.append(words) or "y")
    change(folder / file, tokenizer_class="Words", **values)
    (folder / "code.py").write_text(CODE)
    with suppress(InputError):  # an architecture of its own cannot be opened without its code
        opened(folder)
    assert not asked
    assert not (folder / "executed").exists()


def text(content: str) -> Callable[[Path], object]:
    """Give a file this content."""
    return lambda file: file.write_text(content)


def with_values(**values: Any) -> Callable[[Path], object]:
    """Give a file of JSON other values."""
    return lambda file: change(file, **values)


def panics(file: Path) -> dict[str, Any]:
    """A tokenizer whose template has a token that it does not explain: Rust ends the call."""
    single = [{"SpecialToken": {"id": "Q", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    return {**json.loads(file.read_text()), "post_processor": template}


def a_pipe(file: Path) -> None:
    """Put a named pipe there."""
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("config.json", text("[]")),
        ("config.json", text("{")),
        ("config.json", with_values(dtype="nn")),
        ("config.json", with_values(hidden_act="no such function")),
        ("config.json", with_values(hidden_size=-32)),
        ("config.json", with_values(num_attention_heads=0)),
        ("generation_config.json", text("[1]")),
        ("tokenizer.json", text("{")),
        ("tokenizer.json", text("[" * 100_000)),
        ("tokenizer_config.json", text("[]")),
        ("tokenizer_config.json", with_values(tokenizer_class=7)),
        ("tokenizer.json", lambda file: file.write_text(json.dumps(panics(file)))),
        ("chat_template.jinja", a_pipe),
        ("zzz.safetensors", a_pipe),
        ("model.safetensors.index.json", text("{}")),
        ("adapter_config.json", text("{}")),
        ("adapter_config.json", lambda file: file.symlink_to("nowhere")),
    ],
)
def test_what_no_reader_expects_is_refused(
    folder: Path, name: str, changed: Callable[[Path], object]
) -> None:
    """By an error that names the folder, and at once: to open a pipe waits for a writer.

    An adapter is one of these: the weights beside it are those of another model.
    """
    changed(folder / name)
    with pytest.raises(PlacewrightError) as caught:
        opened(folder)
    assert str(folder) in caught.value.where or "model type" in caught.value.where


def test_a_checkpoint_that_lacks_a_shard_names_it(folder: Path) -> None:
    """Before anything is loaded."""
    gone = max(folder.glob("*.safetensors"))
    gone.unlink()
    with pytest.raises(InputError, match=gone.name):
        opened(folder)


def test_files_that_the_index_does_not_name_are_not_read(folder: Path) -> None:
    """A save that was broken off leaves some, whose tensors have the same names."""
    expected = Checkpoint(folder).tensors(["model.norm.weight"])
    holder = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    left = folder / "zzz.safetensors"
    copy(folder / holder["model.norm.weight"], left)
    data = bytearray(left.read_bytes())
    data[-4:] = b"\0\0\0\0"
    left.write_bytes(data)
    found = Checkpoint(folder).tensors(["model.norm.weight"])
    assert torch.equal(found["model.norm.weight"], expected["model.norm.weight"])
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match="in two files"):
        Checkpoint(folder)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    """By the tensor's name and both shapes, not by a traceback of PyTorch."""
    found = Checkpoint(folder)
    change(folder / "config.json", intermediate_size=40)
    other = Checkpoint(folder)
    stage = Stage(StageOrder(other.config, other.dtype, other.attention, 0, 4, 4))
    tensors = found.tensors(needed_names(stage))
    with pytest.raises(UnsupportedError, match="another shape") as caught:
        stage.load(tensors, torch.device("cpu"))
    assert "mlp" in caught.value.where
