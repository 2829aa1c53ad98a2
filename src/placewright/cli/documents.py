"""Which of Placewright's documents a file is."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, Literal

from placewright.errors import InputError

Kind = Literal["graph", "problem", "plan", "cluster"]

_TELLING: dict[Kind, frozenset[str]] = {
    "plan": frozenset({"plan"}),
    "problem": frozenset({"compute_s"}),
    "cluster": frozenset({"devices"}),
    "graph": frozenset({"operators"}),
}
"""Keys that only this document has at its top; told apart in this order."""


def read_document(path: Path) -> dict[str, Any]:
    """A JSON or YAML file whose top is a mapping."""
    from placewright.boundary import parse_json, parse_yaml

    parse = parse_yaml if path.suffix in (".yaml", ".yml") else parse_json
    data = parse(_text(path), where=str(path))
    if not isinstance(data, dict):
        raise InputError(
            "is none of Placewright's documents",
            where=str(path),
            by=f"its top is a {type(data).__name__}",
            hint="see `placewright schema`",
        )
    return data


def _text(path: Path) -> str:
    from placewright.boundary import read_text

    if path.suffix != ".gz":
        return read_text(path)
    try:
        return gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError("cannot be read as gzip", where=str(path), by=str(error)) from None


def document_kind(path: Path) -> Kind:
    """What the file is, by its keys.

    Raises
    ------
    InputError
        It is none of our documents.
    """
    return kind_of(read_document(path), where=str(path))


def kind_of(data: dict[str, Any], *, where: str) -> Kind:
    """What `data` is, by its keys."""
    for kind, keys in _TELLING.items():
        if keys <= data.keys():
            return kind
    raise InputError(
        "is none of Placewright's documents",
        where=where,
        by=f"its keys: {', '.join(list(data)[:8]) or 'none'}",
        hint="see `placewright schema`; published formats need their name, as in dag:FILE.json",
    )
