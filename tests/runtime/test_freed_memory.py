"""Freed memory stays with the process where the C library allows it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from placewright.runtime.memory import keep_freed_memory

FAULTS = (
    "import resource\n"
    "from threading import Thread\n"
    "from placewright.runtime.memory import keep_freed_memory\n"
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
)

HOLES = (
    "import math, sys\n"
    "import torch\n"
    "from placewright.runtime.memory import MemoryUse, keep_freed_memory\n"
    "keep_freed_memory()\n"
    "memory = MemoryUse(['cpu'])\n"
    "memory.begin()\n"
    "memory.limit_bytes = float(sys.argv[1])\n"
    "ones = lambda mebibytes: torch.ones(mebibytes << 18)\n"
    "pieces = [ones(16) for _ in range(16)]\n"
    "del pieces[::2]\n"
    "pieces += [memory.spared(ones, 32 << 20)(32) for _ in range(4)]\n"
    "print(memory.peaks()[0] >> 20)\n"
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_freed_is_used_again_without_page_faults() -> None:
    """Five activations of 16 MiB at a time, twice: 4,096 pages each, or next to none.

    Threads do as their process does.
    """
    printed = subprocess.check_output([sys.executable, "-c", FAULTS], text=True)
    plain, kept, in_thread = map(int, printed.split())
    assert kept < 0.1 * plain
    assert in_thread < 0.1 * plain


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_free_pieces_between_used_ones_are_given_back_at_the_limit() -> None:
    """128 MiB in use, as much free between them in pieces too small for the 128 MiB that follow."""
    kept, limited = (
        int(subprocess.check_output([sys.executable, "-c", HOLES, limit], text=True))
        for limit in ("inf", str(320 << 20))
    )
    assert 380 < kept < 400
    assert 250 < limited < 325


def test_other_c_libraries_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be opened, and one that knows nothing of it."""

    def absent(name: object) -> object:
        raise OSError("no such library")

    for library in (absent, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        keep_freed_memory()
