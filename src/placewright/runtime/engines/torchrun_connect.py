"""How the processes of a run under torchrun find rank 0, and the secret that they share.

Every user of the machine, and every machine that its interfaces lead to, can reach the port of
torchrun's store and change what is in it. So the store holds what anyone may know:

    port    where rank 0 listens
    run     on one machine, the eight digits that end the name of rank 0's folder

The secret: on one machine rank 0 makes one for the run and writes it into a file:

    TMPDIR/placewright-run-RUN/     a folder (no link) of this user with mode 700
                      secret        a file (no link) of this user with mode 600: 64 hex digits

Among several machines the user gives the same one to each, in the launcher's environment or in a
file that only that user can read. It is never sent anywhere.

A change of the store can keep a run from starting, and that is all. It names no file: it chooses
among folders of this name, which only this user's processes make, and in which others cannot write.
A proof is good for the one port that it was made for (see `connections.authentication`).
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.errors import InputError, RunError
from placewright.runtime.connections.authentication import LOOPBACK, AuthenticatedListener, connect
from placewright.runtime.connections.channel import Channel
from placewright.runtime.program import CONTROL
from placewright.runtime.scratch import PREFIX

SECRET_VARIABLE = "PLACEWRIGHT_SECRET"
FILE_VARIABLE = "PLACEWRIGHT_SECRET_FILE"

MAKE_ONE = "python -c 'import secrets; print(secrets.token_hex(32))'"

LEAST_CHARACTERS = 32
"""With a recorded proof, all shorter ones could be tried."""

_MOST_BYTES = 4096

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

PORT_KEY, RUN_KEY = "port", "run"

SECRET_FILE = "secret"

_LOOK_S = 0.2
"""Between two looks for the coordinator, which profiles and plans before it wants workers."""

_CALL_S = 30.0
"""A coordinator that is busy with strangers is called again for so long."""


def on_one_machine() -> bool:
    """Whether torchrun has started all its processes here: then no other machine is listened to."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def store() -> Any:
    """Torchrun's store, as far as it is ours."""
    found, *_ = next(iter(rendezvous("env://")))
    return PrefixStore("placewright/coordinator", found)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise `RunError` where torchrun's store does not answer.

    The store ends with torchrun's agent on the machine of `MASTER_ADDR`.
    """
    try:
        yield
    except DistError as error:
        address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise RunError(
            "torchrun's store does not answer",
            where=address,
            by=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="torchrun's process on that machine has probably ended: see what it printed last, "
            "and start torchrun again",
        ) from None


class OpenRendezvousWarning(UserWarning):
    """Torchrun itself executes what others send it."""


@store_errors()
def warn_of_open_rendezvous() -> None:
    """Warn where torchrun's processes meet by ``c10d``: they unpickle a value that anyone may set.

    With the rendezvous ``static`` torchrun's own keys are in the store that workers are given, with
    others they are in another one.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return  # started by something else
    inner = store()
    while isinstance(inner, PrefixStore):
        inner = inner.underlying_store
    if not inner.check([f"{run}/torchelastic/role_info/0"]):
        warnings.warn(
            "torchrun was started without --master-port: until it ends, whoever reaches its store, "
            "any user of this machine say, can have it execute what they send (that is how "
            "PyTorch's rendezvous c10d works); start it with `torchrun --master-port 29500 ...`",
            OpenRendezvousWarning,
            stacklevel=2,
        )


@store_errors()
def listen_for_workers(folder: Path) -> tuple[AuthenticatedListener, bytes]:
    """Where rank 0 is called, and the secret, which goes into `folder` if none is given.

    Raises `InputError` where there are other machines, and no secret is given, or none that is
    one.
    """
    secret = known_secret()
    meeting = store()
    if secret is None:
        secret = write_secret(folder)
        meeting.set(RUN_KEY, folder.name.removeprefix(PREFIX))
    listener = AuthenticatedListener(_listening(), secret, CONTROL)
    # Last: who finds the port finds the folder with the secret as well.
    meeting.set(PORT_KEY, str(listener.port))
    return listener, secret


@store_errors()
def find_coordinator() -> tuple[int, bytes]:
    """Rank 0's port and the secret; waits until rank 0 listens.

    Raises `InputError` where there are other machines, and no secret is given; `RunError` where
    another process has changed the store.
    """
    secret = known_secret()
    meeting = store()
    while not meeting.check([PORT_KEY]):
        time.sleep(_LOOK_S)
    if secret is None:
        secret = _secret_of_run(bytes(meeting.get(RUN_KEY)))
    port = bytes(meeting.get(PORT_KEY))
    if not port.isdigit() or int(port) > 0xFFFF:
        raise _changed("rank 0's port", f"got {port[:20]!r}")
    return int(port), secret


def _changed(where: str, by: str) -> RunError:
    return RunError(
        "another process has changed torchrun's store",
        where=where,
        by=by,
        hint="start torchrun again, and keep other users away from the port of its store",
    )


def known_secret() -> bytes | None:
    """The secret that the user gives; ``None`` on one machine, where rank 0 makes one.

    Raises `InputError` where there are other machines, and none is given; or one that is too short
    or that others know.
    """
    secret = given_secret()
    if secret is None and not on_one_machine():
        raise InputError(
            "a run on several machines needs a secret, by which its processes know each other",
            where="--engine torchrun",
            by=f"neither {SECRET_VARIABLE} nor {FILE_VARIABLE} is set",
            hint=f"set {SECRET_VARIABLE} to the same value on every machine before torchrun "
            f"starts; {MAKE_ONE} makes one. Or write it into a file of mode 600 that every machine "
            f"has, and name that in {FILE_VARIABLE}",
        )
    return secret


def call_coordinator(port: int, secret: bytes, hello: Any) -> Channel:
    """A channel to the coordinator; both ends prove that they know the secret.

    Raises `OSError`, `EOFError`: the coordinator is gone.
    Raises `InputError`: it has another secret.
    """
    coordinator = LOOPBACK if on_one_machine() else os.environ["MASTER_ADDR"]
    deadline = time.monotonic() + _CALL_S
    while True:
        try:
            return connect((coordinator, port), secret, hello, codec=CONTROL)
        except AuthenticationError:
            raise InputError(
                "this process and rank 0 do not have the same secret",
                where=f"rank {os.environ.get('RANK', '?')}",
                hint=f"give {SECRET_VARIABLE} (or the file that {FILE_VARIABLE} names) the same "
                "value on every machine",
            ) from None
        # Nobody listens there any more: the coordinator is gone, and calling again is of no use.
        except ConnectionRefusedError:
            raise
        except (OSError, EOFError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def _listening() -> socket.socket:
    """A port on the interface that the others call, which is loopback where there are none."""
    try:
        return socket.create_server((_interface(), 0))
    except OSError:  # the name by which the others call is none of this machine's own
        return socket.create_server(("", 0))


def _interface() -> str:
    """The address of `MASTER_ADDR`; every interface where that is not known here."""
    if on_one_machine():
        return LOOPBACK
    name = os.environ["MASTER_ADDR"]
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return ""
    own_only = address.startswith("127.") and name not in ("localhost", address)
    return "" if own_only else address  # many hosts give their own name an address of loopback


def given_secret() -> bytes | None:
    """What the user has given in the environment, if anything.

    Raises `InputError` where it is too short, or others can read its file.
    """
    if text := os.environ.get(SECRET_VARIABLE, "").strip():
        return _long_enough(text.encode(), SECRET_VARIABLE)
    if path := os.environ.get(FILE_VARIABLE, ""):
        return read_secret(Path(path))
    return None


def write_secret(folder: Path) -> bytes:
    """Make a secret and write it into a new file of the folder, which only this user can read."""
    secret = secrets.token_hex(32).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(folder / SECRET_FILE, flags, 0o600), "wb") as file:
        file.write(secret)
    return secret


def _secret_of_run(run: bytes) -> bytes:
    """The secret in rank 0's folder; what the store says of it is believed of no other file.

    Raises `RunError` where that is not a folder of rank 0's, or holds no such secret.
    """
    if not re.fullmatch(rb"[0-9a-f]{8}", run):
        raise _changed("rank 0's folder", f"got {run[:40]!r}")
    path = Path(tempfile.gettempdir(), PREFIX + run.decode())
    try:
        with ExitStack() as opened:
            # No link is followed, and the file is looked for in the folder that was examined.
            folder = os.open(path, _READ | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            _refuse_shared(os.fstat(folder), path)
            file = os.open(SECRET_FILE, _READ, dir_fd=folder)
            opened.callback(os.close, file)
            _refuse_no_file(os.fstat(file), path / SECRET_FILE)
            _refuse_shared(os.fstat(file), path / SECRET_FILE)
            secret = os.read(file, _MOST_BYTES)
    except (OSError, InputError) as error:
        raise _changed(str(path), str(error).splitlines()[0]) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", secret):
        raise _changed(str(path / SECRET_FILE), "it does not hold 64 hexadecimal digits")
    return secret


def read_secret(path: Path) -> bytes:
    """The secret in a file that the user names, which no other user can have written or can read.

    Raises `InputError` where it is not there, belongs to another user, or others may read or write
    it.
    """
    try:
        # Another user may have put a pipe there, on which an ordinary open would wait.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError("cannot read the secret", where=str(path), by=str(error)) from None
    try:
        _refuse_no_file(os.fstat(handle), path)
        _refuse_shared(os.fstat(handle), path)
        return _long_enough(os.read(handle, _MOST_BYTES).strip(), str(path))
    finally:
        os.close(handle)


def _refuse_no_file(status: os.stat_result, path: Path) -> None:
    # Files of procfs, which others can fill, are regular ones of no size.
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        raise InputError("the secret must be in a file that is not empty", where=str(path))


def _refuse_shared(status: os.stat_result, path: Path) -> None:
    """Raise where another user may have written the file or folder, or may read it."""
    if status.st_uid != os.geteuid():
        raise InputError(
            "the file of the secret belongs to another user",
            where=str(path),
            by=f"user {status.st_uid}, not {os.geteuid()}",
            hint="another user may have written it: make one of your own",
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
