"""How the processes of a run under torchrun find rank 0, and it them.

Whoever reaches the port of torchrun's store can read and change what is in it: every user of the
machine, and every machine that its interfaces lead to. So the store holds what anyone may know:

    port    where rank 0 listens
    file    on one machine, the path of the file with the secret (see `secret`)

Who changes it can keep a run from starting, and that is all: the file must belong to this user,
and a proof is good for the one port that it was made for (see `connections.authentication`).
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.errors import RunError
from placewright.runtime.connections.authentication import LOOPBACK, Listener, connect
from placewright.runtime.connections.channel import Channel
from placewright.runtime.engines.secret import (
    given_secret,
    read_secret,
    secret_needed,
    write_secret,
    wrong_secret,
)
from placewright.runtime.orders import ORDERS

PORT_KEY, FILE_KEY = "port", "file"

_LOOK_S = 0.2
"""Between two looks for the lead, which profiles and plans before it wants workers."""

_CALL_S = 30.0
"""A lead that is busy with strangers is called again for so long."""


def on_one_machine() -> bool:
    """Whether torchrun has started all its processes here: then nobody else is listened to."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def store() -> Any:
    """Torchrun's store, as far as it is ours."""
    found, *_ = next(iter(rendezvous("env://")))
    return PrefixStore("placewright/lead", found)


class OpenRendezvousWarning(UserWarning):
    """Torchrun itself executes what others send it."""


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


def listen(folder: Path) -> tuple[Listener, bytes]:
    """Where rank 0 is called, and the secret, which goes into `folder` if none is given.

    Raises
    ------
    InputError
        There are other machines, and no secret is given, or none that is one.
    """
    secret = known_secret()
    meeting = store()
    if secret is None:
        path = write_secret(folder)
        secret = read_secret(path)
        meeting.set(FILE_KEY, str(path))
    listener = Listener(_listening(), secret, ORDERS)
    meeting.set(PORT_KEY, str(listener.port))
    return listener, secret


def find() -> tuple[int, bytes]:
    """Rank 0's port and the secret; waits until rank 0 listens.

    Raises
    ------
    InputError
        There are other machines, and no secret is given; or the file of rank 0 is not its.
    """
    secret = known_secret()
    meeting = store()
    while not meeting.check([PORT_KEY]):
        time.sleep(_LOOK_S)
    if secret is None:
        secret = read_secret(Path(os.fsdecode(meeting.get(FILE_KEY))))
    port = bytes(meeting.get(PORT_KEY))
    if not port.isdigit() or int(port) > 0xFFFF:
        raise RunError(
            "somebody else has changed torchrun's store",
            where="rank 0's port",
            by=f"got {port[:20]!r}",
        )
    return int(port), secret


def known_secret() -> bytes | None:
    """The secret that the user gives; ``None`` on one machine, where rank 0 makes one.

    Raises
    ------
    InputError
        There are other machines, and none is given; or one that is too short or that others know.
    """
    secret = given_secret()
    if secret is None and not on_one_machine():
        raise secret_needed()
    return secret


def dial(port: int, secret: bytes, who: Any) -> Channel:
    """A channel to the lead, who proves to know the secret as we do and is told `who` we are.

    Raises
    ------
    OSError, EOFError
        The lead is gone.
    InputError
        It has another secret.
    """
    lead = LOOPBACK if on_one_machine() else os.environ["MASTER_ADDR"]
    deadline = time.monotonic() + _CALL_S
    while True:
        try:
            return connect((lead, port), secret, who, codec=ORDERS)
        except AuthenticationError:
            raise wrong_secret(os.environ.get("RANK", "?")) from None
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
