"""The notebooks of the documentation run from the first cell to the last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {"metadata": {"path": sys.argv[2]}}
NotebookClient(notebook, timeout=600, resources=where).execute()
"""
"""In a process of its own: its sockets do not go along with the forks of other tests."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a folder of its own, without an error in any cell."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", EXECUTE, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_all_seven_are_there_and_listed() -> None:
    """The page of the notebooks names each of them."""
    page = (FOLDER.parent / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 7
    assert not [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in page]
