"""Real testbeds: up, changed, broken, down, without leftovers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.testbed import Testbed, namespaces
from placewright.testbed.record import emulator_pid
from placewright.testbed.status import status
from placewright.testbed.testbed import require
from tests.processes import output_of
from tests.testbed import inside
from tests.testbed.conftest import DUO, cluster

Up = Callable[[Cluster], Testbed]

ECHO = """
with socket.create_server((handle.address, 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while data := connection.recv(1 << 16):
        connection.sendall(data)
"""
ASK = """
with socket.create_connection((sys.argv[2], 5000), timeout=20) as connection:
    start = time.perf_counter()
    for byte in b"hello":
        connection.sendall(bytes([byte]))
        assert connection.recv(1) == bytes([byte])
    print(time.perf_counter() - start)
"""
UNREACHABLE = """
try:
    socket.create_connection((sys.argv[2], 5000), timeout=0.3)
except OSError as error:
    print(type(error).__name__)
"""


def conversation_s(bed: Testbed, source: str, target: str) -> float:
    """Seconds of five round trips."""
    server = inside.start(bed.handle(target), ECHO)
    assert server.stdout is not None
    server.stdout.readline()
    took_s = float(inside.run(bed.handle(source), ASK, bed.address(target)))
    output_of(server)
    return took_s


def traces() -> set[str]:
    """Everything of testbeds that this machine has."""
    places = ("/run/netns", "/run/placewright", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory")
    found = {str(p) for place in places for p in Path(place).glob("placewright-*")}
    return found | {str(p) for p in Path("/sys/fs/cgroup").glob("placewright-*")}


def own_traces(bed: Testbed) -> set[str]:
    """Those of this testbed."""
    return {trace for trace in traces() if bed.record.id in trace}


def test_up_twice_and_down_twice(duo: Testbed) -> None:
    """The second `up` finds all of it, changes included; the second `down` finds nothing to do."""
    duo.set_link("left", "right", bandwidth=1e6)
    again = Testbed.up(duo.cluster)
    assert not again.held
    assert again.record == duo.record == Testbed.find(duo.cluster.name).record
    assert again.links.get("rate", 0, 1) == 1e6
    with again:
        pass
    assert duo.alive
    pid = emulator_pid(duo.record)
    duo.down()
    duo.down()
    assert own_traces(duo) == set()
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_text()
    with pytest.raises(UnknownNameError, match="unknown testbed"):
        Testbed.find(duo.cluster.name)


def test_a_link_is_never_faster_than_asked(duo: Testbed) -> None:
    """Five round trips over 5 ms each way; after `set` over 20 ms from left to right."""
    assert conversation_s(duo, "left", "right") >= 5 * 2 * 4.9e-3
    duo.set_link("left", "right", latency_s=0.02, both_ways=False)
    assert conversation_s(duo, "left", "right") >= 5 * 24.8e-3


def test_a_killed_emulator_is_seen_and_revived(duo: Testbed) -> None:
    """Nothing passes meanwhile; `up` starts another, and the changes of before still hold."""
    os.kill(emulator_pid(duo.record), signal.SIGKILL)
    while duo.alive:
        time.sleep(0.01)
    assert status(duo).emulator_pid == 0
    assert inside.run(duo.handle("left"), UNREACHABLE, duo.address("right"))
    Testbed.up(duo.cluster)
    assert duo.alive
    duo.kill_emulator()
    assert not duo.alive
    Testbed.up(duo.cluster)
    assert conversation_s(duo, "left", "right") > 0


def test_a_lost_namespace_is_made_again(duo: Testbed) -> None:
    """As after somebody's ``ip netns del``."""
    subprocess.run(["ip", "netns", "del", duo.handle("right").namespace], check=True)
    assert not duo.alive
    Testbed.up(duo.cluster)
    assert duo.alive
    assert conversation_s(duo, "left", "right") > 0


def test_a_cut_link_carries_nothing_until_it_is_restored(duo: Testbed) -> None:
    """And the others know what they asked for in vain."""
    duo.cut("left", "right")
    assert inside.run(duo.handle("left"), UNREACHABLE, duo.address("right")) == "TimeoutError"
    assert status(duo).ways[0].cut
    assert status(duo).ways[0].dropped > 0
    duo.restore("left", "right")
    assert conversation_s(duo, "left", "right") > 0


LISTEN = """
with socket.create_server((handle.address, 5000)) as server:
    connection, _ = server.accept()
    connection.recv(1)
    print("met", flush=True)
    connection.settimeout(0.5)
    try:
        print("heard", connection.recv(1))
    except TimeoutError:
        print("silence")
"""
SPEAK = """
while True:
    try:
        connection = socket.create_connection((sys.argv[2], 5000))
        break
    except OSError:
        time.sleep(0.01)
connection.sendall(b"!")
time.sleep(60)
"""


def test_a_node_without_power_is_silent(duo: Testbed) -> None:
    """Its process is dead, and its peer hears neither data nor an end; then it is back."""
    peer = inside.start(duo.handle("left"), LISTEN)
    lost = inside.start(duo.handle("right"), SPEAK, duo.address("left"))
    assert peer.stdout is not None
    assert peer.stdout.readline() == "met\n"
    duo.power_off("right")
    lost.communicate(timeout=10)
    assert lost.returncode == -signal.SIGKILL
    assert output_of(peer) == "silence\n"
    duo.power_on("right")
    assert conversation_s(duo, "left", "right") > 0


def test_two_testbeds_do_not_meet(up: Up) -> None:
    """Same addresses, odd names: each talks to its own, and one survives the other's end."""
    one, two = up(cluster(name=f"é/ü {os.getpid()}")), up(cluster(name=f"é\\ü {os.getpid()}"))
    one.cut("left", "right")
    assert conversation_s(two, "left", "right") > 0
    before = own_traces(two)
    one.down()
    assert two.alive
    assert own_traces(two) == before
    assert own_traces(one) == set()


def test_foreign_namespaces_are_kept(duo: Testbed) -> None:
    """A namespace and a group with a name like ours outlive `down`."""
    foreign = f"{duo.record.id}-foreign"
    group = duo.trees.cpu / foreign
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    group.mkdir()
    try:
        duo.down()
        assert own_traces(duo) == {f"/run/netns/{foreign}", str(group)}
    finally:
        group.rmdir()
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_devices_without_a_link_cannot_talk(up: Up) -> None:
    """They are refused at once; a link cannot be made by `set`."""
    bed = up(cluster("devices: [{name: a, node: x}, {name: b, node: y}]"))
    assert inside.run(bed.handle("a"), UNREACHABLE, bed.address("b")) == "OSError"
    with pytest.raises(InputError, match="no link joins 'a' and 'b'"):
        bed.set_link("a", "b", bandwidth=1e6)


def test_another_cluster_of_the_same_name_is_refused(duo: Testbed) -> None:
    """It is not silently the one that is up."""
    other = cluster(DUO.replace("40Mbps", "50Mbps"), duo.cluster.name)
    with pytest.raises(InputError, match="with another cluster"):
        Testbed.up(other)


def test_down_ends_the_processes_inside(duo: Testbed) -> None:
    """Groups go only when they are empty; sleepers do not hold them."""
    sleeper = inside.start(duo.handle("right"), "print('in', flush=True); time.sleep(60)")
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    assert status(duo).devices[1].processes == 1
    duo.down()
    sleeper.communicate(timeout=10)
    assert sleeper.returncode == -signal.SIGKILL


def test_what_was_broken_off_is_made_anew(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a namespace is made, and again while it is removed: none of it is taken over."""
    wanted = cluster()
    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "address", interrupted)
        patch.setattr("placewright.testbed.testbed.remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Testbed.up(wanted)
    with pytest.raises(UnknownNameError, match="unknown testbed"):
        Testbed.find(wanted.name)
    bed = up(wanted)
    assert bed.held
    assert conversation_s(bed, "left", "right") > 0


def test_a_revival_that_was_broken_off_is_not_taken_over(
    duo: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace is there again, but not what belongs into it."""
    subprocess.run(["ip", "netns", "del", duo.handle("right").namespace], check=True)
    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "address", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Testbed.up(duo.cluster)
    with Testbed.up(duo.cluster) as bed:
        assert conversation_s(bed, "left", "right") > 0


def interrupted(*_: object) -> str:
    """As by Ctrl-C."""
    raise KeyboardInterrupt


def test_without_root_the_way_without_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four parts: what, where, by how much, what next."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedError) as refused:
        require()
    words = str(refused.value)
    assert "testbed: a testbed cannot be made here (it needs root, and this is user 1000)" in words
    assert "next: run it as root; without a testbed, `placewright operators run` emulates" in words


def test_a_missing_command_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ip`` comes with iproute2."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.raises(UnsupportedError, match="apt-get install iproute2"):
        require()
