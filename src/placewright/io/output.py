"""Files that a command will write, checked before it computes anything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from placewright.errors import InputError


def output_file(path: Path | None) -> Path | None:
    """`path`; an option's value is refused by it before what takes long, not after.

    Raises `InputError`: it is a folder, or its folder is not there or takes no file.
    """
    if path is not None and path.is_dir():
        raise InputError("cannot be written: it is a folder", where=str(path), hint="name a file")
    if path is not None and not any(os.access(p, os.W_OK) for p in (path, path.resolve().parent)):
        code = errno.EACCES if path.resolve().parent.is_dir() else errno.ENOENT
        raise InputError(
            f"cannot be written: {os.strerror(code)}",
            where=str(path),
            hint="name a file in a folder that exists and is writable",
        )
    return path
