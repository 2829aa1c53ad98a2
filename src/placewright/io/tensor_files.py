"""Safetensors files: read tensor by tensor, written without a second copy in memory.

A file is eight bytes with the length of its header, a header in JSON, and the tensors' bytes,
row-major, at the offsets that the header names::

    | length | {"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} | bytes |

A folder has one file, ``model.safetensors``, or several with an index that names the file of every
tensor. Each save writes files of a new *generation*, a random word in their headers and in the
index: files of two saves are told apart although they have the same tensors, and so is a file that
was replaced between the reading of its header and that of a tensor.

The safetensors library maps a whole file into memory, where its pages count as the process's own,
and makes all of a file's bytes before it writes any. Weights may be larger than the memory that is
there, so here every tensor is read from the disk into its place, and written from it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch
from torch import Tensor

from placewright.errors import InputError
from placewright.io.boundary import named_path, open_file

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

WHOLE = "model.safetensors"
"""All tensors of a folder, where one file is enough. Readers prefer it, as Transformers does."""

INDEX = "model.safetensors.index.json"
"""Of a folder of several files: ``{"weight_map": {"a.weight": "model-00001-of-00002..."}}``."""

GENERATION = "generation"
"""Key, in the ``metadata`` of files and index, of the word that all files of one save have."""

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_LONGEST_HEADER = 25_000_000
_REOPENED = 20
"""Times that a folder is read again which is saved to meanwhile."""

_HINT = "fetch or write it again"


class StoredFileError(OSError):
    """A file of tensors is gone, or is no longer the one whose header was read."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    `dtype`: its name in the file: ``F32``.
    `offset`, `size`: its bytes in the file.
    `header`, `stamp`: of the file when its header was read: another in its place is noticed.
    """

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    header: str
    stamp: tuple[str, int, int, int, int]

    def read(self) -> Tensor:
        """The tensor, contiguous, on the CPU."""
        return self.read_into(torch.empty(self.shape, dtype=DTYPES[self.dtype]))

    def read_into(self, made: Tensor) -> Tensor:
        """Fill a tensor of the same shape on the CPU; another dtype is converted to.

        Raises `StoredFileError`: the file is gone, or has changed.
        """
        if made.dtype != DTYPES[self.dtype] or not made.is_contiguous():
            return made.copy_(self.read())
        if self.size == 0:
            return made
        with self.open() as file:
            _read_bytes(file, _bytes_of(made), self)
        return made

    def open(self) -> IO[bytes]:
        """The file, if it is still the one whose header was read.

        Another machine may have its own copy. There the header has to be equal, which names the
        generation; here a file of the same name and other contents is seen by its stamp too.

        Raises `StoredFileError`: it is gone, or has changed.
        """
        try:
            file = open_file(self.path)
        except OSError as error:
            raise StoredFileError(error.errno, error.strerror, self.path) from None
        stamp = _stamp(file)
        if stamp == self.stamp:
            return file
        try:
            if stamp[3] < self.offset + self.size:
                raise _too_short(self)
            if stamp[:3] == self.stamp[:3] or _digest(_header_of(file)) != self.header:
                raise StoredFileError(f"{self.path} was replaced or changed since it was opened")
        except ValueError:
            file.close()
            raise StoredFileError(f"{self.path} is no safetensors file any more") from None
        except BaseException:
            file.close()
            raise
        return file

    def is_current(self) -> bool:
        """Whether its bytes can still be read where they were."""
        try:
            self.open().close()
        except StoredFileError:
            return False
        return True


AnyTensor: TypeAlias = Tensor | StoredTensor


def _stamp(file: IO[bytes]) -> tuple[str, int, int, int, int]:
    """What tells a file from others of this machine, and from itself before it was changed."""
    found = os.fstat(file.fileno())
    return platform.node(), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_bytes(file: IO[bytes], left: memoryview, stored: StoredTensor) -> None:
    start = stored.offset
    while len(left):
        # A read may return less than was asked for: 2 GiB at most on Linux, or up to a signal.
        got = os.preadv(file.fileno(), [left], start)
        if got == 0:
            raise _too_short(stored)
        left, start = left[got:], start + got


def _too_short(stored: StoredTensor) -> StoredFileError:
    return StoredFileError(f"{stored.path} ends before the bytes of {stored.name!r}")


def stored_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, of an index file, or of a folder of them; reads headers.

    In a folder `WHOLE` counts where it is there, else the files that `INDEX` names, else all. One
    that is saved to meanwhile is opened again.

    Raises `InputError`: there is none, one is damaged, or they do not belong together.
    """
    path = named_path(path)
    for _ in range(_REOPENED):
        before = _versions(path)
        try:
            return _read(path)
        except InputError:
            if _versions(path) == before:
                raise
    return _read(path)


def _versions(path: Path) -> list[tuple[int, ...]]:
    """What a save changes last."""
    found: list[tuple[int, ...]] = []
    for file in (path, path / WHOLE, path / INDEX):
        try:
            seen = file.stat()
            found.append((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))
        except (OSError, ValueError):
            found.append(())
    return found


def _read(path: Path) -> dict[str, StoredTensor]:
    if path.is_dir() and (path / WHOLE).exists():
        return _header(path / WHOLE)[0]
    if path.is_dir() and (path / INDEX).exists():
        path = path / INDEX
    if path.name.endswith(".index.json"):
        return _indexed(path)
    if not path.is_dir():
        return _header(path)[0]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise InputError(
            "the folder has no safetensors files",
            where=str(path),
            hint="write some with model.save_pretrained(FOLDER) or safetensors.torch.save_file",
        )
    _check_complete(files, path)
    found: dict[str, StoredTensor] = {}
    for file in files:
        _add(found, _header(file)[0], file)
    return found


def _indexed(path: Path) -> dict[str, StoredTensor]:
    """The tensors of the files that an index names: exactly those, each in the file named."""
    index = read_index(path)
    wanted: dict[str, set[str]] = {}
    for name, file_name in index.files.items():
        wanted.setdefault(file_name, set()).add(name)
    found: dict[str, StoredTensor] = {}
    for file_name, names in sorted(wanted.items()):
        tensors, generation = _header(path.parent / file_name)
        other = sorted(names ^ tensors.keys())
        if other or generation != index.generation:
            place = "the index" if other and other[0] in names else "the file"
            raise InputError(
                f"the file {file_name!r} does not belong to the index",
                where=str(path),
                by=f"{other[0]!r} is in {place} alone"
                if other
                else f"generation {generation!r}, the index has {index.generation!r}",
                hint="the folder holds files of two saves: save or fetch the weights again",
            )
        _add(found, tensors, path.parent / file_name)
    return found


@dataclass(frozen=True, slots=True)
class Index:
    """The file of every tensor, and the generation that the files have, empty if not ours."""

    files: Mapping[str, str]
    generation: str


def read_index(path: Path) -> Index:
    """An index of safetensors files.

    Raises `InputError`: it is none, or names files outside its folder.
    """
    try:
        with open_file(path) as file:
            text = file.read(_LONGEST_HEADER + 1)
        if len(text) > _LONGEST_HEADER:
            raise ValueError(f"more than {_LONGEST_HEADER} bytes")
        data = json.loads(text)
        files, generation = data["weight_map"], data.get("metadata", {}).get(GENERATION, "")
        if not all(isinstance(name, str) for name in (*files.values(), generation)):
            raise ValueError("names of files are text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            "is no index of safetensors files",
            where=str(path),
            by=f"{type(error).__name__}: {error}"[:120],
            hint=_HINT,
        ) from error
    outside = [n for n in files.values() if not n or Path(n).is_absolute() or ".." in Path(n).parts]
    if outside:
        raise InputError(
            "the index names a file outside its folder",
            where=str(path),
            by=repr(outside[0])[:120],
            hint="put the files beside the index, and name them without a path",
        )
    return Index(files, generation)


def _check_complete(files: Sequence[Path], folder: Path) -> None:
    """Raise if some of a set of shards are missing: a save without an index was not completed."""
    shards = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    for first in shards:
        there = sum(s[1] == first[1] and s[3] == first[3] for s in shards)
        if there != int(first[3]):
            raise InputError(
                "the folder has shards without an index, and not all of them",
                where=str(folder / first[0]),
                by=f"{there} of {int(first[3])}",
                hint="save or fetch the weights again; the one who wrote them was interrupted",
            )


def _add(found: dict[str, StoredTensor], more: Mapping[str, StoredTensor], path: Path) -> None:
    """Take the tensors of one more file; none may be in two."""
    if twice := sorted(found.keys() & more.keys()):
        raise InputError(
            f"the tensor {twice[0]!r} is in two files",
            where=str(path),
            by=f"and in {found[twice[0]].path}",
            hint="remove the file that is not wanted, or write an index",
        )
    found |= more


def _header(path: Path) -> tuple[dict[str, StoredTensor], str]:
    """The tensors of a file, and the generation that it has, empty if it is not ours."""
    try:
        with open_file(path) as file:
            raw, stamp = _header_of(file), _stamp(file)
        entries = json.loads(raw)
        metadata = entries.pop("__metadata__", None) or {}
        place, digest = str(path.absolute()), _digest(raw)
        base, end, found = 8 + len(raw), 0, {}
        # As the library demands, the tensors' bytes follow each other: none overlap, none are left.
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            start, stop = map(_whole, entry["data_offsets"])
            shape = tuple(map(_whole, entry["shape"]))
            size = math.prod(shape) * DTYPES[entry["dtype"]].itemsize
            if start != end or stop - start != size:
                raise ValueError(f"{name!r} has bytes {start} to {stop}, not {size} from {end}")
            place_of = (place, name, entry["dtype"], shape, base + start, size)
            found[name], end = StoredTensor(*place_of, digest, stamp), stop
        if base + end != stamp[3]:
            raise ValueError(f"{stamp[3]} bytes, its header says {base + end}")
        return found, str(metadata.get(GENERATION, ""))
    except OSError as error:
        raise InputError(
            "the weights cannot be read",
            where=str(path),
            by=str(error.strerror or error),
            hint="give a safetensors file, or a folder of them",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            "is no safetensors file, or a damaged one",
            where=str(path),
            by=f"{type(error).__name__}: {error}"[:120],
            hint=_HINT,
        ) from error


def _header_of(file: IO[bytes]) -> bytes:
    """The header of an open file; a `ValueError` if it has none."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
        raise ValueError(f"a header of {length} bytes, in a file of {size}")
    return file.read(length)


def _digest(header: bytes) -> str:
    return hashlib.sha256(header).hexdigest()


def _whole(number: Any) -> int:
    """An extent or an offset; a `ValueError` if it is none."""
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"{number!r:.40} is no count of bytes or elements")
    return number


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor], generation: str = "") -> int:
    """Write a safetensors file, one tensor at a time; its bytes.

    `generation`: of a file that is one of several, or that may be replaced while it is read.
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
    metadata = {"format": "pt"} | ({GENERATION: generation} if generation else {})
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
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
        with tensor.open() as source:
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
