"""What a testbed needs of the machine, and what to do where it has not got it."""

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
    """What keeps this machine from making testbeds, ``None`` if nothing does."""
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
    """Go on only where testbeds can be made.

    Raises
    ------
    UnsupportedError
        Says what is missing and how to do without.
    """
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
