"""Messages where no testbed can be made."""

from __future__ import annotations

import os
import shutil

import pytest

from placewright.errors import UnsupportedError
from placewright.testbed.requirements import require


def test_without_root_the_way_without_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four parts: what, where, by how much, what next."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedError) as refused:
        require()
    words = str(refused.value)
    assert "testbed: a testbed cannot be made here (it needs root, and this is user 1000)" in words
    assert "next: run it as root; without a testbed, `placewright operators run` emulates" in words


def test_a_missing_command_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ip`` comes with iproute2."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.raises(UnsupportedError, match="apt-get install iproute2"):
        require()
