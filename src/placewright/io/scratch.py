"""Folders for what is needed only while a run lasts: weights on their way, a meeting point.

A process that is killed cannot remove its own. Each folder holds a lock that ends with the process,
however that ends, and the next folder's maker removes those whose lock is free. One folder lasts as
long as its process. In it are the files of `multiprocessing` (the fork server's socket), and what
children and libraries would otherwise put into the temporary folder of all users, under a name that
others can foresee.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import current_process
from pathlib import Path
from typing import IO, Any

from placewright.errors import RunError

PREFIX = "placewright-run-"
LOCK = "lock"

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

SHORT = "/tmp"

HALF_MADE_S = 3600.0
"""A folder without a lock is being made or removed; one that is older was broken off."""

TRIES, TRY_S = 10, 0.05
"""How often, and how far apart in seconds, the removal of a folder is tried."""


def no_room(what: str, folder: str, error: OSError) -> RunError:
    """The error of a file that a temporary folder did not take."""
    return RunError(
        f"{what}: {error.strerror or error}",
        where=folder,
        hint="free space there, or name another temporary folder in TMPDIR",
    )


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
_of_process: list[Scratch] = []
_environment = threading.RLock()


def remove_all() -> None:
    """Remove every folder of this process, which is about to end without Python's own clean-up."""
    for scratch in list(_living):
        scratch.cleanup()


def scratch_for_sockets(longest: str) -> Scratch:
    """A `Scratch` where a Unix socket called `longest` has a path that the system takes.

    It is in ``/tmp`` where the temporary folder's path is too long for that.
    """
    path = os.path.join(tempfile.gettempdir(), f"{PREFIX}12345678", longest)
    return Scratch(None if len(os.fsencode(path)) <= SOCKET_PATH_BYTES else SHORT)


def folder_of_process() -> str:
    """A folder of this process alone, which stays until the process ends."""
    with _environment:
        if not _of_process:
            _of_process.append(scratch_for_sockets("listener-12345678"))
        return _of_process[0].name


@contextmanager
def private_temporary_files() -> Iterator[None]:
    """Give what is loaded or started meanwhile a temporary folder that only this process uses.

    Libraries open files of a known name in the temporary folder, where another user may have put a
    link of that name.
    """
    tempfile.gettempdir()  # Python reads the variable once: its own folder stays what it is
    with _environment:  # another thread would take the private folder for the former one
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = folder_of_process()
        try:
            yield
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def keep_multiprocessing_here() -> None:
    """Let the files that `multiprocessing` makes for this process lie in its `folder_of_process`.

    Nothing changes where it has made some already, or has been given a folder by its parent.
    """
    config: dict[str, Any] = current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        config["tempdir"] = folder_of_process()


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
    interrupted: list[KeyboardInterrupt] = []
    while len(interrupted) < TRIES:
        try:
            _remove(folder)
            break
        except KeyboardInterrupt as error:  # torchrun repeats each Ctrl-C; this is not called again
            interrupted.append(error)
    for each in lock:
        each.close()
    if interrupted:
        raise interrupted[0]


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
