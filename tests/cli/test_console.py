"""How a verb speaks."""

from __future__ import annotations

import warnings

import pytest

from placewright.cli.console import Console


class TrainerOptions(UserWarning):
    """One of ours."""


def test_our_warnings_are_notes_and_others_stay_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was told inside is one line on stderr, and nothing with -q."""
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
