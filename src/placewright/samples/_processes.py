"""Where the nodes' processes come from: a forkserver that has loaded what they need."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

PRELOADED = ("torch", "placewright.samples._trainer", "placewright.samples._mover")
"""Loaded once, before the first process; a package that is not there is left out."""


def forkserver() -> Any:
    """The context that processes start from, in a few hundredths of a second each."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context
