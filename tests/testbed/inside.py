"""Run Python code in a process inside a testbed; the code can use `handle`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from placewright.testbed import NodeHandle
from tests.processes import output_of

_ENTER = (
    "import os, socket, sys, time; from placewright.testbed.probe import handle_from_json; "
    "handle = handle_from_json(sys.argv[1]); handle.enter()\n"
)


def start(handle: NodeHandle, code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `code` as a process of the handle; `sys.argv[2:]` are the arguments."""
    words = [sys.executable, "-c", _ENTER + code, json.dumps(asdict(handle)), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(handle: NodeHandle, code: str, *arguments: object) -> str:
    """Start `code`, wait for it and return what it printed."""
    return output_of(start(handle, code, *arguments)).strip()
