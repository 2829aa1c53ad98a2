"""What tests let a process inside a testbed do: Python code with `handle` at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from placewright.testbed import NodeHandle

_ENTER = (
    "import os, socket, sys, time; from placewright.testbed.probe import handle_from_json; "
    "handle = handle_from_json(sys.argv[1]); handle.enter()\n"
)


def start(handle: NodeHandle, code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `code` as a process of the handle; `sys.argv[2:]` are the arguments."""
    words = [sys.executable, "-c", _ENTER + code, json.dumps(asdict(handle)), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have ended well."""
    out, words = process.communicate(timeout=60)
    assert process.returncode == 0, words
    return out.strip()


def run(handle: NodeHandle, code: str, *arguments: object) -> str:
    """Both."""
    return output_of(start(handle, code, *arguments))
