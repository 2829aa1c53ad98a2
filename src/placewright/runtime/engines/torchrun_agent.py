"""The agent: what every process that torchrun has started does for the coordinator.

    torchrun ---- rank 0 ---- coordinator: captures, plans, gives orders
         |            `------ agent ---- worker of device 0   (a child process)
         `------- rank 1 ---- agent ---- worker of device 1   (a child process)

Rank 0 is the coordinator. Every rank, rank 0 too, has an agent, which starts the device's worker as
a child when a session begins and reports how it ended. So the coordinator and a worker never share
an interpreter, a worker may die without torchrun ending the whole job, and sessions may follow one
another. Agents and workers connect to the coordinator, whose address is in torchrun's store.
Orders are the same as on one machine, through
sockets instead of pipes. Between coordinator and agent:

    coordinator -> agent    WorkerSpec           start this worker
                            None                 end the worker, if there is one
    agent -> coordinator    ("died", exit code)  the worker has ended by itself
                            ("ended", None)      the worker was ended as asked

**How they find rank 0, and the secret that they share.** Every user of the machine, and every
machine that its interfaces lead to, can reach the port of torchrun's store and change what is in
it. So the store holds what anyone may know:

    port    where rank 0 listens
    run     on one machine, the eight digits that end the name of rank 0's folder

The secret: on one machine rank 0 makes one for the run and writes it into a file:

    TMPDIR/placewright-run-RUN/     a folder (no link) of this user with mode 700
                      secret        a file (no link) of this user with mode 600: 64 hex digits

Among several machines the user gives the same one to each, in the launcher's environment or in a
file that only that user can read. It is never sent anywhere.

A change of the store can keep a run from starting, and that is all. It names no file: it chooses
among folders of this name, which only this user's processes make, and in which others cannot write.
What is proved is the secret and the port of the run's store: no process of another run is let in.
A proof is good for the one port that it was made for (see `placewright.runtime.connections`).
"""

from __future__ import annotations

import atexit
import hmac
import os
import re
import secrets
import signal
import socket
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.errors import InputError, RunError
from placewright.io.arguments import environment_number
from placewright.io.scratch import PREFIX, remove_all
from placewright.runtime import limits
from placewright.runtime.connections import LOOPBACK, AuthenticatedListener, Channel, connect, wait
from placewright.runtime.engines.process import WorkerProcess, end_fork_server
from placewright.runtime.host import Host
from placewright.runtime.program import CONTROL, codec_of
from placewright.runtime.specs import WorkerSpec


def is_coordinator() -> bool:
    """Whether this process is torchrun's rank 0, or none of torchrun's."""
    return "RANK" not in os.environ or given_number("RANK") == 0


def given_number(name: str, most: int = 1 << 20) -> int:
    """A number that torchrun has put into the environment.

    Raises `InputError`: there is another value, or none.
    """
    return environment_number(name, most, "start it by torchrun, which sets it, or unset it")


def end_with_torchrun() -> None:
    """Get a SIGTERM when torchrun itself, our parent, is gone: one that was killed sends none.

    A SIGKILL follows where that does not help: a wait for torchrun's store answers no signal.
    What torchrun leaves in the temporary folder is removed when this process ends.
    """
    atexit.register(remove_log_folders)
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent and not _is_init(parent):
            time.sleep(limits.LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(limits.patience(limits.END_S))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def _is_init(pid: int) -> bool:
    """Whether it adopts orphans: torchrun was gone before we looked for the first time.

    In a container torchrun itself may be the first process.
    """
    with suppress(OSError):
        return pid == 1 and b"torch" not in Path("/proc/1/cmdline").read_bytes()
    return False


def served_torchrun(engine: object) -> bool:
    """Whether this process is one of torchrun's that only serve; if so it did, until the end."""
    if engine != "torchrun" or is_coordinator():
        return False
    serve()
    return True


def serve() -> None:
    """Be this rank's agent until the coordinator is gone."""
    end_with_torchrun()
    # Python's own way out takes seconds once torch is loaded. A worker ends with its lifeline.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    port, secret = find_coordinator()
    # From here on rank 0 gets Ctrl-C, decides what it ends, and ends us. Before, it does not know
    # us: torchrun, which ends the run with Ctrl-C, would wait for us for 30 s.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_agent(port, secret)


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process at once, by the exit code of the signal."""
    end_fork_server()
    remove_all()
    remove_log_folders()
    os._exit(128 + number)


def remove_log_folders() -> None:
    """Remove the folders that torchrun has made for logs of this process, where they are empty.

    torchrun never does. They are ``torchelastic_RANDOM/RUN_RANDOM/attempt_0/LOCAL_RANK`` in the
    temporary folder; the last of its processes removes the outer ones.
    """
    own = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parent
    folders = [own, *own.parents][:4]
    if len(folders) == 4 and folders[3].name.startswith("torchelastic_"):
        with suppress(OSError):
            for folder in folders:
                folder.rmdir()


def run_agent(port: int, secret: bytes) -> None:
    """Start and end workers as the coordinator asks, until it is gone."""
    rank = given_number("RANK")
    worker: WorkerProcess | None = None
    stopped_s = 0.0
    with suppress(EOFError, OSError):
        coordinator = call_coordinator(port, secret, (rank, Host.here()))
        # Closed by the end of this process and by nothing before: Python's way out takes seconds,
        # and one that is stopped in these keeps torchrun from ending.
        os.dup(coordinator.fileno())
        while True:
            ends = [coordinator, *([worker.sentinel] if worker is not None else [])]
            ready = wait(ends, timeout=None if worker is None else limits.LOOK_S)
            stopped_s = stopped_s + limits.LOOK_S if worker is not None and worker.stopped else 0.0
            if coordinator in ready:
                worker = _carry_out(coordinator.recv(), worker, coordinator, port, secret)
            elif worker is not None and ready:
                coordinator.send(("died", worker.exit_code(patience_s=5.0)))
                worker = None
            elif worker is not None and stopped_s > limits.patience(limits.STOPPED_S):
                worker.kill()  # the coordinator cannot see that it is stopped, but that it has died
    if worker is not None:
        worker.end()


def _carry_out(
    spec: WorkerSpec | None,
    worker: WorkerProcess | None,
    coordinator: Channel,
    port: int,
    secret: bytes,
) -> WorkerProcess | None:
    """Start a worker, or end the one that is there where `spec` is ``None``."""
    if spec is not None:
        # The agent makes the connection, with the secret that the worker needs not know, and hands
        # it on.
        orders = call_coordinator(port, secret, (spec.session, spec.rank))
        return WorkerProcess(spec, replace(orders, codec=codec_of(spec.program)))
    if worker is not None:
        worker.end()
    coordinator.send(("ended", None))
    return None


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
    """Torchrun's store, as far as it is ours.

    Raises `InputError`: the environment does not say where it is.
    """
    given_number("MASTER_PORT", 0xFFFF)
    if not os.environ.get("MASTER_ADDR"):
        hint = "start the command by torchrun, or unset its variables"
        raise InputError("is not set", where="MASTER_ADDR", hint=hint)
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
    secret = _of_this_run(secret)
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
    return int(port), _of_this_run(secret)


def _of_this_run(secret: bytes) -> bytes:
    """What the processes of this run alone make of the secret: its store has a port of its own.

    The user's other runs have the same secret among several machines, and on one machine a folder
    that every rank may read. With the bare secret, an attacker who writes into one run's store what
    stands in another one's would have ranks of the one serve the other.
    """
    run = f"placewright run|{os.environ.get('MASTER_PORT', '')}"
    return hmac.digest(secret, run.encode(), "sha256")


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
