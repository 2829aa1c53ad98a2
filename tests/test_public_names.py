"""What ``import placewright`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import placewright

HEAVY = ("torch", "numba", "numpy", "pydantic", "rich", "typer", "ortools", "yaml")


def test_all_names_exist_and_no_other_is_promised() -> None:
    """`__all__`, the lazy table and `dir` say the same."""
    assert set(placewright.__all__) == {*placewright._HOME, "__version__"}
    assert dir(placewright) == sorted(placewright.__all__)


@pytest.mark.parametrize("name", placewright.__all__)
def test_each_name_can_be_had(name: str) -> None:
    """Every promised name is really there and has a docstring."""
    value = getattr(placewright, name)
    assert isinstance(value, str) or value.__doc__


def test_verbs_are_functions_whatever_was_imported_before() -> None:
    """No module of the package shares its name with a verb."""
    code = (
        "import placewright, placewright.capturing.model, placewright.profiling.build\n"
        "import placewright.deployment.placed_model, placewright.planning.solving\n"
        "from placewright.planning.solving import solve\n"
        "for _ in range(2):\n"
        "    for verb in ('capture', 'compare', 'place', 'profile', 'run', 'solve'):\n"
        "        assert type(getattr(placewright, verb)).__name__ == 'function', verb\n"
        "assert placewright.solve is solve"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As with any module."""
    with pytest.raises(AttributeError, match="no attribute 'plaace'"):
        placewright.plaace  # noqa: B018


def test_import_is_light() -> None:
    """Nothing heavy is loaded before it is needed."""
    code = f"import sys, placewright; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
