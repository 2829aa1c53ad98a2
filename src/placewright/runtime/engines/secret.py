"""The secret that the processes of one run under torchrun share.

One machine: rank 0 makes one for the run and writes it into a file of mode 600, in a folder of
mode 700. Several machines: the user gives the same one to each, in the launcher's environment or
in a file that only he can read. It is never sent anywhere.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from placewright.errors import InputError

SECRET_VARIABLE = "PLACEWRIGHT_SECRET"
FILE_VARIABLE = "PLACEWRIGHT_SECRET_FILE"

MAKE_ONE = "python -c 'import secrets; print(secrets.token_hex(32))'"

LEAST_CHARACTERS = 32
"""Whoever hears a proof can try all shorter ones."""

_MOST_BYTES = 4096


def given_secret() -> bytes | None:
    """What the user has given in the environment, if anything.

    Raises
    ------
    InputError
        It is too short, or others can read its file.
    """
    if text := os.environ.get(SECRET_VARIABLE, "").strip():
        return _long_enough(text.encode(), SECRET_VARIABLE)
    if path := os.environ.get(FILE_VARIABLE, ""):
        return read_secret(Path(path))
    return None


def secret_needed() -> InputError:
    """The error of a run on several machines without a given secret."""
    return InputError(
        "a run on several machines needs a secret, by which its processes know each other",
        where="--engine torchrun",
        by=f"neither {SECRET_VARIABLE} nor {FILE_VARIABLE} is set",
        hint=f"set {SECRET_VARIABLE} to the same value on every machine before torchrun starts; "
        f"{MAKE_ONE} makes one. Or write it into a file of mode 600 that every machine has, and "
        f"name that in {FILE_VARIABLE}",
    )


def wrong_secret(rank: str) -> InputError:
    """The error of a process that rank 0 does not take for one of its run."""
    return InputError(
        "this process and rank 0 do not have the same secret",
        where=f"rank {rank}",
        hint=f"give {SECRET_VARIABLE} (or the file that {FILE_VARIABLE} names) the same value on "
        "every machine",
    )


def write_secret(folder: Path) -> Path:
    """A new secret in a new file of the folder, which only this user can read."""
    path = folder / "secret"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def read_secret(path: Path) -> bytes:
    """The secret in a file that nobody else can have written or can read.

    Raises
    ------
    InputError
        It is not there, belongs to another user, or others may read or write it.
    """
    try:
        # Somebody else may have put a pipe there, on which an ordinary open would wait.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError("cannot read the secret", where=str(path), by=str(error)) from None
    try:
        _refuse_shared(os.fstat(handle), path)
        return _long_enough(os.read(handle, _MOST_BYTES).strip(), str(path))
    finally:
        os.close(handle)


def _refuse_shared(status: os.stat_result, path: Path) -> None:
    """Raise where another user may have written the file or may read it."""
    if not stat.S_ISREG(status.st_mode):
        raise InputError("the secret must be in a file", where=str(path))
    if status.st_uid != os.geteuid():
        raise InputError(
            "the file of the secret belongs to another user",
            where=str(path),
            by=f"user {status.st_uid}, not {os.geteuid()}",
            hint="somebody else may have written it: make one of your own",
        )
    if status.st_mode & 0o077:
        raise InputError(
            "others may read or write the file of the secret",
            where=str(path),
            by=f"mode {stat.S_IMODE(status.st_mode):o}",
            hint=f"chmod 600 {path}, after giving it a new secret: {MAKE_ONE} makes one",
        )


def _long_enough(secret: bytes, where: str) -> bytes:
    if len(secret) < LEAST_CHARACTERS:
        raise InputError(
            "the secret is too short",
            where=where,
            by=f"{len(secret)} characters, at least {LEAST_CHARACTERS}",
            hint=f"{MAKE_ONE} makes one",
        )
    return secret
