"""Safetensors files: read tensor by tensor, written without a second copy in memory.

A file is eight bytes with the length of its header, a header in JSON, and the tensors' bytes,
row-major, at the offsets that the header names::

    | length | {"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} | bytes |

The safetensors library maps a whole file into memory, where its pages count as the process's own,
and makes all of a file's bytes before it writes any. Weights may be larger than the memory that is
there, so here every tensor is read from the disk into its place, and written from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch
from torch import Tensor

from placewright.errors import InputError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

INDEX = "model.safetensors.index.json"
"""Of a folder of several files: ``{"weight_map": {"a.weight": "model-00001-of-00002..."}}``."""

_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    `dtype`: its name in the file: ``F32``.
    `offset`, `size`: its bytes in the file.
    """

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def read(self) -> Tensor:
        """The tensor, contiguous, on the CPU."""
        return self.read_into(torch.empty(self.shape, dtype=DTYPES[self.dtype]))

    def read_into(self, made: Tensor) -> Tensor:
        """Fill a tensor of the same shape on the CPU; another dtype is converted to.

        Raises `OSError`: the file is gone or has become shorter.
        """
        if made.dtype != DTYPES[self.dtype] or not made.is_contiguous():
            return made.copy_(self.read())
        if self.size == 0:
            return made
        with open(self.path, "rb", buffering=0) as file:
            _read_bytes(file, _bytes_of(made), self)
        return made


AnyTensor: TypeAlias = Tensor | StoredTensor


def _read_bytes(file: IO[bytes], left: memoryview, stored: StoredTensor) -> None:
    start = stored.offset
    while len(left):
        # A read may return less than was asked for: 2 GiB at most on Linux, or up to a signal.
        got = os.preadv(file.fileno(), [left], start)
        if got == 0:
            raise _too_short(stored)
        left, start = left[got:], start + got


def _too_short(stored: StoredTensor) -> OSError:
    return OSError(f"{stored.path} ends before the bytes of {stored.name!r}")


def stored_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, of an index file, or of a folder of them; reads headers.

    Raises `InputError`: there is none, or one is damaged.
    """
    found: dict[str, StoredTensor] = {}
    for file in _files(Path(path)):
        found |= _header(file)
    return found


def _files(path: Path) -> list[Path]:
    if path.is_dir() and (path / INDEX).exists():
        path = path / INDEX
    if path.name.endswith(".index.json"):
        try:
            names = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
            return [path.parent / str(name) for name in names]
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise InputError("is no index of safetensors files", where=str(path)) from error
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise InputError(
            "the folder has no safetensors files",
            where=str(path),
            hint="write some with model.save_pretrained(FOLDER) or safetensors.torch.save_file",
        )
    return files


def _header(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            entries = json.loads(file.read(length))
        end = path.stat().st_size
        return {
            name: _entry(path.absolute(), name, entry, 8 + length, end)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise InputError(
            "the weights cannot be read",
            where=str(path),
            by=str(error.strerror or error),
            hint="give a safetensors file, or a folder of them",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "is no safetensors file, or a damaged one",
            where=str(path),
            by=f"{type(error).__name__}: {error}"[:120],
            hint="fetch or write it again",
        ) from error


def _entry(path: Path, name: str, entry: Any, base: int, end: int) -> StoredTensor:
    start, stop = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(extent) for extent in entry["shape"])
    size = torch.Size(shape).numel() * DTYPES[entry["dtype"]].itemsize
    if stop - start != size or start < 0 or base + stop > end:
        raise ValueError(f"{name!r} has {stop - start} bytes of {size}, the file {end}")
    return StoredTensor(str(path), name, entry["dtype"], shape, base + start, size)


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor]) -> int:
    """Write a safetensors file, one tensor at a time; its bytes.

    Raises `OSError`: the disk does not take it.
    """
    entries, end = {}, 0
    for name, tensor in tensors.items():
        size = size_of(tensor)
        dtype = tensor.dtype if isinstance(tensor, StoredTensor) else _NAMES[tensor.dtype]
        entries[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    # Padded, so that the tensors' bytes begin at a multiple of 8.
    header += b" " * (-len(header) % 8)
    with path.open("wb", buffering=0) as file:
        _write(file, memoryview(len(header).to_bytes(8, "little") + header))
        for tensor in tensors.values():
            _append(file, tensor)
    return 8 + len(header) + end


def size_of(tensor: AnyTensor) -> int:
    """Bytes of its elements."""
    if isinstance(tensor, StoredTensor):
        return tensor.size
    return tensor.numel() * tensor.element_size()


def _append(file: IO[bytes], tensor: AnyTensor) -> None:
    if isinstance(tensor, StoredTensor):
        with open(tensor.path, "rb", buffering=0) as source:
            start, end = tensor.offset, tensor.offset + tensor.size
            while start < end:
                sent = os.sendfile(file.fileno(), source.fileno(), start, end - start)
                if sent == 0:
                    raise _too_short(tensor)
                start += sent
        return
    _write(file, _bytes_of(tensor.detach().cpu().contiguous()))


def _write(file: IO[bytes], left: memoryview) -> None:
    while len(left):
        # Unbuffered, so a write may take less than all of it.
        left = left[file.write(left) :]


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    raw: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)
