"""Data in a file; the end of its name says how: ``.json``, ``.yaml`` or ``.yml``, then ``.gz``."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from placewright.boundary import parse_json, parse_yaml, read_text
from placewright.errors import InputError


def read_data(path: str | Path) -> tuple[Any, str]:
    """What is in the file, and its YAML text, empty of JSON: lines can be named with it.

    Raises
    ------
    InputError
        The file is missing, or is not what the end of its name says.
    """
    where, text = str(path), stored_text(path)
    if is_yaml(path):
        return parse_yaml(text, where=where), text
    return parse_json(text, where=where), ""


def write_data(data: dict[str, Any], path: str | Path) -> Path:
    """Write what `read_data` reads back equal; the same data is the same file."""
    target = Path(path)
    if is_yaml(path):
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    else:
        text = json.dumps(data, allow_nan=False) + "\n"
    packed = target.suffix == ".gz"
    # Without the time of writing.
    target.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    return target


def is_yaml(path: str | Path) -> bool:
    """Whether the name says so, packed or not."""
    return _unpacked(path).suffix in (".yaml", ".yml")


def stem(path: str | Path) -> str:
    """The name without its ends."""
    return _unpacked(path).stem


def stored_text(path: str | Path) -> str:
    """The file's text, unpacked where its name ends in ``.gz``.

    Raises
    ------
    InputError
        It is missing, or no text.
    """
    if Path(path).suffix != ".gz":
        return read_text(path)
    try:
        return gzip.decompress(Path(path).read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError("cannot be read as gzip", where=str(path), by=str(error)) from None


def _unpacked(path: str | Path) -> Path:
    return Path(Path(path).name.removesuffix(".gz"))
