"""A run under torchrun that another user of the machine attacks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.other_user import needs_root, nothing_executed, run_as_other_user
from tests.processes import listening_addresses, output_of, reachable_address

ROOT = Path(__file__).parents[3]

STORE = "from torch.distributed import PrefixStore, TCPStore"
CONNECT = "from placewright.runtime.connections import AuthenticatedListener, connect"

READS_STORE = """
store = TCPStore("127.0.0.1", ADDRESSES[0][1], is_master=False, wait_for_workers=False)
for key in store.list_keys():
    print(key, store.get(key).hex())
"""

GUESSES_SECRETS = (
    READS_STORE
    + """
guesses = {b"placewright", b"", b"secret"}
for key in store.list_keys():
    value = store.get(key)
    guesses |= {value, value.strip()}
    try:
        guesses.add(open(value, "rb").read().strip())
    except (OSError, ValueError):
        pass
let_in = 0
for address in ADDRESSES[1:]:
    for guess in guesses:
        for call in (Client, connect):
            try:
                if call is Client:
                    end = Client(address, authkey=guess)
                    end.send(Evil())
                else:
                    end = connect(address, guess, (1, None), limit_s=2.0)
                    end.connection.send(Evil())
                let_in += 1
            except (OSError, EOFError, AuthenticationError):
                pass
    with socket.create_connection(address) as end:
        data = pickle.dumps(Evil())
        end.sendall(struct.pack("!i", len(data)) + data)
print("let in", let_in)
"""
)

STAYS_SILENT = """
calls = [socket.create_connection(address) for address in ADDRESSES[1:] for _ in range(100)]
print("calling", flush=True)
sys.stdin.read()
"""


FORGES_STORE = """
store = TCPStore("127.0.0.1", ADDRESSES[0][1], is_master=False, wait_for_workers=False)
store = PrefixStore("placewright/coordinator", store)
listener = AuthenticatedListener(socket.create_server(("127.0.0.1", 0)), bytes(4096))
for key in "file", "run":
    store.set(key, "/proc/self/pagemap")
store.set("port", str(listener.port))
print("forged", flush=True)
sys.stdin.read()
print("let in", listener.accept(0.5) is not None)
"""

SERVES = "from placewright.runtime.engines.torchrun_agent import serve; serve()"


@dataclass
class Run:
    """One that waits to be let go."""

    process: subprocess.Popen[str]
    folder: Path
    coordinator_pid: int
    store: tuple[str, int]

    def ports(self) -> dict[tuple[str, int], int]:
        """Where rank 0, torchrun and all that they have started listen, the store left out."""
        found = listening_addresses(self.process.pid)
        return {address: pid for address, pid in found.items() if address[1] != self.store[1]}

    def orders(self) -> list[tuple[str, int]]:
        """Where rank 0 listens."""
        return [
            reachable_address(address)
            for address, pid in self.ports().items()
            if pid == self.coordinator_pid
        ]

    def let_go(self) -> None:
        """The session goes on and computes what it should."""
        (self.folder / "go").touch()
        out, err = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, err
        assert json.loads(out) == {"equal": [True, True]}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two ranks on this machine, in their second session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port)
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    process = subprocess.Popen(
        [*command, "-m", "tests.runtime.attacked_run", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("PLACEWRIGHT_SECRET")},
    )
    ready = tmp_path / "ready"
    try:
        while not ready.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        pid, store = map(int, ready.read_text().split())
        yield Run(process, tmp_path, pid, ("127.0.0.1", store))
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=120)


@needs_root
def test_another_user_cannot_disturb_a_run_on_one_machine(run: Run) -> None:
    """Nothing that stands in the store lets him in or gives him a file of ours that does.

    Nothing that he sends is executed, and a hundred of his calls at a time hold up nothing. All
    but torchrun's own store is on loopback.
    """
    mark, orders = run.folder / "executed", run.orders()
    assert orders
    assert {host for host, _ in run.ports()} == {"127.0.0.1"}
    caller = run_as_other_user(STAYS_SILENT, mark, [run.store, *orders])
    assert caller.stdout is not None
    assert caller.stdout.readline() == "calling\n"
    output = output_of(
        run_as_other_user(GUESSES_SECRETS, mark, [run.store, *orders], f"{STORE}\n{CONNECT}")
    )
    assert "placewright/coordinator/port" in output
    assert output.endswith("let in 0\n")
    run.let_go()
    output_of(caller)
    assert nothing_executed(mark)


@needs_root
def test_another_user_cannot_pass_for_rank_0(tmp_path: Path) -> None:
    """The file whose content he knows, the start of a process's page map, is not read as a secret.

    A rank that believed him would execute the program that he names.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address, mark = ("127.0.0.1", store.port), tmp_path / "executed"
    other = run_as_other_user(FORGES_STORE, mark, [address], f"{STORE}\n{CONNECT}")
    assert other.stdout is not None
    assert other.stdout.readline() == "forged\n"
    rank = {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]), "RANK": "1"}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PLACEWRIGHT_SECRET")}
    served = subprocess.run(
        [sys.executable, "-c", SERVES],
        env=kept | rank | sizes | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert output_of(other) == "let in False\n"
    assert "another process has changed torchrun's store" in served.stderr
