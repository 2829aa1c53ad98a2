"""Recognition of files by their keys; large foreign files are not parsed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placewright.cli import documents
from placewright.cli.documents import document_kind, read_document
from placewright.errors import InputError


def kept(folder: Path, text: str) -> Path:
    """A file with that text."""
    path = folder / "some.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("data", [[1, 2], {"things": 1}, {"things": {"plan_": "plans"}}])
def test_what_is_not_ours_is_refused_with_and_without_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: object
) -> None:
    """A large file need not even be JSON to be refused."""
    for text, large in ((json.dumps(data), documents.LARGE), (json.dumps(data)[:-1], 0)):
        monkeypatch.setattr(documents, "LARGE", large)
        with pytest.raises(InputError, match="none of Placewright's documents"):
            document_kind(kept(tmp_path, text))


@pytest.mark.parametrize("text", ['{"x": 1, "compute_s": []}', r'{"compute\u005fs": []}'])
def test_what_is_ours_is_parsed_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Wherever its telling key stands, and however it is written."""
    monkeypatch.setattr(documents, "LARGE", 0)
    path = kept(tmp_path, text)
    assert read_document(path) == json.loads(text)
    assert document_kind(path) == "problem"
