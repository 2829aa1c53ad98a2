"""The record of a testbed, and a process that enters a node of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError
from placewright.testbed import NodeHandle, Testbed, record
from placewright.testbed.blueprint import id_of
from placewright.testbed.record import (
    MODULE,
    Process,
    Record,
    end_all,
    leave,
    read_record,
    record_in,
    records,
    remove,
    sweep,
    this_boot,
)
from placewright.testbed.status import status, testbed_table
from tests.testbed import inside
from tests.testbed.conftest import DUO, Start, cluster
from tests.testbed.test_testbed import Up, conversation_s, own_traces, traces

texts = st.lists(st.text(), max_size=3).map(tuple)
processes = st.builds(Process, st.integers(1, 9999), st.integers(0, 10**9))
made = st.builds(
    Record,
    id=st.just("placewright-x-1"),
    cluster=st.text(),
    namespaces=texts,
    groups=texts,
    cpus=st.lists(st.integers(0, 99), min_size=1).map(tuple),
    links_cpu=st.integers(0, 99),
    boot=st.text(),
    made_ns=st.integers(0, 2**62),
    owners=st.lists(processes, max_size=3).map(tuple),
    whole=st.booleans(),
)


@given(made)
def test_a_record_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, kept: Record
) -> None:
    """Whatever names are in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "HOME", tmp_path_factory.mktemp("home"))
        kept.write()
        assert read_record(kept.folder) == kept == kept.now()
        assert records() == (kept,)
        assert replace(kept, made_ns=kept.made_ns + 1).now() is None


def test_a_record_of_a_single_owner_is_read(tmp_path: Path) -> None:
    """As versions before wrote it: whole, and that process's."""
    old = (
        '{"schema_version": 1, "id": "x", "cluster": "", "namespaces": [], "groups": [], '
        '"cpus": [0], "links_cpu": 0, "boot": "", "owner": %s}'
    )
    for owner, owners in (('{"pid": 7, "start": 8}', (Process(7, 8),)), ("null", ())):
        (tmp_path / record.RECORD).write_text(old % owner)
        assert read_record(tmp_path) == Record("x", "", (), (), (0,), 0, "", owners=owners)


def test_a_joining_run_is_an_owner_unless_the_testbed_is_kept() -> None:
    """Once, beside the others that still run; what is to stay once has no owner any more."""
    own, ended, parent = Process.this(), Process(os.getpid(), 0), Process.of(os.getppid())
    lent = Record("x", "", (), (), (0,), 0, this_boot(), owners=(ended, parent))
    joined = lent.joined(own, keep=False)
    assert joined.owners == joined.joined(own, keep=False).owners == (parent, own)
    assert (joined.others(own), joined.abandoned) == ((parent,), False)
    assert replace(lent, owners=(ended,)).abandoned
    kept = joined.joined(own, keep=True)
    assert kept.owners == kept.joined(own, keep=False).owners == ()
    assert not kept.abandoned


def test_a_process_is_not_a_later_one_of_its_number() -> None:
    """It is known by when it started; the dead are dead before they are buried."""
    own = Process.this()
    assert own.alive
    assert own.pid == os.getpid()
    assert not replace(own, start=own.start - 1).alive
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not Process(child.pid, own.start).alive
    child.wait()


def test_records_from_before_a_reboot_are_removed(
    duo: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are there, but it is another life of the machine: namespaces are empty names."""
    assert not duo.record.abandoned
    duo.down()
    old = replace(duo.record, boot="another life", owners=())
    old.write()
    remnant = Path("/run/netns") / old.namespaces[0]
    remnant.touch()
    assert old.abandoned
    sweep()
    assert not remnant.exists()
    assert old not in records()
    assert this_boot() == duo.record.boot


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 1}', "[" * 100_000, "\xff"])
def test_a_damaged_record_is_named(text: str, tmp_path: Path) -> None:
    """With its file and what to do."""
    (tmp_path / record.RECORD).write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"testbed.json: is no record of a testbed"):
        read_record(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Where a file stands in the place of its folder, or the name is too long."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match=r"testbed.json: cannot be read"):
            record_in(folder)
    assert record_in(tmp_path / "none") is None


RUN = """
import sys
from placewright.cluster.cluster import Cluster
from placewright.testbed import Testbed
with Testbed.up(Cluster.from_text(sys.argv[1], where="", name=sys.argv[2])):
    print("up", flush=True)
    sys.stdin.readline()
print("left", flush=True)
sys.stdin.readline()
"""


HALTED = """
def answer():
    print("making", flush=True)
    input()

"""


@contextmanager
def another_run(wanted: Cluster) -> Iterator[subprocess.Popen[str]]:
    """A process with the testbed up; it leaves at its first line and ends at the second."""
    words = [sys.executable, "-c", RUN, DUO, wanted.name]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as run:
        try:
            assert answer(run) == "up\n"
            yield run
        finally:
            run.kill()


def answer(run: subprocess.Popen[str], line: str = "") -> str:
    """What it says next, to `line` if there is one."""
    assert run.stdin
    assert run.stdout
    run.stdin.write(line)
    run.stdin.flush()
    return run.stdout.readline()


def gone(wanted: Cluster) -> bool:
    """Whether nothing of it is left within 20 seconds."""
    made, deadline = id_of(wanted.name), time.monotonic() + 20
    while (left := any(made in trace for trace in traces())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left


def test_it_ends_with_the_process_that_made_it(up: Up) -> None:
    """Killed without a word: the emulator notices and takes everything down."""
    wanted = cluster()
    with another_run(wanted) as run:
        assert Testbed.find(wanted.name).alive
        run.kill()
        assert gone(wanted)


def test_what_a_killed_process_was_making_is_removed(up: Up) -> None:
    """There is no emulator yet that would notice."""
    wanted = cluster()
    slow = "from placewright.testbed import testbed\ntestbed.fill = lambda *_: answer()\n"
    words = [sys.executable, "-c", HALTED + slow + RUN, DUO, wanted.name]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as run:
        try:
            assert answer(run) == "making\n"
            assert any(id_of(wanted.name) in trace for trace in traces())
        finally:
            run.kill()
    assert gone(wanted)


def test_a_run_on_anothers_testbed_outlives_it(up: Up) -> None:
    """Its processes too; who is the last to leave takes it down, whoever made it."""
    wanted = cluster()
    with another_run(wanted) as first, Testbed.up(wanted) as bed:
        assert f"with the last of processes {first.pid}, {os.getpid()}" in testbed_table(
            status(bed)
        )
        sleeper = inside.start(bed.handle("right"), "print('in', flush=True); time.sleep(60)")
        assert sleeper.stdout
        assert sleeper.stdout.readline() == "in\n"
        assert answer(first, "leave\n") == "left\n"
        assert bed.alive
        assert sleeper.poll() is None
        assert [p.pid for p in Testbed.find(wanted.name).record.owners] == [os.getpid()]
        bed.__exit__(None, None, None)
        assert own_traces(bed) == set()
        sleeper.communicate(timeout=120)


def test_the_last_run_may_be_killed(duo: Testbed) -> None:
    """The emulator knows who has joined since it began, though who made it runs on."""
    with another_run(duo.cluster) as second:
        leave(duo.record)
        assert duo.alive
        second.kill()
        assert gone(duo.cluster)


def test_a_testbed_to_keep_is_kept(up: Up) -> None:
    """A run made it, and somebody asked to keep it: its end, killed or not, is not the end."""
    wanted = cluster()
    with another_run(wanted) as first:
        bed = Testbed.up(wanted, keep=True)
        try:
            with Testbed.up(wanted):
                first.kill()
            sweep()
            assert conversation_s(bed, "left", "right") > 0
            assert (bed.alive, Testbed.find(wanted.name).record.owners) == (True, ())
        finally:
            bed.down()


def test_the_last_one_that_leaves_takes_it_down(empty: Record, start: Start) -> None:
    """Not before, not twice, and neither a later one of its name nor one that stays."""
    other, own = Process.of(start().pid), Process.this()
    bed = replace(empty, owners=(own, other))
    bed.write()
    leave(replace(bed, made_ns=2))
    assert bed.now() == bed
    for _ in range(2):
        leave(bed)
        assert bed.now() == replace(bed, owners=(other,))
    replace(bed, owners=(own,)).write()
    leave(bed)
    assert not bed.folder.exists()
    empty.write()
    leave(bed)
    assert end_all("another") == ()
    assert end_all(bed.id) == (empty,)
    assert not bed.folder.exists()


def test_an_emulator_that_is_stopped_before_it_reports_is_killed(empty: Record) -> None:
    """Nothing names its process yet: it is found by its arguments."""
    empty.write()
    words = [sys.executable, "-c", "import time; time.sleep(60)", MODULE.decode()]
    process = subprocess.Popen([*words, str(empty.folder)])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may have no name
        remove(empty)
        assert process.wait(20) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    assert not empty.folder.exists()


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
