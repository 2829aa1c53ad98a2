"""Files that are written: checked before anything is computed, and read while they grow."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from placewright.errors import InputError

PIECE = 1 << 16
"""Bytes that are read at a time."""


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Give an `OSError` of writing to `path` its name, which that of a full disk does not have."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def output_file(path: Path | None) -> Path | None:
    """`path`; an option's value is refused by it before what takes long, not after.

    Raises `InputError`: it is a folder, or its folder is not there or takes no file.
    """
    # pydantic: the command line starts without it
    from placewright.io.boundary import named_path
    from placewright.io.stored import behind_links

    if path is None:
        return None
    if named_path(path).is_dir():
        raise InputError("cannot be written: it is a folder", where=str(path), hint="name a file")
    why: str | None = None
    try:
        folder = behind_links(path).parent
        if not any(os.access(p, os.W_OK) for p in (path, folder)):
            why = os.strerror(errno.EACCES if folder.is_dir() else errno.ENOENT)
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise InputError(
            f"cannot be written: {why}",
            where=str(path),
            hint="name a file in a folder that exists and is writable",
        )
    return path


def end_of(path: Path, most_bytes: int | None = None) -> bytes:
    """The last bytes of a file, or all of them; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            if most_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read()
    except OSError:
        return b""


def lines_since(path: Path, position: int, most_bytes: int) -> tuple[bytes, int]:
    """What a file has gained behind a position, in whole lines, and the position behind that.

    Empty where it cannot be read. A line that is longer than `most_bytes` comes in pieces.
    """
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read(most_bytes)
    except OSError:
        return b"", position
    whole = data[: data.rfind(b"\n") + 1]
    whole = data if not whole and len(data) == most_bytes else whole
    return whole, position + len(whole)


def open_to_append(path: Path) -> TextIO:
    """A file of lines that grows, behind the last whole line of what is there.

    Raises `OSError`: it cannot be written; or another user has put a link or a pipe there, or the
    pipe has no reader.
    """
    from placewright.io.stored import behind_links  # imports YAML, which no `--help` needs

    file = behind_links(path)
    flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # of a pipe: no waiting
    if path.exists() and not path.is_file():
        handle = os.open(path, flags | os.O_WRONLY, 0o666)
    else:  # a link that has been put there meanwhile is not followed
        handle = os.open(file, flags | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    os.set_blocking(handle, True)
    cut_torn_line(handle)
    return os.fdopen(handle, "a", encoding="utf-8", buffering=1 << 16)


def cut_torn_line(path: str | Path | int) -> None:
    """Cut off what follows the last line that was written to its end.

    Nothing happens to what is no file. It takes no space on the disk. A number is an open file.
    """
    with open(path, "rb", closefd=not isinstance(path, int)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        end = whole = file.seek(0, os.SEEK_END)
        while whole:
            begin = max(0, whole - PIECE)
            file.seek(begin)
            newline = file.read(whole - begin).rfind(b"\n")
            whole = begin + newline + 1
            if newline >= 0:
                break
    if whole < end:
        os.truncate(path, whole)


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Objects, one a line; a line that was cut off, or is not written out yet, is left out."""
    found: list[Any] = []
    for line in data.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]
