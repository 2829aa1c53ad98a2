"""Console output: warnings as notes on stderr."""

from __future__ import annotations

import warnings

import pytest

from placewright.cli.console import Console
from tests.cli.run_cli import run_cli


class TrainerOptions(UserWarning):
    """One of ours."""


def test_our_warnings_are_notes_and_others_stay_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A warning inside is one line on stderr, and nothing with -q."""
    with pytest.warns(RuntimeWarning, match="not ours"):
        _tell(Console())
    assert capsys.readouterr().err == "warning: it was busy\n"
    with pytest.warns(RuntimeWarning, match="not ours"):
        _tell(Console(quiet=True))
    assert capsys.readouterr().err == ""


def _tell(console: Console) -> None:
    with console.noted(TrainerOptions):
        warnings.warn("it was busy", TrainerOptions, stacklevel=1)
        warnings.warn("not ours", RuntimeWarning, stacklevel=1)


def test_warnings_before_an_error_are_notes_too(capsys: pytest.CaptureFixture[str]) -> None:
    """They may say why it failed."""
    with pytest.raises(ValueError, match="failed"):
        _fail(Console())
    assert capsys.readouterr().err == "warning: it was busy\n"


def _fail(console: Console) -> None:
    with console.noted(TrainerOptions):
        warnings.warn("it was busy", TrainerOptions, stacklevel=1)
        raise ValueError("failed")


def test_names_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Of files that may come from anybody: titles, colours and directions are written out."""
    console, evil = Console(), "a\x1b]0;owned\x07\u202eb\x9b31m"
    console.note(evil)
    console.show(dict, lambda: f"{evil}\tc\n{evil}")
    shown = r"a\x1b]0;owned\x07\u202eb\x9b31m"
    output = capsys.readouterr()
    assert (output.err, output.out) == (f"{shown}\n", f"{shown}\tc\n{shown}\n")
    assert run_cli(capsys, "show", evil).err.startswith(f"error: {shown}")
