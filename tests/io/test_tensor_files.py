"""Safetensors files, against the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from placewright.errors import InputError
from placewright.io.tensor_files import DTYPES, INDEX, stored_tensors, write_tensors


def every_dtype() -> dict[str, torch.Tensor]:
    """A tensor of each, an empty one and a number."""
    raw = torch.arange(48, dtype=torch.uint8)
    found = {
        name: (raw % 2 if name == "BOOL" else raw).clone().view(t) for name, t in DTYPES.items()
    }
    return found | {"empty": torch.zeros(0, 3), "number": torch.tensor(2.5)}


def bits(tensor: torch.Tensor) -> list[int]:
    """Its bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_both_libraries_read_what_either_writes(tmp_path: Path) -> None:
    """Every dtype, bit for bit."""
    tensors = every_dtype()
    save_file(tensors, tmp_path / "theirs.safetensors")
    write_tensors(tmp_path / "ours.safetensors", tensors)
    for path in (tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"):
        read, stored = load_file(path), stored_tensors(path)
        assert set(read) == set(stored) == set(tensors)
        for name, tensor in tensors.items():
            assert bits(read[name]) == bits(stored[name].read()) == bits(tensor)
            assert stored[name].read().shape == tensor.shape


def test_strides_and_dtypes_are_the_readers(tmp_path: Path) -> None:
    """As ``copy_`` converts; what is in a file is written to another one from there."""
    write_tensors(tmp_path / "a.safetensors", {"x": torch.randn(3, 4), "y": torch.randn(2)})
    stored = stored_tensors(tmp_path / "a.safetensors")
    write_tensors(tmp_path / "b.safetensors", {"z": stored["x"], "w": torch.ones(5).t()})
    again = stored_tensors(tmp_path / "b.safetensors")
    turned = torch.empty_strided((3, 4), (1, 3), dtype=torch.bfloat16)
    assert torch.equal(again["z"].read_into(turned), stored["x"].read().bfloat16())
    assert torch.equal(again["w"].read(), torch.ones(5))


def test_a_folder_is_read_by_its_index(tmp_path: Path) -> None:
    """Else all files in it are."""
    for name in ("a", "b", "other"):
        write_tensors(tmp_path / f"{name}.safetensors", {name: torch.ones(1)})
    assert set(stored_tensors(tmp_path)) == {"a", "b", "other"}
    where = {"a": "a.safetensors", "b": "b.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    assert set(stored_tensors(tmp_path)) == set(stored_tensors(tmp_path / INDEX)) == {"a", "b"}


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\xff" * 16, (9).to_bytes(8, "little") + b'{"x": 1}  '],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Damaged, absent, empty."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no safetensors file"):
        stored_tensors(path)


def test_a_file_that_becomes_shorter_ends_a_copy_of_it(tmp_path: Path) -> None:
    """As it ends a read; nothing waits for bytes that do not come."""
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.ones(100)})
    stored = stored_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends before the bytes of 'x'"):
        stored["x"].read()
    with pytest.raises(OSError, match="ends before the bytes of 'x'"):
        write_tensors(tmp_path / "copy", stored)


def test_a_truncated_or_absent_file_is_named(tmp_path: Path) -> None:
    """Before anything is read from it."""
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is no safetensors file"):
        stored_tensors(path)
    with pytest.raises(InputError, match="cannot be read"):
        stored_tensors(tmp_path / "absent.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="has no safetensors files"):
        stored_tensors(tmp_path / "folder")
    (tmp_path / "folder" / INDEX).write_text("{}")
    with pytest.raises(InputError, match="is no index"):
        stored_tensors(tmp_path / "folder")


def file_of(entries: object, data: bytes) -> bytes:
    """A safetensors file with any header."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


def entry(start: object, stop: object, shape: object = (4,)) -> dict[str, object]:
    """A tensor of bytes in a header."""
    return {"dtype": "U8", "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "content",
    [
        file_of({"a": entry(0, 4), "b": entry(2, 6)}, b"x" * 6),
        file_of({"a": entry(0, 4), "b": entry(0, 4)}, b"x" * 4),
        file_of({"a": entry(4, 8)}, b"x" * 8),
        file_of({"a": entry(0, 4)}, b"x" * 5),
        file_of({"a": entry(-4, 0)}, b"x" * 4),
        file_of({"a": entry(0, 4, [-2, -2])}, b"x" * 4),
        file_of({"a": entry(0, 4, [4.0])}, b"x" * 4),
        file_of({"a": entry("0", 4)}, b"x" * 4),
        file_of({"a": entry(0, 0, [0, 10**30])}, b""),
        file_of(b'{"a":' * 50_000, b""),
        file_of({"a": {"dtype": [], "shape": [], "data_offsets": [0, 0]}}, b""),
        (1 << 62).to_bytes(8, "little") + b"{}",
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    """Overlaps, holes, negative and huge numbers, nesting: as the safetensors library refuses."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no safetensors file"):
        stored_tensors(path)


@pytest.mark.parametrize("name", ["../a.safetensors", "b/../../a.safetensors", "/etc/passwd", ""])
def test_an_index_names_files_of_its_folder(tmp_path: Path, name: str) -> None:
    """Others are refused before they are opened."""
    (tmp_path / "in").mkdir()
    write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(1)})
    (tmp_path / "in" / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="outside its folder"):
        stored_tensors(tmp_path / "in")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"weight_map": {"a": 3}}', '{"weight_map": []}'])
def test_an_index_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    """Nested without end, too."""
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError, match="is no index"):
        stored_tensors(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """Which of them was meant is not known."""
    for name in "ab":
        write_tensors(tmp_path / f"{name}.safetensors", {"x": torch.ones(1)})
    with pytest.raises(InputError, match="'x' is in two files"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b'{"w": ' * 5000,
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
        b'{"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [9000000000, 9000000000], "data_offsets": [0, 4]}}',
    ],
)
def test_headers_that_say_what_cannot_be_are_refused(header: bytes, tmp_path: Path) -> None:
    """Deep, negative, infinite and overflowing ones, and names that no file has."""
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    for name in (path, tmp_path / ("x" * 300), tmp_path / "a\0b.safetensors"):
        with pytest.raises(InputError):
            stored_tensors(name)
