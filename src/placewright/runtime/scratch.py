"""Folders for what is needed only while a run lasts: weights on their way, a meeting point.

A process that is killed cannot remove its own. Each folder holds a lock that ends with the process,
however that ends, and the next folder's maker removes those whose lock is free. The temporary
folder of `multiprocessing` (the fork server's socket) is one of them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import current_process
from pathlib import Path
from typing import IO, Any

PREFIX = "placewright-run-"
LOCK = "lock"

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

SHORT = "/tmp"

HALF_MADE_S = 3600.0
"""A folder without a lock is being made or removed; one that is older was broken off."""

TRIES, TRY_S = 10, 0.05
"""How often, and how far apart in seconds, the removal of a folder is tried."""


class Scratch:
    """A temporary folder that does not outlive a killed process for long; a context manager.

    `parent`: where it is made; the temporary folder by default.
    `name`: its path; what ``with`` gives.
    """

    def __init__(self, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        sweep(parent)
        folder, lock = Path(parent, PREFIX + secrets.token_hex(4)), list[IO[str]]()
        self.name = str(folder)
        # Before the folder is there: Ctrl-C may come between any two of these lines.
        self._end = weakref.finalize(self, _end, folder, lock, os.getpid())
        try:
            folder.mkdir(mode=0o700)
        except OSError:  # it is somebody else's, or cannot be made
            self._end.detach()
            raise
        lock.append(_held(folder))
        _living.add(self)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exception: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it; twice is fine. A forked copy of the process that made it leaves it alone."""
        self._end()


_living: weakref.WeakSet[Scratch] = weakref.WeakSet()
_of_multiprocessing: list[Scratch] = []


def remove_all() -> None:
    """Remove every folder of this process, which is about to end without Python's own clean-up."""
    for scratch in list(_living):
        scratch.cleanup()


def keep_multiprocessing_here() -> None:
    """Let the files that `multiprocessing` makes for this process lie in a `Scratch`.

    They stay until the process ends. Nothing changes where it has made some already, or has been
    given a folder by its parent. Where the temporary folder's path is too long for a socket, they
    lie in ``/tmp``.
    """
    config: dict[str, Any] = current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        longest = os.path.join(tempfile.gettempdir(), f"{PREFIX}12345678", "listener-12345678")
        fits = len(os.fsencode(longest)) <= SOCKET_PATH_BYTES
        _of_multiprocessing.append(Scratch(None if fits else SHORT))
        config["tempdir"] = _of_multiprocessing[-1].name


def sweep(parent: str | None = None) -> None:
    """Remove this user's folders of processes that have ended without doing so.

    `parent`: where they are looked for; the temporary folder by default.
    """
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                _remove_abandoned(folder)


def _remove_abandoned(folder: Path) -> None:
    try:
        # Only where nobody holds it: its process has ended.
        with _locked(folder / LOCK):
            _remove(folder)
    except FileNotFoundError:
        if time.time() - folder.lstat().st_mtime > HALF_MADE_S:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock; an `OSError` where another process does."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _end(folder: Path, lock: Sequence[IO[str]], owner: int) -> None:
    if os.getpid() != owner:
        return
    try:
        _remove(folder)
    except KeyboardInterrupt:  # this is not called a second time
        _remove(folder)
        raise
    finally:
        for each in lock:
            each.close()


def _remove(folder: Path) -> None:
    """Again, for a moment, where a process that is just ending writes into it."""
    for _ in range(TRIES):
        _empty(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(TRY_S)


def _empty(folder: Path) -> None:
    """Remove all but the lock: a process killed meanwhile leaves a folder that can be swept."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)


def _held(folder: Path) -> IO[str]:
    """A lock that gets its name once it is held: no other process sees it free before."""
    draft = folder / (LOCK + ".new")
    lock = draft.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    draft.rename(folder / LOCK)
    return lock
