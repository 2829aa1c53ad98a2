"""Files that are written: checked before anything is computed, named where the disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placewright.errors import InputError


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
    from placewright.io.boundary import named_path  # pydantic: the command line starts without it

    if path is not None and named_path(path).is_dir():
        raise InputError("cannot be written: it is a folder", where=str(path), hint="name a file")
    if path is not None and not any(os.access(p, os.W_OK) for p in (path, path.resolve().parent)):
        code = errno.EACCES if path.resolve().parent.is_dir() else errno.ENOENT
        raise InputError(
            f"cannot be written: {os.strerror(code)}",
            where=str(path),
            hint="name a file in a folder that exists and is writable",
        )
    return path
