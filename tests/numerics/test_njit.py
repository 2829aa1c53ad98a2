"""Number of specialisations that numba compiles, and stale caches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from placewright.numerics import njit
from placewright.numerics.njit import njit_internal, njit_no_refcount


@njit_internal
def double(x: int) -> int:
    """Called with numbers that stand in the code."""
    return 2 * x


@njit_no_refcount
def sums(x: int) -> int:
    """Calls `double` in three ways."""
    return double(3) + double(4) + double(x)


def test_numbers_in_a_call_are_of_one_type() -> None:
    """Neither 3 nor 4 has a compiled function of its own."""
    plain, caller = cast("Any", double), cast("Any", sums)
    assert sums(5) == 24
    caller.recompile()  # what a former run left on the disk would compile nothing
    assert len(plain.overloads) == 1


MODULE = """from typing import NamedTuple
from placewright.numerics.njit import njit_cached
class {name}(NamedTuple):
    x: int
@njit_cached
def more(a):
    return a.x + {add}
print(more({name}(1)))
"""


def test_a_cache_of_types_that_are_gone_counts_as_empty(tmp_path: Path) -> None:
    """A type of a cached function is renamed: the function is compiled again."""
    for name, add in (("Before", 1), ("After", 2)):
        (tmp_path / "kernel.py").write_text(MODULE.format(name=name, add=add))
        command = [sys.executable, "-c", "import kernel"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"{1 + add}\n"
    assert list((tmp_path / "__pycache__").glob("*.nbi"))


def test_an_edit_of_what_a_compiled_file_imports_empties_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants of imported files count, and files that imported kernels import."""
    monkeypatch.setattr(njit, "_PACKAGE", tmp_path)
    digest = njit._digest.__wrapped__
    source = tmp_path / "a.py"
    source.write_text("from placewright.b import kernel\n")
    (tmp_path / "b.py").write_text("from placewright.c import ONE\nnjit\n")
    (tmp_path / "c.py").write_text("ONE = 1\nfrom placewright.d import TWO\n")
    (tmp_path / "d.py").write_text("TWO = 2\n")
    before = digest(source)
    (tmp_path / "d.py").write_text("TWO = 3\n")
    assert digest(source) == before
    (tmp_path / "c.py").write_text("ONE = 2\n")
    assert digest(source) != before
