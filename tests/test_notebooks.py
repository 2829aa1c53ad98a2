"""The notebooks of the documentation run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a folder of its own, without an error in any cell."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()


def test_all_six_are_there_and_listed() -> None:
    """The page of the notebooks names each of them."""
    page = (FOLDER.parent / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6
    assert not [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in page]
