"""Whose a folder is, from which code is loaded or what others wrote would be executed."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_to_others(folder: str | Path) -> str:
    """Why another user may have put files into a folder, empty where none may.

    It is another's, all may write to it, or it is in a folder that another has made in one of all
    users: he may put a second one of its name there at any time. What root owns is this user's.
    """
    path, others = Path(os.path.realpath(folder)), ""
    for each in (path, *path.parents):
        status = each.stat()
        for_all = bool(status.st_mode & stat.S_IWOTH)
        if for_all and (others or each == path):
            return others or f"all users may write to {each}"
        if not for_all and status.st_uid not in (0, os.geteuid()):
            others = others or f"{each} belongs to user {status.st_uid}"
            if each == path:
                return others
    return ""
