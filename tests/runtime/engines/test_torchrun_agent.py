"""Processes of torchrun whose agent is gone."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from placewright.errors import InputError, RunError
from placewright.io.scratch import Scratch
from placewright.runtime.connections import LOOPBACK, AuthenticatedListener
from placewright.runtime.engines import torchrun_agent
from placewright.runtime.engines.torchrun_agent import (
    OpenRendezvousWarning,
    call_coordinator,
    find_coordinator,
    listen_for_workers,
    warn_of_open_rendezvous,
)
from placewright.runtime.host import Host
from tests.other_user import UID, needs_root

CHILD = """
import os, signal, sys, time
from placewright.runtime.engines.torchrun_agent import end_with_torchrun
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), sys.exit()))
while LATE and os.getppid() == AGENT:
    time.sleep(0.01)
end_with_torchrun()
print("up", os.getppid(), flush=True)
time.sleep(100)
"""

AGENT = """
import os, subprocess, sys, time
code = CHILD.replace("AGENT", str(os.getpid())).replace("LATE", str(LATE))
subprocess.Popen([sys.executable, "-c", code])
time.sleep(0 if LATE else 100)
"""


ADOPTS_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of ``prctl(2)``."""


def agent(*, late: bool) -> subprocess.Popen[str]:
    """A process with one child, which looks for it; with `late` only once it is gone."""
    code = AGENT.replace("CHILD", repr(CHILD)).replace("LATE", str(late))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_process_ends_when_its_agent_is_killed() -> None:
    """An agent that is killed outright tells nobody; the pipe closes when all have ended."""
    with agent(late=False) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"up {parent.pid}\n"
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == "ended\n"


def test_a_process_ends_whose_agent_was_gone_before_it_looked() -> None:
    """It is the child of the first process then, which is no agent."""
    ctypes.CDLL(None).prctl(ADOPTS_ORPHANS, 0, 0, 0, 0)  # a Ray of another test has set it
    with agent(late=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        if line != "up 1\n":
            pytest.skip(f"orphans are not adopted by the first process here: {line}")
        assert parent.stdout.read() == "ended\n"


GIVEN = "0123456789abcdef" * 2


class Store(dict[str, Any]):
    """Torchrun's, as far as it is used."""

    def set(self, key: str, value: str) -> None:
        """As bytes."""
        self[key] = value.encode()

    def get(self, key: str) -> Any:  # type: ignore[override]
        """As bytes."""
        return self[key]

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return all(key in self for key in keys)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Of two processes on this machine, with no secret given."""
    for variable in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    for variable in (torchrun_agent.SECRET_VARIABLE, torchrun_agent.FILE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    found = Store()
    monkeypatch.setattr(torchrun_agent, "store", lambda: found)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of rank 0, in a temporary folder of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Scratch() as name:
        yield Path(name)


@pytest.fixture
def coordinator(store: Store, folder: Path) -> Iterator[AuthenticatedListener]:
    """Rank 0 on one machine."""
    listener, _ = listen_for_workers(folder)
    yield listener
    listener.close()


def called(listener: AuthenticatedListener, port: int, known: bytes) -> Any:
    """Who rank 0 hears, having been called."""
    with call_coordinator(port, known, (1, Host.here())):
        accepted = listener.accept(10.0)
        assert accepted is not None
        accepted[1].close()
        return accepted[0]


def test_on_one_machine_the_store_holds_neither_a_path_nor_a_secret(
    coordinator: AuthenticatedListener, store: Store, folder: Path
) -> None:
    """The file is rank 0's own, and whoever can read it is let in."""
    port, known = find_coordinator()
    assert re.fullmatch(rb"[0-9a-f]{64}", (folder / "secret").read_bytes())
    assert store == {"port": str(port).encode(), "run": folder.name[-8:].encode()}
    assert called(coordinator, port, known) == (1, Host.here())


def test_a_rank_is_not_led_to_another_run_of_the_same_user(
    coordinator: AuthenticatedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose secret it could read, and whose port somebody has written into its own store."""
    monkeypatch.setenv("MASTER_PORT", "29501")
    port, known = find_coordinator()
    with pytest.raises(InputError, match="do not have the same secret"):
        call_coordinator(port, known, (1, Host.here()))
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert called(coordinator, *find_coordinator()) == (1, Host.here())


@pytest.mark.parametrize("run", [b"", b"../../..", b"12345678/", b"1234567\n", b"/proc/self"])
def test_the_store_names_no_file(
    coordinator: AuthenticatedListener, store: Store, run: bytes
) -> None:
    """What is written there as a path is refused, or read by nobody."""
    store["file"] = b"/proc/self/pagemap"
    assert find_coordinator()[1] != bytes(64)
    store["run"] = run
    with pytest.raises(RunError, match="another process has changed torchrun's store"):
        find_coordinator()


@pytest.mark.parametrize("port", [b"", b"70000", b"-1", b"1e3", b"\xb2"])
def test_a_port_that_is_none_is_refused(
    coordinator: AuthenticatedListener, store: Store, port: bytes
) -> None:
    """Before anything is connected."""
    store["port"] = port
    with pytest.raises(RunError, match="another process has changed"):
        find_coordinator()


def _linked_folder(folder: Path, aim: Path) -> None:
    folder.rename(aim)
    folder.symlink_to(aim)


def _linked_file(folder: Path, aim: Path) -> None:
    (folder / "secret").rename(aim)
    (folder / "secret").symlink_to(aim)


def _pagemap(folder: Path, aim: Path) -> None:
    (folder / "secret").unlink()
    (folder / "secret").symlink_to("/proc/self/pagemap")


def _pipe(folder: Path, aim: Path) -> None:
    (folder / "secret").unlink()
    os.mkfifo(folder / "secret", 0o600)


def _theirs(folder: Path, aim: Path) -> None:
    os.chown(folder / "secret", UID, UID)


def _their_folder(folder: Path, aim: Path) -> None:
    os.chown(folder, UID, UID)


_EXCHANGES: list[tuple[Callable[[Path, Path], None], str]] = [
    (_linked_folder, "Not a directory|symbolic links"),
    (_linked_file, "symbolic links"),
    (_pagemap, "symbolic links"),
    (_pipe, "must be in a file"),
    (lambda folder, aim: (folder / "secret").chmod(0o640), "others may read or write"),
    (lambda folder, aim: folder.chmod(0o770), "others may read or write"),
    (lambda folder, aim: (folder / "secret").unlink(), "No such file"),
    (lambda folder, aim: os.truncate(folder / "secret", 63), "64 hexadecimal digits"),
    (lambda folder, aim: os.truncate(folder / "secret", 65), "64 hexadecimal digits"),
    (lambda folder, aim: _filled(folder / "secret", bytes(64)), "64 hexadecimal digits"),
]


def _filled(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize(("exchange", "why"), _EXCHANGES)
def test_a_secret_that_rank_0_has_not_written_is_refused(
    coordinator: AuthenticatedListener,
    folder: Path,
    tmp_path: Path,
    exchange: Callable[[Path, Path], None],
    why: str,
) -> None:
    """Links, pipes, open folders and files, and what is no secret."""
    exchange(folder, tmp_path / "aim")
    with pytest.raises(RunError, match=rf"torchrun's store \((.|\n)*({why})"):
        find_coordinator()


@needs_root
@pytest.mark.parametrize("exchange", [_theirs, _their_folder])
def test_a_secret_of_another_user_is_refused(
    coordinator: AuthenticatedListener,
    folder: Path,
    tmp_path: Path,
    exchange: Callable[[Path, Path], None],
) -> None:
    """Whatever its mode: root could read it."""
    exchange(folder, tmp_path)
    with pytest.raises(RunError, match="belongs to another user"):
        find_coordinator()


def test_several_machines_need_a_given_secret(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is waited for; with one, no file is written."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    for connect in (lambda: listen_for_workers(tmp_path), find_coordinator):
        with pytest.raises(InputError, match=r"needs a secret(.|\n)*next: set PLACEWRIGHT_SECRET"):
            connect()
    monkeypatch.setenv(torchrun_agent.SECRET_VARIABLE, GIVEN)
    listener, known = listen_for_workers(tmp_path)
    assert set(store) == {"port"}
    assert not list(tmp_path.iterdir())
    assert called(listener, *find_coordinator()) == (1, Host.here())
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match=r"rank 1: .* do not have the same secret"):
        call_coordinator(listener.port, GIVEN[::-1].encode(), (1, Host.here()))
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        call_coordinator(listener.port, known, (1, Host.here()))


@pytest.mark.parametrize("rendezvous", ["static", "c10d", "none"])
def test_a_rendezvous_that_unpickles_is_warned_of(
    rendezvous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchrun's own keys are not in the workers' store there; without torchrun no warning."""
    inner = HashStore()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    if rendezvous == "none":
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    if rendezvous == "static":
        PrefixStore("job", inner).set("torchelastic/role_info/0", "{}")
    monkeypatch.setattr(
        torchrun_agent, "store", lambda: PrefixStore("ours", PrefixStore("/0", inner))
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_open_rendezvous()
    assert [w.category for w in caught] == [OpenRendezvousWarning] * (rendezvous == "c10d")


@pytest.mark.parametrize(
    ("name", "resolved", "interface"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("head", "127.0.1.1", ""),
        ("head", "192.0.2.7", "192.0.2.7"),
        ("head", None, ""),
    ],
)
def test_rank_0_listens_where_the_others_call(
    name: str, resolved: str | None, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every interface only where its name says nothing; on another host's address, too."""

    def resolve(host: str) -> str:
        assert host == name
        if resolved is None:
            raise socket.gaierror
        return resolved

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", name)
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert torchrun_agent._interface() == interface
    with torchrun_agent._listening() as listening:
        host = listening.getsockname()[0]
        assert host == (LOOPBACK if interface == LOOPBACK else "0.0.0.0")


def test_a_store_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with torchrun's process."""
    server = TCPStore(LOOPBACK, 0, None, True, wait_for_workers=False)
    client = TCPStore(LOOPBACK, server.port, None, False)
    around = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(server.port)}
    for name, value in (around | {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun_agent, "store", lambda: client)
    expected = f"{LOOPBACK}:{server.port}: torchrun's store does not answer"
    del server
    with pytest.raises(RunError, match=expected):
        find_coordinator()
