"""Worker processes: start, end, and detection of their end, also without the fork server."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from placewright.errors import WorkerError
from placewright.numerics.collector import collector_paused
from placewright.runtime import limits
from placewright.runtime.engines import process
from placewright.runtime.engines.local import Local, LocalGroup
from placewright.runtime.program import end_with_parent
from placewright.runtime.specs import PLACED_STEPS
from tests.runtime.test_session import DUO

QUICK_S = 0.3


@pytest.fixture(autouse=True, scope="module")
def small_server() -> None:
    """Tests of this file kill it several times: what others had it load it would load each time."""
    forkserver._forkserver._preload_modules = [process.TORCH]  # type: ignore[attr-defined]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped is noticed soon."""
    monkeypatch.setattr(limits, "STOPPED_S", QUICK_S)
    monkeypatch.setattr(limits, "LOOK_S", 0.05)


@pytest.fixture
def group() -> Iterator[LocalGroup]:
    """Two workers that are up."""
    with Local().group(DUO) as up:
        yield up


def server() -> int:
    """The fork server's number."""
    found: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return found


def test_a_worker_that_is_stopped_while_it_starts_is_named(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device, what it was doing and for how long; both workers are gone afterwards."""

    def stopping(spec: object, *ends: object) -> process.WorkerProcess:
        made = process.WorkerProcess(spec, *ends)  # type: ignore[arg-type]
        if made.process.name.endswith("-b"):
            os.kill(made.process.pid or 0, signal.SIGSTOP)
        return made

    monkeypatch.setattr("placewright.runtime.engines.local.WorkerProcess", stopping)
    group = Local().group(DUO)
    with pytest.raises(WorkerError, match=r"device 'b': the worker process is stopped") as raised:
        group.start()
    assert "while starting and joining the others" in str(raised.value)
    assert group.dead() == (1,)
    group.close()
    assert all(worker.ended() for worker in group._workers)


def test_a_worker_that_is_stopped_for_a_moment_is_waited_for(group: LocalGroup) -> None:
    """It answers when it goes on."""
    pid = group.processes[0].pid or 0
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(QUICK_S, os.kill, (pid, signal.SIGCONT)).start()
    assert len(group.order_all("random_state")) == 2


def test_workers_survive_their_fork_server(group: LocalGroup) -> None:
    """They continue; a killed one is distinguished from one that raised; others can be started."""
    os.kill(server(), signal.SIGKILL)
    assert len(group.order_all("random_state")) == 2
    assert group.dead() == ()
    os.kill(group.processes[0].pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerError, match="device 'a': the worker process died"):
        group.order_all("random_state")
    assert group.dead() == (0,)
    with Local().group(DUO) as another:
        assert len(another.order_all("random_state")) == 2


def test_a_worker_that_is_freed_as_the_interpreter_ends_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of modules are gone by then; its descriptor is closed all the same."""
    worker, files = object.__new__(process.WorkerProcess), len(os.listdir("/proc/self/fd"))
    worker._handle = os.pidfd_open(os.getpid())
    monkeypatch.setattr(process, "os", None)
    del worker  # an error in it would be a warning, which fails the test
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_fork_server_that_is_still_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses connections for a moment."""
    waited_s = list[float]()
    monkeypatch.setattr(process, "time", SimpleNamespace(sleep=waited_s.append))

    def make() -> process.ChildProcess:
        if sum(waited_s) < 0.1:
            raise ConnectionRefusedError("Connection refused")
        raise ValueError("started")

    with pytest.raises(ValueError, match="started"):
        process.start_process(make, "device 'a'")


def test_descriptors_of_earlier_processes_are_given_back_where_there_are_no_more() -> None:
    """Those of a trainer that is closed are in cycles, which nothing else may have collected."""

    class Held:
        """Something with descriptors."""

    held = Held()
    held.itself = held  # type: ignore[attr-defined]
    alive = weakref.ref(held)
    del held

    def make() -> process.ChildProcess:
        if alive() is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        raise ValueError("started")

    with collector_paused(), pytest.raises(ValueError, match="started"):
        process.start_process(make, "device 'a'")


def test_a_worker_that_raised_is_none_that_was_killed(group: LocalGroup) -> None:
    """Also where the fork server that knows how it ended is gone."""
    os.kill(server(), signal.SIGKILL)
    with pytest.raises(WorkerError, match="raised an error"):
        group.order_all("no such order")
    assert group.dead() == ()


def test_a_tracker_that_was_killed_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a word."""
    resource_tracker.ensure_running()
    tracker: int = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    os.kill(tracker, signal.SIGKILL)
    with Local().group(DUO) as group:
        assert len(group.order_all("random_state")) == 2
    assert capfd.readouterr().err == ""


def test_a_fork_server_that_is_stopped_is_replaced(impatient: None) -> None:
    """While a worker starts, and the worker starts all the same."""
    with Local().group(DUO):
        stopped = server()
    os.kill(stopped, signal.SIGSTOP)
    with Local().group(DUO) as group:
        assert len(group.order_all("random_state")) == 2
    assert server() != stopped


def test_a_failed_start_is_reported() -> None:
    """After some attempts, with the reason of the last one."""

    def never() -> process.ChildProcess:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with pytest.raises(WorkerError, match=r"device 'a': .* cannot be started .*temporarily"):
        process.start_process(never, "device 'a'")


def test_workers_start_with_ctrl_c_ignored(group: LocalGroup) -> None:
    """Between a worker's birth and its first line Python would print a traceback."""
    for pid in (server(), *(worker.pid for worker in group.processes)):
        status = Path(f"/proc/{pid}/status").read_text()
        (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
        assert int(mask, 16) & 1 << (signal.SIGINT - 1)


INTERRUPTED = """
from placewright.runtime.engines.local import Local
from tests.runtime.test_session import DUO
try:
    with Local().group(DUO):
        print("up", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_while_workers_start_prints_no_traceback() -> None:
    """The fork server is still loading PyTorch; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED],
            cwd=Path(__file__).parents[3],
            env=os.environ | {"TMPDIR": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while process.poll() is None and not list(Path(name).glob("placewright-run-*/listener*")):
            time.sleep(0.01)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=100) == ("interrupted\n", "")
        assert not list(Path(name).iterdir())


def hold_everything(lifeline: Connection) -> None:
    """Sleep without letting any other thread of Python run, as some of torch's waits do."""
    end_with_parent(lifeline)
    ctypes.PyDLL(None).sleep(100)


def test_a_process_ends_although_its_threads_cannot_run() -> None:
    """Its lifeline is cut while it waits in C."""
    child = process.ChildProcess(hold_everything, (), "holds")
    assert not child.ended(0.5)
    child.disconnect()
    assert child.ended(50.0)  # by itself it would in 100 s
    child.end()


STOPPED_AT_THE_END = """
import atexit, os, signal
from contextlib import suppress

def stop():  # runs after everything that is registered later
    with suppress(ProcessLookupError):
        os.kill(process._pid(), signal.SIGSTOP)

atexit.register(stop)
from placewright.runtime.engines import process
from placewright.runtime.specs import PLACED_STEPS

process.begin_fork_server(PLACED_STEPS)
print(process._pid(), flush=True)
"""


def test_a_fork_server_that_is_stopped_as_its_parent_ends_is_not_left() -> None:
    """Stopped, it would not see that its parent has ended."""
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_THE_END], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    stat = Path(f"/proc/{int(ended.stdout)}/stat")
    assert not stat.exists() or stat.read_text().rsplit(") ", 1)[1][0] in "ZX"


def test_the_fork_server_may_begin_before_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is started by that one; where the system has none, the worker reports it."""
    process.begin_fork_server(PLACED_STEPS)
    server = process._pid()
    assert server is not None
    with Local().group(DUO) as group:
        assert len(group.processes) == 2
        assert process._pid() == server

    def none() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(process.forkserver, "ensure_running", none)
    process.begin_fork_server(PLACED_STEPS)


@pytest.mark.parametrize(
    ("own", "given"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_processes_of_the_fork_server_may_use_huge_pages(
    own: str | None, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice of the user's own stays, and the environment is afterwards as it was."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    seen: list[str] = []
    monkeypatch.setattr(
        process.forkserver, "ensure_running", lambda: seen.append(os.environ["GLIBC_TUNABLES"])
    )
    process.begin_fork_server(PLACED_STEPS)
    assert (seen, os.environ.get("GLIBC_TUNABLES")) == ([given], own)


def test_threads_that_start_workers_leave_the_main_module_alone() -> None:
    """The second one waits for the first, whose stand-in it would else put back at its end."""
    main, inside, done = sys.modules["__main__"], threading.Event(), threading.Event()

    def hide(until: threading.Event) -> None:
        with process.main_hidden():
            inside.set()
            until.wait()

    first = threading.Thread(target=hide, args=(done,))
    first.start()
    inside.wait()
    inside.clear()
    second = threading.Thread(target=hide, args=(done,))
    second.start()
    assert not inside.wait(0.1)
    done.set()
    first.join()
    second.join()
    assert inside.is_set()
    assert sys.modules["__main__"] is main


REPLACED = """
import os
from placewright.runtime.engines import process

def started(*modules, needed=()):
    process.fork_server_context(modules, needed)
    process._ensure_fork_server()
    return process._pid()

first = started("json")
assert started("json", "string") == first  # a module is loaded by who needs it
second = started("json", needed=["colorsys"])
assert second != first and not os.path.exists(f"/proc/{first}")
third = started("json", "fractions", needed=["fractions"])
assert third != second
assert started("json") == started("json", needed=["colorsys", "fractions"]) == third
"""


def test_a_fork_server_without_what_a_program_needs_is_replaced() -> None:
    """Else each of its processes would load it for itself; what it had the next one has, too."""
    subprocess.run([sys.executable, "-c", REPLACED], check=True, timeout=60)
