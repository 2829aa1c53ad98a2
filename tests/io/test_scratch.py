"""Temporary folders of killed processes are removed, others are kept."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewright.io import scratch
from placewright.io.scratch import Scratch, private_temporary_files, sweep
from tests.other_user import needs_root, run_as_other_user
from tests.processes import output_of

HOLD = "from placewright.io.scratch import Scratch; s = Scratch(); print(s.name, flush=True); "

FORK = """
from multiprocessing import get_context
from placewright.io.scratch import Scratch, keep_multiprocessing_here
keep_multiprocessing_here()
context = get_context("forkserver")
context.set_forkserver_preload([])
context.Process(target=print, args=("started",), daemon=True).start()
input()
"""


def test_a_folder_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any temporary folder; others' folders in the same place are none of its business."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "placewright-run-mine").mkdir()
    with Scratch() as folder, Scratch() as another:
        (Path(folder) / "state").write_text("weights")
        sweep()
        assert Path(folder, "state").exists()
        assert folder != another
    assert [path.name for path in tmp_path.iterdir()] == ["placewright-run-mine"]


def test_ctrl_c_while_it_is_made_or_removed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between making the folder and locking it, and in the middle of removing it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def pressed(*_: object, **__: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(scratch, "_held", pressed)
    with pytest.raises(KeyboardInterrupt):
        Scratch()
    gc.collect()
    assert not list(tmp_path.iterdir())
    folder = Scratch()
    Path(folder.name, "state").write_text("weights")
    monkeypatch.setattr(scratch, "_empty", pressed)
    with pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert not list(tmp_path.iterdir())


def test_ctrl_c_again_and_again_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun sends one to its ranks for each that the terminal sends to all."""
    really, left = scratch._empty, [1, 2, 3]

    def pressed(folder: Path) -> None:
        if left:
            left.pop()
            raise KeyboardInterrupt
        really(folder)

    folder = Scratch(str(tmp_path))
    monkeypatch.setattr(scratch, "_empty", pressed)
    with pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_still_written_to_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a worker that is just ending."""
    folder, writes, really = Scratch(str(tmp_path)), [1, 2], shutil.rmtree

    def written_to(path: Path, ignore_errors: bool) -> None:
        if path == Path(folder.name) and writes:
            (path / f"late-{writes.pop()}").mkdir()
        else:
            really(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", written_to)
    folder.cleanup()
    assert not writes
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it lives."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    sweep()
    assert folder.exists()
    process.kill()
    process.communicate()
    assert folder.exists()
    sweep()
    assert not folder.exists()


def test_a_folder_that_is_being_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock has no name yet; nor is one swept that another process holds at this moment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    young = tmp_path / "placewright-run-young"
    young.mkdir()
    (young / "lock.new").touch()
    held = tmp_path / "placewright-run-held"
    held.mkdir()
    with (held / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep()
        assert young.exists()
        assert held.exists()
    sweep()
    assert young.exists()
    assert not held.exists()


def test_cleaning_up_twice_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after somebody else has removed the folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = Scratch()
    scratch.cleanup()
    scratch.cleanup()
    other = Scratch()
    shutil.rmtree(other.name)
    other.cleanup()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        yield Path(name)


def _killed(temporary: Path) -> None:
    """A process with a fork server starts with this temporary folder and is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    process.communicate()
    assert line == "started\n"


def test_the_fork_servers_files_are_swept_too(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a killed process with children leaves are folders of ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    _killed(short)
    assert [path.name.startswith("placewright-run-") for path in short.iterdir()] == [True]
    sweep()
    assert list(short.iterdir()) == []


def test_a_temporary_folder_with_a_long_path_will_do(short: Path) -> None:
    """Sockets have paths of 107 bytes at most; the fork server's is put elsewhere."""
    long = short / ("x" * 100)
    long.mkdir()
    _killed(long)
    sweep("/tmp")


def test_what_was_broken_off_while_it_was_made_goes_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock nobody can tell whether its owner lives, but for its age."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = tmp_path / "placewright-run-old"
    (old / "inner").mkdir(parents=True)
    os.utime(old, (1.0, 1.0))
    (tmp_path / "placewright-run-young").mkdir()
    sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["placewright-run-young"]


def test_libraries_get_a_folder_of_this_process_while_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also from several threads: afterwards the variable is what it was, set or not."""

    def loads() -> None:
        for _ in range(200):
            with private_temporary_files():
                assert Path(os.environ["TMPDIR"]).stat().st_mode & 0o777 == 0o700

    for before in ("/var/tmp", None):
        if before:
            monkeypatch.setenv("TMPDIR", before)
        else:
            monkeypatch.delenv("TMPDIR")
        threads = [threading.Thread(target=loads) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert os.environ.get("TMPDIR") == before


PLACED = """
import os
import torch
from onnx import TensorProto, helper
from placewright import place
from placewright.runtime.model_files.onnx_sessions import open_session

before = os.environ.get("TMPDIR")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
quick = {"method": "analytic", "calibrate": False, "planner": "round-robin"}
with place(model, torch.ones(2, 4), "edge-duo", **quick) as placed:
    placed(torch.ones(2, 4))
value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "ab"]
graph = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "g", value[:1], value[1:])
opset = [helper.make_opsetid("", 17)]
open_session(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString(), "m")
assert os.environ.get("TMPDIR") == before
"""

PLANTS_LINKS = """
for name in (".ses", "ray"):
    os.symlink(os.path.dirname(MARK) + "/victim/" + name, os.path.dirname(MARK) + "/" + name)
print("planted")
"""


@needs_root
def test_what_another_user_has_planted_in_the_temporary_folder_is_not_followed(short: Path) -> None:
    """ONNX Runtime's ``.ses`` goes where no other user's link is; nothing else is left there."""
    pytest.importorskip("onnxruntime")
    victim = short / "victim"
    victim.mkdir()
    short.chmod(0o777)  # not sticky: there the kernel itself may refuse to follow links
    assert output_of(run_as_other_user(PLANTS_LINKS, short / "mark", [])) == "planted\n"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")}
    subprocess.run(
        [sys.executable, "-c", PLACED],
        env=environment | {"TMPDIR": str(short), "ORT_DISABLE_TELEMETRY": "0"},
        check=True,
        timeout=300,
    )
    assert sorted(os.listdir(short)) == [".ses", "ray", "victim"]
    assert os.listdir(victim) == []
