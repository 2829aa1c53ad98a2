"""What a process started by torchrun does: it keeps one device's worker for the lead.

Rank 0 is the lead: it captures, plans and tells what to do. Every rank, the lead's too, has a
keeper, which starts the device's worker as a child when a session begins and says how it ended.
So the lead and a worker never share an interpreter, a worker may die without torchrun ending the
whole job, and sessions may follow one another. Keepers and workers dial the lead, whose address
is in torchrun's store: orders are the same as on one machine, through sockets instead of pipes.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.execute.engines.dialling import dial
from placewright.execute.engines.process import WorkerProcess
from placewright.execute.host import Host
from placewright.execute.worker_spec import WorkerSpec

PORT_KEY, SECRET_KEY = "port", "secret"

_LOOK_S = 0.2
"""Between two looks for the lead, which profiles and plans before it wants workers."""


def is_lead() -> bool:
    """Whether this process is torchrun's rank 0, or none of torchrun's."""
    return int(os.environ.get("RANK", "0")) == 0


def store() -> Any:
    """Torchrun's store, as far as it is ours."""
    found, *_ = next(iter(rendezvous("env://")))
    return PrefixStore("placewright/lead", found)


def serve() -> None:
    """Keep this rank's worker until the lead is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is in front gets it and ends us
    meeting = store()
    while not meeting.check([PORT_KEY, SECRET_KEY]):
        time.sleep(_LOOK_S)
    keep(int(meeting.get(PORT_KEY)), bytes(meeting.get(SECRET_KEY)))


def keep(port: int, secret: bytes) -> None:
    """Start and end workers as the lead asks, until it is gone."""
    rank = int(os.environ["RANK"])
    worker: WorkerProcess | None = None
    with suppress(EOFError, OSError):
        lead = dial(port, secret, (rank, Host.here()))
        while True:
            ready = wait([lead, *([worker.sentinel] if worker is not None else [])])
            if lead in ready:
                worker = _told(lead.recv(), worker, lead, port, secret)
            elif worker is not None:
                lead.send(("died", worker.exit_code(patience_s=5.0)))
                worker = None
    if worker is not None:
        worker.end()


def _told(
    spec: WorkerSpec | None,
    worker: WorkerProcess | None,
    lead: Connection,
    port: int,
    secret: bytes,
) -> WorkerProcess | None:
    """Start a worker; or, told nothing, end the one that is there."""
    if spec is not None:
        orders = dial(port, secret, (spec.session, spec.rank))
        return WorkerProcess(spec, orders)
    if worker is not None:
        worker.end()
    lead.send(("ended", None))
    return None
