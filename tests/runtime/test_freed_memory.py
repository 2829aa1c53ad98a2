"""Freed memory stays with the process where the C library allows it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from placewright.runtime.executor import keep_freed_memory

FAULTS = (
    "import resource\n"
    "from threading import Thread\n"
    "from placewright.runtime.executor import keep_freed_memory\n"
    "from placewright.runtime.program import share_one_arena\n"
    "def step(): return [bytearray(1 << 24) for _ in range(5)]\n"
    "def faults():\n"
    "    step()\n"
    "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
    "    for _ in range(2): step()\n"
    "    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, flush=True)\n"
    "faults()\n"
    "keep_freed_memory()\n"
    "faults()\n"
    "share_one_arena()\n"
    "thread = Thread(target=faults)\n"
    "thread.start()\n"
    "thread.join()\n"
    "keep_freed_memory(keep=False)\n"
    "faults()\n"
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_freed_is_used_again_without_page_faults() -> None:
    """Five activations of 16 MiB at a time, twice: 4,096 pages each, or next to none.

    The process may change its mind. Threads do as it does.
    """
    printed = subprocess.check_output([sys.executable, "-c", FAULTS], text=True)
    plain, kept, in_thread, given_back = map(int, printed.split())
    assert kept < 0.1 * plain
    assert in_thread < 0.1 * plain
    assert given_back > 0.9 * plain


def test_other_c_libraries_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be opened, and one that knows nothing of it."""

    def absent(name: object) -> object:
        raise OSError("no such library")

    for library in (absent, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        keep_freed_memory()
