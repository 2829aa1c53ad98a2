"""Console output: warnings as notes on stderr."""

from __future__ import annotations

import warnings

import pytest

from placewright.cli.console import Console


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
