"""Read and write data files by suffix: ``.json``, ``.yaml`` or ``.yml``, optionally ``.gz``."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from placewright.errors import InputError
from placewright.io.boundary import (
    named_path,
    open_file,
    parse_json,
    parse_yaml,
    read_text,
    unreadable,
)
from placewright.ownership import other_writers

MOST_UNPACKED = 50
"""Bytes that a packed one may become; text of numbers takes two to twenty."""

LEAST_UNPACKED = 128 << 20
"""Bytes that any packed file may become, however well it is packed."""


def read_data(path: str | Path) -> tuple[Any, str]:
    """The data of a file, and its text if it is YAML (to name lines in errors).

    Raises `InputError`: the file is missing, or its content does not match its suffix.
    """
    where, text = str(path), stored_text(path)
    if is_yaml(path):
        return parse_yaml(text, where=where), text
    return parse_json(text, where=where), ""


def write_data(data: dict[str, Any], path: str | Path) -> Path:
    """Write data that `read_data` reads back equal; equal data give equal bytes."""
    target = Path(path)
    if is_yaml(path):
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
        if _READ_AS_BREAKS & set(text):
            text = yaml.safe_dump(data, sort_keys=False, width=100)
    else:
        text = json.dumps(data, allow_nan=False) + "\n"
    return write_file(target, text)


_READ_AS_BREAKS = {"\x85", "\u2028", "\u2029", "\ufeff"}
"""Characters in names that YAML reads as other ones, unless they are written by their numbers."""


def finite(value: float) -> float | None:
    """A number as JSON has it: ``None`` for what is infinite or unknown."""
    return float(value) if math.isfinite(value) else None


def write_file(path: str | Path, content: str | bytes) -> Path:
    """Write a file atomically: an existing file stays until the new one is complete.

    Compressed if the name ends in ``.gz``; equal content gives equal bytes.

    Raises `InputError`: the disk is full, or the folder is missing or not writable.
    """
    target, data = named_path(path), content.encode() if isinstance(content, str) else content
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # without the time of writing
    try:
        _replace(target, data)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            by=f"{len(data)} bytes" if full else "",
            hint="free space there, or name a file on another disk"
            if full
            else "name a file in a folder that exists and is writable",
        ) from None
    return target


@contextmanager
def drafted_folder(folder: Path, last: str) -> Iterator[Path]:
    """An empty folder, whose files are put into `folder` when the block has ended.

    They take the places of files of these names. `last` is the one by which the others are found:
    an earlier one is removed first and the new one comes behind all others, so that whatever ends
    this process in between leaves nothing that could be read as a mixture. Other files stay.

    Raises `OSError`: as `behind_links`, or the disk is full; nothing in `folder` has changed then.
    """
    target = behind_links(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    there = target.is_dir()
    draft = Path(tempfile.mkdtemp(prefix=".placewright-", dir=target if there else target.parent))
    try:
        yield draft
        names = sorted(path.name for path in draft.iterdir())
        if not there:
            mask = os.umask(0)
            os.umask(mask)
            draft.chmod(0o777 & ~mask)
            draft.rename(target)
            return
        for name in names:
            behind_links(target / name)
        (target / last).unlink(missing_ok=True)
        for name in sorted(names, key=last.__eq__):
            (draft / name).replace(target / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold a file's lock, so that processes that read it, add to it and write it take turns.

    The file is made, empty, if it is missing. Nothing is held where the file system has no locks
    (NFS). Writing replaces the file, so whoever has waited may hold the lock of one that is gone by
    then, and has to lock its successor.
    """
    while True:
        try:
            file = behind_links(Path(path))
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # writing says what is wrong
            yield
            return
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
                yield
                return
        finally:
            os.close(handle)


def to_disk(path: Path) -> None:
    """Force a file's contents, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(target: Path, data: bytes) -> None:
    """Write a temporary file and rename it; devices and pipes are written in place."""
    # A rename would put a file in the place of /dev/stdout.
    special = target.exists() and not target.is_file()
    file = behind_links(target)
    if special or not os.access(file.parent, os.W_OK):
        target.write_bytes(data)
        return
    target = file
    # In the same folder: a rename is atomic within one file system only.
    # Its own name in every call: two threads may write the same file.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        draft.write_bytes(data)
        if (mode := _mode_of_own(target)) is not None:
            draft.chmod(mode)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def behind_links(path: Path) -> Path:
    """The file that links lead to: it is replaced or added to, and they stay.

    The kernel's own protection (``fs.protected_symlinks``) is about files that are opened, and what
    is opened here is a draft: a link in a folder that others may write to could lead to any file of
    this user, whoever owns the folder.

    Raises `OSError`: such a link, or a pipe, was put into such a folder by another user.
    """
    own = os.geteuid(), 0
    for _ in range(_MOST_LINKS):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return path
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            return path
        if found.st_uid not in own and other_writers(path.parent):
            by = "another user has put a link or a pipe there"
            raise PermissionError(errno.EACCES, by, str(path))
        if not stat.S_ISLNK(found.st_mode):
            return path
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


_MOST_LINKS = 40
"""One behind the other, as on Linux."""


def _mode_of_own(path: Path) -> int | None:
    """Who may do what with a file of this user; ``None`` where there is none.

    A file of another user says nothing: with the set-user-ID bit, and writable for all, what is
    written in its place would be a program that runs as this user, and whose bytes are his.
    """
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid == os.geteuid():
            return found.st_mode & 0o777
    return None


def is_yaml(path: str | Path) -> bool:
    """Whether the suffix is YAML's, with or without ``.gz``."""
    return _unpacked(path).suffix in (".yaml", ".yml")


def stem(path: str | Path) -> str:
    """The name without its suffixes, as text: bytes that are none are replaced."""
    return os.fsencode(_unpacked(path).stem).decode(errors="replace")


def stored_text(path: str | Path) -> str:
    """The file's text, decompressed if its name ends in ``.gz``.

    Raises `InputError`: it is missing, or not text.
    """
    if Path(path).suffix != ".gz":
        return read_text(path)
    try:
        with open_file(path) as file:
            return _unpacked_bytes(file, str(path)).decode()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError("cannot be read as gzip", where=str(path), by=str(error)) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _unpacked_bytes(file: IO[bytes], where: str) -> bytearray:
    """What a packed file holds, a piece at a time: a signal ends it, and so does its size."""
    packed, found = os.fstat(file.fileno()).st_size, bytearray()
    with gzip.GzipFile(fileobj=file) as unpacking:
        while piece := unpacking.read(1 << 20):
            found += piece
            check_unpacked(where, packed, len(found))
    return found


def check_unpacked(where: str, packed: int, unpacked: int) -> None:
    """Raise if a packed file becomes larger than data do.

    Raises `InputError`: it has `packed` bytes and becomes `unpacked` ones, or more.
    """
    most = max(LEAST_UNPACKED, MOST_UNPACKED * packed)
    if unpacked > most:
        raise InputError(
            "the file becomes too large when it is unpacked",
            where=where,
            by=f"{packed} bytes become more than {most}",
            hint="if you trust it, unpack it (gunzip) and give that file",
        )


def _unpacked(path: str | Path) -> Path:
    return Path(Path(path).name.removesuffix(".gz"))


def sha256_of(path: Path) -> str:
    """Of the bytes of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
