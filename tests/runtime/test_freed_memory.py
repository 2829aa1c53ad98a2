"""Freed memory stays with the process, where the C library can be asked for it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from placewright.runtime.executor import keep_freed_memory

FAULTS = (
    "import resource, sys\n"
    "from placewright.runtime.executor import keep_freed_memory\n"
    "if sys.argv[1] != 'plain': keep_freed_memory()\n"
    "if sys.argv[1] == 'give back': keep_freed_memory(keep=False)\n"
    "def step():\n"
    "    return len(bytearray(1 << 24))\n"
    "step()\n"
    "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
    "for _ in range(8): step()\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_freed_is_used_again_without_page_faults() -> None:
    """Eight activations of 16 MiB one after another: 4,096 pages each, or next to none.

    The process may change its mind.
    """
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], text=True))
        for how in ("keep", "plain", "give back")
    }
    assert faults["keep"] < 0.1 * faults["plain"]
    assert faults["give back"] > 0.9 * faults["plain"]


def test_other_c_libraries_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be opened, and one that knows nothing of it."""

    def absent(name: object) -> object:
        raise OSError("no such library")

    for library in (absent, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        keep_freed_memory()
