"""TCP settings of a namespace, on imitated kernel folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from placewright.testbed import namespaces


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """One that was started with ``ipv6.disable=1``."""
    (tmp_path / "ipv4").mkdir()
    return tmp_path


def refused(kernel: Path) -> bool:
    """Whether the shell says that something went wrong."""
    return bool(subprocess.run(["sh", "-c", namespaces.settings(kernel)], check=False).returncode)


def test_ipv6_is_switched_off_where_there_is_any(kernel: Path) -> None:
    """A kernel without it is fine, and gets the rest."""
    assert not refused(kernel)
    assert (kernel / "ipv4/tcp_ecn").read_text() == "1\n"
    assert not (kernel / "ipv6").exists()
    switch = kernel / "ipv6/conf/all/disable_ipv6"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    assert not refused(kernel)
    assert switch.read_text() == "1\n"


@pytest.mark.parametrize("setting", ["tcp_ecn", "tcp_slow_start_after_idle", "tcp_wmem"])
def test_no_refusal_goes_unnoticed(kernel: Path, setting: str) -> None:
    """Whichever of them it is, and nothing is switched off for it."""
    (kernel / "ipv4" / setting).mkdir()
    switch = kernel / "ipv6/conf/all/disable_ipv6"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    assert refused(kernel)
    assert switch.read_text() == "0\n"
