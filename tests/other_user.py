"""Run a script as another user of this machine, to test what that user can reach.

Needs root, which alone can change the user. Python may lie in a folder that only root can read:
the script's imports come before the change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UID = 1001

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

_AS_OTHER_USER = f"""
import encodings.idna, hashlib, hmac, os, pickle, socket, struct, sys, time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
{{imports}}
os.setgroups([])
os.setgid({UID})
os.setuid({UID})
os.chdir("/")

class Evil:
    def __reduce__(self):
        return os.system, ("id > " + MARK,)

MARK, PAIRS = sys.argv[1], [a.rpartition(":") for a in sys.argv[2:]]
ADDRESSES = [(host, int(port)) for host, _, port in PAIRS]
"""


def run_as_other_user(
    script: str, mark: Path, addresses: list[tuple[str, int]], imports: str = ""
) -> subprocess.Popen[str]:
    """Start a process that runs `script` as user `UID`.

    Parameters
    ----------
    script
        It can use ``ADDRESSES`` and ``Evil``, whose pickle creates `mark` where it is loaded.
    """
    where = [f"{host}:{port}" for host, port in addresses]
    return subprocess.Popen(
        [sys.executable, "-c", _AS_OTHER_USER.format(imports=imports) + script, str(mark), *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def nothing_executed(mark: Path) -> bool:
    """Whether no process has loaded the pickle that the other user sent."""
    return not mark.exists()
