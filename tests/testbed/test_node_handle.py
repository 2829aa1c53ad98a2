"""A process that enters a node of a testbed."""

from __future__ import annotations

import pickle

import pytest

from placewright.errors import RunError
from placewright.testbed import NodeHandle, Testbed
from tests.testbed import inside

SHOW = """
print(open("/proc/self/cgroup").read().count(sys.argv[2]), sorted(os.sched_getaffinity(0)),
      sorted(name for _, name in socket.if_nameindex()))
"""
SPIN = """
start, own = time.perf_counter(), time.process_time()
while time.perf_counter() - start < 0.3:
    pass
print((time.process_time() - own) / (time.perf_counter() - start))
"""
EAT = """
held = [b"x" * (1 << 20) for _ in range(900)]
"""


def test_a_node_handle_survives_pickling(duo: Testbed) -> None:
    """It goes to workers through pipes."""
    handle = duo.handle("right")
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert (handle.address, handle.interface) == ("10.78.0.2", "pw0")


def test_entering_moves_groups_cpus_and_network(duo: Testbed) -> None:
    """All three, although the namespace hides the groups."""
    handle = duo.handle("right")
    groups, rest = inside.run(handle, SHOW, duo.plan.slots[1].group).split(" ", 1)
    assert int(groups) == len(handle.groups)
    assert rest == f"{list(handle.cpus)} ['lo', 'pw0']"


def test_a_quota_is_never_exceeded(duo: Testbed) -> None:
    """Half a core as the cluster says, a quarter after `set`, from one period to the next."""
    assert float(inside.run(duo.handle("right"), SPIN)) <= 0.56
    duo.set_device("right", speed=0.25)
    assert float(inside.run(duo.handle("right"), SPIN)) <= 0.31


def test_memory_is_limited(duo: Testbed) -> None:
    """900 MiB do not fit beside the runtime into 256 MiB, and do after `set`."""
    greedy = inside.start(duo.handle("right"), EAT)
    greedy.communicate(timeout=60)
    assert greedy.returncode != 0
    duo.set_device("right", memory_bytes=2.0**30)
    inside.run(duo.handle("right"), EAT)


def test_a_handle_of_a_testbed_that_is_down_is_refused() -> None:
    """It says what to look at."""
    handle = NodeHandle("a", "placewright-none", (), (0,), "10.78.0.1", "pw0")
    with pytest.raises(RunError, match="cannot be entered"):
        handle.enter()
    with pytest.raises(RunError, match="cannot be joined"):
        NodeHandle("a", "", ("/nowhere/at/all",), (0,), "", "").enter()
