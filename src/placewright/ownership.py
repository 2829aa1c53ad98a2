"""Whose a folder is, from which code is loaded or what others wrote would be executed."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

_ROOT = 0
"""Root's number, and its group's."""

_ACCESS_LIST = "system.posix_acl_access"


def open_to_others(folder: str | Path) -> str:
    """Why another user may have put files into a folder, empty where none may.

    It is another's, others may write to it, or it is in a folder that another has made in one of
    several users: he may put a second one of its name there at any time. What root owns is this
    user's, and so is what root's group may write to.
    """
    path, others = Path(os.path.realpath(folder)), ""
    for each in (path, *path.parents):
        status, writers = each.stat(), other_writers(each)
        if writers and (others or each == path):
            return others or f"{writers} may write to {each}"
        if not writers and status.st_uid not in (_ROOT, os.geteuid()):
            others = others or f"{each} belongs to user {status.st_uid}"
            if each == path:
                return others
    return ""


def other_writers(folder: Path) -> str:
    """Who else than its owner may make files in a folder; empty: nobody."""
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        return "all users"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    with suppress(OSError):  # a file system without such lists
        if _ACCESS_LIST in os.listxattr(folder):
            return "users of its access control list"
    return "" if _is_own(status.st_gid) else f"group {_group_name(status.st_gid)}"


def _is_own(group: int) -> bool:
    """Whether nobody but this user and root is in a group.

    Many systems give each user a group of his name, and let it write to all that he makes.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        found = grp.getgrgid(group)
    except KeyError:  # numbers without names, as in containers
        return group in (_ROOT, os.geteuid())
    return group == _ROOT or (found.gr_name == user and set(found.gr_mem) <= {user})


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
