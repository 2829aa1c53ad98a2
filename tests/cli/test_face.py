"""How a verb speaks."""

from __future__ import annotations

import warnings

import pytest

from placewright.cli.face import Face


class Told(UserWarning):
    """One of ours."""


def test_our_warnings_are_notes_and_others_stay_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was told inside is one line on stderr, and nothing with -q."""
    with pytest.warns(RuntimeWarning, match="not ours"):
        _tell(Face())
    assert capsys.readouterr().err == "warning: it was busy\n"
    with pytest.warns(RuntimeWarning, match="not ours"):
        _tell(Face(quiet=True))
    assert capsys.readouterr().err == ""


def _tell(face: Face) -> None:
    with face.noted(Told):
        warnings.warn("it was busy", Told, stacklevel=1)
        warnings.warn("not ours", RuntimeWarning, stacklevel=1)
