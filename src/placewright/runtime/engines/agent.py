"""What a process started by torchrun does: it keeps one device's worker for the lead.

Rank 0 is the lead: it captures, plans and tells what to do. Every rank, the lead's too, has a
keeper, which starts the device's worker as a child when a session begins and says how it ended.
So the lead and a worker never share an interpreter, a worker may die without torchrun ending the
whole job, and sessions may follow one another. Keepers and workers dial the lead, whose address
is in torchrun's store (see `placewright.runtime.engines.connecting`): orders are the same as on one
machine, through sockets instead of pipes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from placewright.runtime import limits
from placewright.runtime.connections.channel import Channel, wait
from placewright.runtime.engines.connecting import dial, find
from placewright.runtime.engines.process import WorkerProcess
from placewright.runtime.host import Host
from placewright.runtime.worker_spec import WorkerSpec


def is_lead() -> bool:
    """Whether this process is torchrun's rank 0, or none of torchrun's."""
    return int(os.environ.get("RANK", "0")) == 0


def end_with_agent() -> None:
    """Get a SIGTERM when torchrun's agent, our parent, is gone: one that was killed sends none.

    A SIGKILL follows where that does not help: a wait for torchrun's store answers no signal.
    """
    agent = os.getppid()

    def look() -> None:
        while os.getppid() == agent and not _is_init(agent):
            time.sleep(limits.LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(limits.patience(limits.END_S))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def _is_init(pid: int) -> bool:
    """Whether it is who adopts orphans: the agent was gone before we looked for the first time.

    In a container the agent itself may be the first process.
    """
    with suppress(OSError):
        return pid == 1 and b"torch" not in Path("/proc/1/cmdline").read_bytes()
    return False


def serve() -> None:
    """Keep this rank's worker until the lead is gone."""
    end_with_agent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is in front gets it and ends us
    keep(*find())


def keep(port: int, secret: bytes) -> None:
    """Start and end workers as the lead asks, until it is gone."""
    rank = int(os.environ["RANK"])
    worker: WorkerProcess | None = None
    stopped_s = 0.0
    with suppress(EOFError, OSError):
        lead = dial(port, secret, (rank, Host.here()))
        while True:
            ends = [lead, *([worker.sentinel] if worker is not None else [])]
            ready = wait(ends, timeout=None if worker is None else limits.LOOK_S)
            stopped_s = stopped_s + limits.LOOK_S if worker is not None and worker.stopped else 0.0
            if lead in ready:
                worker = _told(lead.recv(), worker, lead, port, secret)
            elif worker is not None and ready:
                lead.send(("died", worker.exit_code(patience_s=5.0)))
                worker = None
            elif worker is not None and stopped_s > limits.patience(limits.STOPPED_S):
                worker.kill()  # the lead cannot see that it is stopped, but that it has died
    if worker is not None:
        worker.end()


def _told(
    spec: WorkerSpec | None,
    worker: WorkerProcess | None,
    lead: Channel,
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
