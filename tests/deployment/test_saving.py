"""Saving over an earlier version: complete at every moment, for every reader."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.deployment import export
from placewright.deployment.placed_model import PlacedModel
from placewright.errors import InputError
from placewright.io.tensor_files import INDEX, WHOLE, StoredFileError, stored_tensors
from tests.deployment.test_calls import placed

FORK = multiprocessing.get_context("fork")


class Layers(nn.Sequential):
    """Layers whose parameters all have one value, the version."""

    def __init__(self, version: float = 0.0) -> None:
        super().__init__(*(nn.Linear(16, 16) for _ in range(6)))
        self.set(version)

    @torch.no_grad()
    def set(self, version: float) -> None:
        """Give all parameters this value."""
        for parameter in self.parameters():
            parameter.fill_(version)


@pytest.fixture(params=[1, 6])
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many files are written."""
    monkeypatch.setattr(export, "MOST_BYTES", 10**9 if request.param == 1 else 1100)
    return int(request.param)


def version_in(folder: Path) -> float:
    """The one version that all tensors of a folder have."""
    stored = stored_tensors(folder)
    assert stored.keys() == Layers().state_dict().keys()
    found = {v for tensor in stored.values() for v in tensor.read().unique().tolist()}
    assert len(found) == 1, f"versions {found} in one folder"
    return float(found.pop())


def in_a_process(task: Callable[[Connection], None]) -> tuple[multiprocessing.Process, Connection]:
    """A process that does the task, and the other end of its pipe."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=task, args=(there,))
    process.start()
    return process, here  # type: ignore[return-value]


@pytest.fixture(scope="module")
def up() -> PlacedModel:
    """Placed once: what is saved are the parameters that the model has then."""
    return placed(Layers(), torch.ones(2, 16))


def save(up: PlacedModel, version: float, folder: Path) -> Path:
    """Save a version."""
    layers: Layers = up.workload.source.model  # type: ignore[assignment]
    layers.set(version)
    return up.save_pretrained(folder)


def saving(up: PlacedModel, folder: Path, first: int) -> Callable[[Connection], None]:
    """Saves one version after another, and says when each is begun and complete."""

    def task(say: Connection) -> None:
        for version in range(first, 10**6):
            say.send((version, "begun"))
            save(up, version, folder)
            say.send((version, "complete"))

    return task


def test_a_save_that_is_killed_leaves_one_version(
    up: PlacedModel, tmp_path: Path, files: int
) -> None:
    """Killed at random moments, over an older version, the folder has either, and can be saved."""
    folder, chance, first = tmp_path / "model", random.Random(7), 1
    for _ in range(12):
        process, heard = in_a_process(saving(up, folder, first))
        told = [heard.recv() for _ in range(2)]
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        while heard.poll():
            try:
                told.append(heard.recv())
            except EOFError:
                break
        complete = max(version for version, what in told if what == "complete")
        assert complete <= version_in(folder) <= told[-1][0]
        first = told[-1][0] + 1
    save(up, first, folder)
    assert version_in(folder) == first
    kept = [INDEX] * (files > 1)
    left = {file.name for file in folder.iterdir()} - {*kept, "plan.json"}
    assert len(left) == files, "what killed saves left is removed"


class Config:
    """A configuration that a model has, as those of transformers."""

    def __init__(self, version: int) -> None:
        self.version = version

    def save_pretrained(self, folder: str) -> None:
        """Write it."""
        (Path(folder) / "config.json").write_text(str(self.version))


def test_a_save_with_another_configuration_that_is_killed_leaves_no_mixture(
    up: PlacedModel, tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of its renames: both of one version, or no weights that a reader finds."""
    model, left, ended = up.workload.source.model, list[Path](), False
    while not ended:
        folder = tmp_path / str(len(left))
        for version in (1, 2):
            monkeypatch.setattr(model, "config", Config(version), raising=False)
            if version == 1:
                save(up, 1, folder)
                continue
            process, heard = in_a_process(partial(_saved_until, up, folder, len(left)))
            with suppress(EOFError):
                ended = heard.recv()
            process.join()
        left.append(folder)
    found = [
        (int((folder / "config.json").read_text()), version_in(folder))
        for folder in left
        if any((folder / name).exists() for name in (WHOLE, INDEX))
    ]
    assert {(1, 1.0), (2, 2.0)} == set(found)
    assert len(found) < len(left)
    for folder in left:
        save(up, 3, folder)
        assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def _saved_until(up: PlacedModel, folder: Path, kill_at: int, say: Connection) -> None:
    """Save version 2; killed before its rename of this number."""
    rename, count = os.replace, itertools.count()

    def renamed(*paths: Any) -> None:
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths)

    os.replace = os.rename = renamed
    save(up, 2, folder)
    say.send(True)


def test_drafts_of_saves_that_were_killed_are_removed(
    up: PlacedModel, tmp_path: Path, files: int
) -> None:
    """Files and the folder of a configuration; those of others stay."""
    folder = tmp_path / "model"
    save(up, 1, folder)
    (folder / ".plan.json.01234567.new").touch()
    (folder / ".config.01234567.new").mkdir()
    (folder / ".config.01234567.new" / "config.json").touch()
    (folder / ".notes.01234567.new").touch()
    save(up, 2, folder)
    assert [file.name for file in folder.glob(".*")] == [".notes.01234567.new"]
    assert version_in(folder) == 2


def test_files_that_an_index_names_and_that_hold_no_tensors_stay(
    up: PlacedModel, tmp_path: Path, files: int
) -> None:
    """Whoever wrote the index."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "notes.txt"}}')
    save(up, 1.0, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_readers_of_a_folder_that_is_saved_to_see_one_version(
    up: PlacedModel, tmp_path: Path, files: int
) -> None:
    """They open it again where files go; what was opened before is an error, not other weights."""
    process, heard = in_a_process(saving(up, tmp_path, 1))
    try:
        assert [heard.recv() for _ in range(2)]
        seen = set()
        while len(seen) < 5:
            while heard.poll():
                heard.recv()
            try:
                seen.add(version_in(tmp_path))
            except StoredFileError:
                continue
    finally:
        process.kill()
        process.join()


def test_two_saves_into_one_folder_are_refused(up: PlacedModel, tmp_path: Path) -> None:
    """The second one, while the first is under way; not after that was killed."""

    def hold(say: Connection) -> None:
        with export.only_saver(tmp_path):
            say.send("held")
            signal.pause()

    process, heard = in_a_process(hold)
    try:
        assert heard.recv() == "held"
        with pytest.raises(InputError, match="another save into this folder is under way"):
            up.save_pretrained(tmp_path)
    finally:
        process.kill()
        process.join()
    up.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {WHOLE, "plan.json"}


def test_other_libraries_read_what_is_saved(up: PlacedModel, tmp_path: Path, files: int) -> None:
    """Accelerate and Transformers go by the index, whatever its files are called."""
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    save(up, 3.0, tmp_path)
    model = Layers()
    accelerate.load_checkpoint_in_model(model, str(tmp_path))
    assert all(bool((p == 3.0).all()) for p in model.parameters())

    class Config(transformers.PretrainedConfig):  # type: ignore[misc, name-defined]
        """Of the model below."""

        model_type = "layers"

    class Model(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
        """The layers, as Transformers wants them."""

        config_class = Config

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.layers = Layers()
            self.post_init()

        def forward(self, x: Tensor) -> Tensor:
            """All layers."""
            y: Tensor = self.layers(x)
            return y

    own = Model(Config())
    saved = placed(own, torch.ones(2, 16)).save_pretrained(tmp_path)
    again = Model.from_pretrained(saved).state_dict()
    assert all(torch.equal(again[name], value) for name, value in own.state_dict().items())
    names = {file.name for file in saved.iterdir()}
    assert {"config.json", "plan.json"} < names
    assert len(names) == 2 + files + (files > 1)


def test_a_placed_model_takes_the_weights_that_are_there_when_its_workers_start(
    up: PlacedModel, tmp_path: Path, files: int
) -> None:
    """Files that were saved after it was placed are opened again, when it is called and saved."""
    save(up, 1.0, tmp_path / "a")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    with placed(model, torch.ones(2, 16), weights=tmp_path / "a") as other:
        save(up, 0.5, tmp_path / "a")
        assert torch.equal(other(torch.ones(2, 16)), Layers(0.5)(torch.ones(2, 16)))
        save(up, 2.0, tmp_path / "a")
        with pytest.raises(InputError, match=r"replaced or changed|No such file"):
            other.state_dict()
        other.workers.dismiss()
        assert set(other.state_dict()["0.weight"].unique().tolist()) == {2.0}


def test_shards_of_two_saves_are_an_error(
    up: PlacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though their tensors have the same names and shapes."""
    monkeypatch.setattr(export, "MOST_BYTES", 1100)
    for version in (1.0, 2.0):
        save(up, version, tmp_path / f"{version}")
    first, second = (sorted((tmp_path / f"{v}").glob("*.safetensors")) for v in (1.0, 2.0))
    first[0].replace(second[0])
    with pytest.raises(InputError, match="does not belong to the index"):
        stored_tensors(tmp_path / "2.0")
    (tmp_path / "2.0" / INDEX).unlink()
    second[1].unlink()
    with pytest.raises(InputError, match="shards without an index, and not all"):
        stored_tensors(tmp_path / "2.0")


def test_shards_that_no_index_tells_apart_are_compared_by_their_names(tmp_path: Path) -> None:
    """An index of another library has no generation: its files have its tensors, and no others."""
    from safetensors.torch import save_file

    for k, names in enumerate((["a"], ["b", "c"])):
        file = tmp_path / f"model-{k + 1:05d}-of-00002.safetensors"
        save_file({name: torch.ones(2) for name in names}, file)
    where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(InputError, match="'c' is in the file alone"):
        stored_tensors(tmp_path)
    where["c"] = where["b"]
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert list(stored_tensors(tmp_path)) == ["a", "b", "c"]
