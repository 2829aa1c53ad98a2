"""The end of a testbed that several runs share, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from subprocess import PIPE

from placewright.cluster.cluster import Cluster
from placewright.testbed import Testbed
from placewright.testbed.blueprint import id_of
from placewright.testbed.record import Process, Record
from placewright.testbed.status import status, testbed_table
from placewright.testbed.teardown import MODULE, end_all, leave, remove, sweep
from tests.testbed import inside
from tests.testbed.conftest import DUO, Start, cluster
from tests.testbed.test_testbed import Up, conversation_s, own_traces, traces

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
