"""Requirements of a testbed on the machine, and the remedy for each that is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from placewright.errors import UnsupportedError

_WITHOUT = (
    "without a testbed, `placewright operators run` emulates slower devices and links by waiting"
)


def missing() -> str | None:
    """The first requirement that this machine misses, ``None`` if it has all."""
    if not sys.platform.startswith("linux"):
        return f"it runs on Linux, not on {sys.platform}"
    if os.geteuid() != 0:
        return f"it needs root, and this is user {os.geteuid()}"
    for command in ("ip", "setsid"):
        if shutil.which(command) is None:
            return f"the command `{command}` is not installed"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is not there"
    return None


def require() -> None:
    """Raise `UnsupportedError` where testbeds cannot be made; names what is missing."""
    reason = missing()
    if reason is not None:
        raise UnsupportedError(
            "a testbed cannot be made here", where="testbed", by=reason, hint=_remedy(reason)
        )


def _remedy(reason: str) -> str:
    if "root" in reason:
        return f"run it as root; {_WITHOUT}"
    if "command" in reason:
        return f"apt-get install iproute2 util-linux; {_WITHOUT}"
    return _WITHOUT
