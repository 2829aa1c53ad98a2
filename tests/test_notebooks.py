"""The notebooks of the documentation run from the first cell to the last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

EXECUTE = """
import os
import sys
from types import ModuleType
import nbformat
from IPython.core.interactiveshell import InteractiveShell

for number, path in enumerate(sys.argv[1:]):
    folder = f"folder-{number}"
    os.mkdir(folder)
    os.chdir(folder)
    shell = InteractiveShell(user_module=ModuleType("__main__"))
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()
    os.chdir("..")
    print("ran", path, flush=True)
"""
"""In a process of its own: its sockets do not go along with the forks of other tests."""


@pytest.mark.parametrize("part", [0, 1])
def test_the_notebooks_run(part: int, tmp_path: Path) -> None:
    """Each in a folder and with names of its own, without an error in any cell.

    Several in one process: most of what a short one takes is its imports.
    """
    paths = [str(path) for path in NOTEBOOKS[part::2]]
    done = subprocess.run(
        [sys.executable, "-P", "-c", EXECUTE, *paths],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    ran = [line[4:] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert (done.returncode, ran) == (0, paths), done.stdout[-2000:] + done.stderr[-4000:]


def test_all_seven_are_there_and_listed() -> None:
    """The page of the notebooks names each of them."""
    page = (FOLDER.parent / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 7
    assert not [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in page]
