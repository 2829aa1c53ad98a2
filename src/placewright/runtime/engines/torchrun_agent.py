"""The agent: what every process that torchrun has started does for the coordinator.

    torchrun ---- rank 0 ---- coordinator: captures, plans, gives orders
         |            `------ agent ---- worker of device 0   (a child process)
         `------- rank 1 ---- agent ---- worker of device 1   (a child process)

Rank 0 is the coordinator. Every rank, rank 0 too, has an agent, which starts the device's worker as
a child when a session begins and reports how it ended. So the coordinator and a worker never share
an interpreter, a worker may die without torchrun ending the whole job, and sessions may follow one
another. Agents and workers connect to the coordinator, whose address is in torchrun's store
(`placewright.runtime.engines.torchrun_connect`). Orders are the same as on one machine, through
sockets instead of pipes. Between coordinator and agent:

    coordinator -> agent    WorkerSpec           start this worker
                            None                 end the worker, if there is one
    agent -> coordinator    ("died", exit code)  the worker has ended by itself
                            ("ended", None)      the worker was ended as asked
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from placewright.runtime import limits
from placewright.runtime.connections.channel import Channel, wait
from placewright.runtime.engines.process import WorkerProcess, end_fork_server
from placewright.runtime.engines.torchrun_connect import call_coordinator, find_coordinator
from placewright.runtime.host import Host
from placewright.runtime.program import codec_of
from placewright.runtime.scratch import remove_all
from placewright.runtime.specs import WorkerSpec


def is_coordinator() -> bool:
    """Whether this process is torchrun's rank 0, or none of torchrun's."""
    return int(os.environ.get("RANK", "0")) == 0


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
    rank = int(os.environ["RANK"])
    worker: WorkerProcess | None = None
    stopped_s = 0.0
    with suppress(EOFError, OSError):
        coordinator = call_coordinator(port, secret, (rank, Host.here()))
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
