"""Files that users hand in are regular ones, of a size that was looked at."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.capturing.files.onnx_graph import read_onnx
from placewright.capturing.files.openvino_graph import capture_openvino
from placewright.capturing.tensorflow.model import capture_tensorflow
from placewright.errors import InputError
from placewright.io import stored
from placewright.io.boundary import open_file, read_text
from placewright.io.stored import read_data
from placewright.io.tensor_files import INDEX, stored_tensors
from placewright.operators.planners.learned.planner import load_parameters
from placewright.requests.serving.families import read_family
from placewright.samples.training.train import read_since


def a_pipe(path: Path) -> None:
    """A named pipe that nobody writes to."""
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    """A socket that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))


def a_device(path: Path) -> None:
    """One that never ends."""
    path.symlink_to("/dev/zero")


def indexed(path: Path) -> object:
    """The file as a shard that an index names."""
    (path.parent / INDEX).write_text(json.dumps({"weight_map": {"a": path.name}}))
    return stored_tensors(path.parent)


def as_weights_of_openvino(path: Path) -> object:
    """The file beside an IR."""
    path.with_suffix(".xml").write_text("<net>")
    path.rename(path.with_suffix(".bin"))
    return capture_openvino(str(path.with_suffix(".xml")))


def in_a_saved_model(path: Path) -> object:
    """The file among those of a SavedModel."""
    folder = path.parent / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"")
    path.rename(folder / "variables" / "variables.index")
    return capture_tensorflow(str(folder))


def in_a_family(path: Path) -> object:
    """The file as a variant."""
    (path.parent / "family.json").write_text(
        json.dumps({"name": "f", "variants": {"v": {"file": path.name, "accuracy": 0.5}}})
    )
    return read_family(path.parent / "family.json")


def after_epochs(path: Path) -> object:
    """The file as a checkpoint of training on nodes."""
    job: Any = SimpleNamespace(state=dict)
    return read_since(path, job, 3)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "text": ("x.json", read_data),
    "gzip": ("x.json.gz", read_data),
    "safetensors": ("x.safetensors", stored_tensors),
    "index": (INDEX, stored_tensors),
    "shard": ("x.safetensors", indexed),
    "checkpoint": ("x.safetensors", lambda path: load_parameters(path, {})),
    "onnx": ("x.onnx", read_onnx),
    "openvino": ("x.xml", lambda path: capture_openvino(str(path))),
    "weights of openvino": ("x.bin", as_weights_of_openvino),
    "graph of tensorflow": ("x.pb", lambda path: capture_tensorflow(str(path))),
    "keras": ("x.keras", lambda path: capture_tensorflow(str(path))),
    "saved model": ("x.index", in_a_saved_model),
    "family": ("x.onnx", in_a_family),
    "epochs of samples": ("x.safetensors", after_epochs),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", [a_pipe, a_socket, a_device])
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], None], reader: str
) -> None:
    """By every reader, at once: to open a pipe waits for a writer, and a device has no end."""
    name, read = READERS[reader]
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    kind(Path(name))
    with pytest.raises(InputError):
        read(tmp_path / name)


def test_the_error_says_what_it_is(tmp_path: Path) -> None:
    """A folder, too."""
    os.mkfifo(tmp_path / "pipe")
    for path, text in {"pipe": "a named pipe", ".": "Is a directory", "a\0b": "no file"}.items():
        with pytest.raises(InputError, match=text):
            read_text(tmp_path / path)
    with pytest.raises(InputError, match="a device, not a regular file"):
        read_text("/dev/zero")
    with pytest.raises(OSError, match="a named pipe"):
        open_file(tmp_path / "pipe")


def test_a_descriptor_of_the_caller_may_be_a_pipe() -> None:
    """As a shell's ``<(...)`` is."""
    source, sink = os.pipe()
    os.write(sink, b"text")
    os.close(sink)
    assert read_text(f"/dev/fd/{source}") == "text"


def test_a_packed_file_that_grows_without_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit, which grows with its size; what is packed as data are is read."""
    monkeypatch.setattr(stored, "LEAST_UNPACKED", 1 << 20)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b"0" * (40 << 20)))
    with pytest.raises(InputError, match="too large when it is unpacked"):
        read_data(path)
    values = [k / 7 for k in range(200_000)]
    path.write_bytes(gzip.compress(json.dumps(values).encode()) + gzip.compress(b"  "))
    assert read_data(path)[0] == values


def test_aliases_of_aliases_are_refused(tmp_path: Path) -> None:
    """A kilobyte of YAML with ten to the ninth nodes; a few aliases are read."""
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="its aliases repeat more than"):
        read_data(path)
    path.write_text("\n".join(lines[:3]))
    assert read_data(path)[0]["a2"][9][9] == [0] * 10
