"""Transfers of samples that another user of the machine attacks."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np

from placewright.samples.data import deal
from placewright.samples.judge import judge
from placewright.samples.move import MoveResult, move
from placewright.samples.plan import SamplePlan
from tests.other_user import needs_root, nothing_executed, run_as_other_user
from tests.processes import listening_addresses, output_of, reachable_address
from tests.samples.jobs import images
from tests.samples.tiny import tiny

PLAN = SamplePlan(np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([60, 25, 5]))

GUESSES_THE_KEY = """
for address in ADDRESSES:
    for key in (b"placewright", b""):
        try:
            with Client(address, authkey=key) as link:
                link.send(Evil())
                link.recv()
        except (OSError, EOFError, AuthenticationError):
            pass
"""

KNOWS_NO_KEY = """
data = pickle.dumps(Evil())
for address in ADDRESSES:
    with socket.create_connection(address) as link:
        link.sendall(struct.pack("!i", len(data)) + data)
"""

STAYS_SILENT = """
calls = [socket.create_connection(address) for address in ADDRESSES for _ in range(100)]
print("calling", flush=True)
sys.stdin.read()
"""


class Moving(threading.Thread):
    """A move of some seconds on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.problem = tiny([80, 3, 20], relay=True)
        self.shards, self.digests = deal(self.problem, images(103, 0), folder)
        self.before = set(listening_addresses(os.getpid()))
        self.moved: MoveResult | None = None
        self.start()

    def run(self) -> None:
        """Move."""
        self.moved = move(self.problem, PLAN, self.shards, self.digests, speed=0.5, limit_s=120.0)

    def addresses(self) -> list[tuple[str, int]]:
        """Where the three nodes listen."""
        for _ in range(1000):
            found = set(listening_addresses(os.getpid())) - self.before
            if len(found) == 3:
                return [reachable_address(address) for address in found]
            time.sleep(0.01)
        raise AssertionError(f"three nodes listen at {found}")

    def arrived(self) -> bool:
        """Whether every sample is where the plan wants it; `move` finds lost and damaged ones."""
        self.join(timeout=150.0)
        counts = [len(shard.samples()) for shard in self.shards]
        wanted = judge(self.problem, PLAN).held[:, 0].tolist()
        return self.moved is not None and counts == wanted


@needs_root
def test_pickles_of_another_user_are_not_executed(tmp_path: Path) -> None:
    """Neither with the key that stood in the source once, nor before any key is asked for."""
    moving, mark = Moving(tmp_path), tmp_path / "executed"
    addresses = moving.addresses()
    for script in (GUESSES_THE_KEY, KNOWS_NO_KEY):
        output_of(run_as_other_user(script, mark, addresses))
    assert moving.is_alive()
    assert nothing_executed(mark)
    assert moving.arrived()


@needs_root
def test_silent_connections_delay_no_file(tmp_path: Path) -> None:
    """A hundred calls to every node that nobody ends before the files have arrived."""
    moving = Moving(tmp_path)
    caller = run_as_other_user(STAYS_SILENT, tmp_path / "executed", moving.addresses())
    assert caller.stdout is not None
    assert caller.stdout.readline() == "calling\n"
    assert moving.is_alive()
    arrived = moving.arrived()
    output_of(caller)
    assert arrived
