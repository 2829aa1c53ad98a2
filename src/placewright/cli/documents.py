"""Which of Placewright's documents a file is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from placewright.errors import InputError

Kind = Literal["graph", "problem", "plan", "samples plan", "cluster", "nodes"]

_TELLING: dict[Kind, frozenset[str]] = {
    "plan": frozenset({"plan"}),
    "problem": frozenset({"compute_s"}),
    "cluster": frozenset({"devices"}),
    "graph": frozenset({"operators"}),
    "nodes": frozenset({"nodes", "sample_bytes"}),
}
"""Keys that only this document has at its top; told apart in this order."""


LARGE = 1_000_000
"""Characters from which a file is looked through before it is parsed, which takes ten times as long
as reading it."""


def read_document(path: Path) -> dict[str, Any]:
    """A JSON or YAML file whose top is a mapping."""
    from placewright.io.boundary import parse_json, parse_yaml
    from placewright.io.stored import is_yaml, stored_text

    yaml, text = is_yaml(path), stored_text(path)
    if not yaml and len(text) >= LARGE:
        _refuse_early(text, str(path))
    data = (parse_yaml if yaml else parse_json)(text, where=str(path))
    if not isinstance(data, dict):
        raise _not_ours(str(path), f"its top is a {type(data).__name__}")
    return data


def _refuse_early(text: str, where: str) -> None:
    """Refuse JSON that is no mapping, or that has no document's telling keys anywhere."""
    if re.match(r"\s*\[", text):
        raise _not_ours(where, "its top is a list")
    telling = sorted(key for keys in _TELLING.values() for key in keys)
    there = {key for key in telling if f'"{key}"' in text}
    if "\\u" not in text and not any(keys <= there for keys in _TELLING.values()):
        raise _not_ours(where, f"it lacks the keys {', '.join(telling)}")


def _not_ours(where: str, by: str) -> InputError:
    return InputError(
        "is none of Placewright's documents",
        where=where,
        by=by,
        hint="see `placewright schema`; published formats need their name, as in dag:FILE.json",
    )


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
            plan = data.get("plan")
            moves = kind == "plan" and isinstance(plan, dict) and "moves" in plan
            return "samples plan" if moves else kind
    raise _not_ours(where, f"its keys: {', '.join(list(data)[:8]) or 'none'}")
