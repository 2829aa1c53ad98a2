"""Workers compute what one process computes, and end with their caller."""

from __future__ import annotations

import itertools
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import RunError, WorkerError
from placewright.graph.graph import ProgramInput
from placewright.runtime.engines import piped
from placewright.runtime.session import Session, StateFiles
from placewright.runtime.step import partition
from placewright.runtime.step.partition import CallProgram
from tests.runtime.chain import answer, diamond

DUO = Cluster((Device("a", node="a"), Device("b", node="b")), name="duo")


def test_every_placement_gives_the_same_bits() -> None:
    """All sixteen placements of the diamond on two workers, transposed layouts included."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        for placement in itertools.product(range(2), repeat=4):
            session.load(placement, range(4))
            session.run(2)
            assert torch.equal(session.outputs()["output"], answer(state))


def test_workers_watch_their_memory_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than three times what the step makes; ordered once, until that changes."""
    graph, state = diamond()
    small = replace(DUO.devices[1], memory_bytes=1e9)
    calls: list[object] = []
    order = Session.order

    def noted(self: Session, name: str, arguments: Any, **limits: Any) -> list[Any]:
        calls.extend([arguments] if name == "limit_memory" else [])
        return order(self, name, arguments, **limits)

    monkeypatch.setattr(Session, "order", noted)
    with Session(graph, replace(DUO, devices=(DUO.devices[0], small)), state) as session:
        for peak_bytes in ((4e8, 2e8), (4e8, 4e8), (4e8, 5e8), (), (1.0, 1.0)):
            session.load([0, 1, 1, 0], range(4), peak_bytes=peak_bytes)
            session.run(1)
            assert torch.equal(session.outputs()["output"], answer(state))
    assert calls == [[(math.inf,), (1e9,)], [(math.inf,), (math.inf,)]]


def test_a_shaped_link_takes_its_time() -> None:
    """A transfer over an emulated link lasts at least its latency and bytes / bandwidth."""
    graph, state = diamond()
    links = (Link("a", "b", 1e5, 0.02), Link("b", "a", 1e5, 0.02))
    with Session(graph, Cluster(DUO.devices, links), state) as session:
        session.load([0, 1, 1, 1], range(4))
        (record,) = session.run(1, watched=True)
    (transfer,) = record.logs[0].transfers
    assert transfer[3] - transfer[2] >= 0.02 + 128 / 1e5 - 1e-9


def test_a_worker_that_raises_is_named_with_its_own_words() -> None:
    """The error carries the device and the worker's last line; nothing is left running."""
    graph, state = diamond(first="aten.mm.default")
    session = Session(graph, DUO, state)
    with pytest.raises(WorkerError, match="device 'a'"):
        _load_and_run(session)
    processes = session.group.processes
    assert not any(p.is_alive() for p in processes)


def test_a_killed_worker_is_named_with_its_signal() -> None:
    """SIGKILL in the middle of a run is reported as such, and the other worker ends too."""
    graph, state = diamond()
    session = Session(graph, DUO, state)
    with pytest.raises(WorkerError, match="killed by signal 9"):
        _load_and_run(session, kill=1)
    processes = session.group.processes
    assert not any(p.is_alive() for p in processes)


def _load_and_run(session: Session, kill: int | None = None) -> None:
    with session:
        session.load([0, 1, 1, 1], range(4))
        if kill is not None:
            os.kill(session.group.processes[kill].pid or 0, signal.SIGKILL)
        session.run(1)


def test_input_and_target_may_be_one_tensor() -> None:
    """As an autoencoder's are."""
    graph, state = diamond()
    assert graph.program is not None
    target = ProgramInput("y", "target", "0", graph.program.inputs[0].spec)
    program = replace(graph.program, inputs=(*graph.program.inputs, target))
    with Session(replace(graph, program=program), DUO, state) as session:
        session.load([0, 1, 1, 1], range(4))
        x = state["x"] + 1
        session.feed({"x": x, "y": x})
        session.run(1)
        assert torch.equal(session.outputs()["output"], answer({"x": x}))


def test_what_is_fed_needs_no_answer_before_the_step() -> None:
    """Nor before another batch; what is wrong with it is the error of the next order."""
    graph, state = diamond()
    x = state["x"]
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 1], range(4))
        for k in range(1, 4):
            session.feed({"x": x - k})
            session.feed({"x": x + k})
            assert session.group.unanswered
            session.run(1)
            assert not session.group.unanswered
            assert torch.equal(session.outputs()["output"], answer({"x": x + k}))
        session.feed({"x": x})
        os.kill(session.group.processes[1].pid or 0, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by signal 9"):
            session.run(1)


def test_a_disk_that_takes_no_file_ends_no_worker(tmp_path: Path) -> None:
    """The error is the disk's and names the device; the session goes on."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 1], range(4))
        with pytest.raises(OSError, match=r"device 'a' could not write: .*[Nn]o such file"):
            session.save_state(tmp_path / "missing")
        session.run(1)
        assert torch.equal(session.outputs()["output"], answer(state))


def test_a_temporary_folder_that_takes_no_state_is_named_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may not be longer than 64 KiB, and the state is; the error has the next step."""
    graph, state = diamond()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(RunError, match=r"cannot be written: .*(?s:.*)TMPDIR"):
            Session(graph, DUO, state | {"large": torch.zeros(1 << 18)})
        files, group = StateFiles(state), cast(Any, None)
        with pytest.raises(RunError, match=r"cannot be written: .*(?s:.*)TMPDIR"):
            files.distributed(group, state | {"large": torch.zeros(1 << 18)})
        files.remove()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_after_an_order_that_was_broken_off_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers would be taken for those of the next one."""

    def interrupted(*positional: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 1], range(4))
        with monkeypatch.context() as moment:
            moment.setattr(piped, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.run(1)
        with pytest.raises(WorkerError, match="was broken off"):
            session.random_state()


def test_workers_end_when_their_caller_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the caller, a script without a ``__main__`` guard, leaves no worker behind."""
    script = (
        "import sys, time\n"
        "from tests.runtime.chain import diamond\n"
        "from tests.runtime.test_session import DUO\n"
        "from placewright.runtime.session import Session, StateFiles\n"
        "graph, state = diamond()\n"
        "with Session(graph, DUO, state) as session:\n"
        "    print(*[p.pid for p in session.group.processes], flush=True)\n"
        "    time.sleep(60)\n"
    )
    path = tmp_path / "caller.py"
    path.write_text(script)
    root = Path(__file__).parents[2]
    caller = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
        text=True,
    )
    assert caller.stdout is not None
    pids = [int(pid) for pid in caller.stdout.readline().split()]
    caller.kill()
    caller.wait()
    caller.stdout.close()
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_call_feeds_a_batch_and_returns_its_outputs() -> None:
    """One order; every placement gives the same bits, for other contents in every call."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 0], range(4))
        for k in range(3):
            x = state["x"] + k
            record, outputs = session.call({"x": x})
            assert torch.equal(outputs["output"], answer({"x": x}))
            assert record.duration_s > 0


def test_programs_of_one_model_take_turns() -> None:
    """Another placement is a program of its own; a migration goes back to the loaded one."""
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 0], range(4))
        session.call({"x": state["x"] + 1})
        others = [CallProgram(graph, p, range(4), {}) for p in ([1, 0, 0, 1], [1, 1, 1, 1])]
        for other in (*others, None, *others):
            session.select(other)
            x = torch.randn(4, 8)
            assert torch.equal(session.call({"x": x})[1]["output"], answer({"x": x}))
        session.migrate([1, 1, 0, 0], range(4))
        assert torch.equal(session.call({"x": x})[1]["output"], answer({"x": x}))


def test_only_the_programs_of_late_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forgotten is handed out again."""
    monkeypatch.setattr(partition, "MOST_PROGRAMS", 1)
    graph, state = diamond()
    with Session(graph, DUO, state) as session:
        session.load([0, 1, 1, 0], range(4))
        first, second = (CallProgram(graph, [k, k, 1, 0], range(4), {}) for k in range(2))
        for program in (first, second, first):
            session.select(program)
            assert torch.equal(session.call(state)[1]["output"], answer(state))
            assert list(session._programs) == [program]
