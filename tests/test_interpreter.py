"""Nothing that is started in a folder of everybody's imports what others have put there."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import placewright
from placewright.interpreter import (
    INDUCTOR_CACHE,
    environment_of,
    import_from,
    inductor_cache,
    process_with,
    python_command,
    python_environment,
)
from placewright.io.scratch import folder_of_process
from placewright.ownership import open_to_others
from tests.other_user import UID, needs_root

PACKAGES = {"cloudpickle", "numba", "numpy", "onnx", "pydantic", "ray", "rich", "scipy", "torch"}
SHADOWED = {name for name in PACKAGES | sys.stdlib_module_names if find_spec(name)} - {"__main__"}
"""Those that are here: what is found nowhere else may be a neighbour of the model."""

MODEL = """
import torch
from part import WIDTH

def make():
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    return model, torch.ones(2, WIDTH)
"""

DUO = """
devices:
  - {name: a, kind: cpu, cores: 1, memory: 1GiB, node: a}
  - {name: b, kind: cpu, cores: 1, memory: 1GiB, node: b}
links:
  - {from: a, to: b, bandwidth: 1Gbps, latency: 200us}
"""

RUN = ["operators", "run", "mine:make", "--on", "duo.yaml", "--steps", "2", "--time-limit", "1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's model, among modules of others that leave a mark where they are imported."""
    found = tmp_path / "everybody"
    found.mkdir()
    for name in SHADOWED:
        mark = str(tmp_path / f"executed-{name}")
        (found / f"{name}.py").write_text(f"open({mark!r}, 'w').close()\n")
    (found / "mine.py").write_text(MODEL)
    (found / "part.py").write_text("WIDTH = 8\n")
    (found / "duo.yaml").write_text(DUO)
    return found


def executed(folder: Path) -> list[str]:
    """Which of the others' modules have been imported."""
    return sorted(mark.name for mark in folder.parent.glob("executed-*"))


def beside_python(name: str) -> str:
    """A command that is installed where this Python is."""
    return str(Path(sys.executable).with_name(name))


@needs_root
@pytest.mark.parametrize("engine", ["local", "testbed", "torchrun", "ray"])
def test_a_run_imports_nothing_but_the_model_that_was_named(engine: str, folder: Path) -> None:
    """Fork server, resource tracker, workers, emulator, torchrun's ranks, Ray and its keeper."""
    if engine == "ray":
        pytest.importorskip("ray")
    launcher, planner = [], [] if engine == "local" else ["--planner", "heft"]
    if engine == "torchrun":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        launcher = [beside_python("torchrun"), "--master-port", port, "--nproc-per-node", "2"]
        launcher += ["--no-python"]
    done = subprocess.run(
        [*launcher, beside_python("placewright"), *RUN, "--check", "--engine", engine, *planner],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert executed(folder) == []
    assert done.returncode == 0, done.stderr


def test_a_child_finds_this_package_and_not_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the current folder is on this process's own path."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", str(folder), *sys.path])
    script = "import random, sys, placewright; print(sys.flags.safe_path, placewright.__file__)"
    done = subprocess.run(
        python_command("-c", script),
        env=python_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"True {placewright.__file__}\n"
    assert executed(folder) == []


def test_no_other_file_starts_python() -> None:
    """One place says how."""
    package = Path(placewright.__file__).parent
    using = {str(f.relative_to(package)) for f in package.rglob("*.py") if STARTS in f.read_text()}
    assert using == {"interpreter.py"}


STARTS = "sys.executable"


def test_a_named_module_is_found_in_its_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an installed module has its name; its neighbours only where none has theirs."""
    installed, folder = tmp_path / "installed", tmp_path / "folder"
    for each in (installed, folder):
        each.mkdir()
        for name in ("shared_name", "other_name"):
            (each / f"{name}.py").write_text(f"import other_name\nWHERE = {each.name!r}\n")
    (folder / "neighbour_name.py").write_text("WHERE = 'folder'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert import_from(str(folder), "shared_name").WHERE == "folder"
    assert sys.modules["other_name"].WHERE == "installed"
    assert import_from(str(folder), "neighbour_name").WHERE == "folder"
    (folder / "broken_name.py").write_text("raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        import_from(str(folder), "broken_name")
    assert "broken_name" not in sys.modules


def test_compiled_code_is_kept_where_no_other_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the temporary folder; a place that the user has chosen stays."""
    monkeypatch.delenv(INDUCTOR_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (chosen,) = inductor_cache().values()
    assert Path(chosen).is_relative_to(tmp_path)
    assert os.stat(chosen).st_mode & 0o077 == 0
    for nowhere in ("/proc/none", "~nobody-here/.cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", nowhere)
        (chosen,) = inductor_cache().values()
        assert Path(chosen).is_relative_to(folder_of_process())
    assert os.stat(folder_of_process()).st_mode & 0o077 == 0
    monkeypatch.setenv(INDUCTOR_CACHE, "/mine")
    assert inductor_cache() == {}


@needs_root
@pytest.mark.parametrize(
    ("mode", "group", "members", "words"),
    [
        (0o770, "somebody", [], "group somebody may write to .*own$"),
        (0o2775, "somebody", [], "group somebody may write to .*own$"),
        (0o770, "me", ["me", "him"], "group me may write to .*own$"),
        (0o770, "me", ["me"], ""),  # the group of this user alone
        (0o750, "somebody", ["him"], ""),
    ],
)
def test_a_folder_is_open_to_a_group_with_others_in_it(
    mode: int,
    group: str,
    members: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As its mode says, whoever its owner is."""
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name="me"))
    found = SimpleNamespace(gr_name=group, gr_mem=members)
    monkeypatch.setattr("grp.getgrgid", lambda gid: found)
    (folder := tmp_path / "own").mkdir()
    os.chown(folder, -1, UID)
    folder.chmod(mode)
    why = open_to_others(folder)
    assert re.search(words, why) if words else why == ""


@needs_root
def test_a_folder_is_open_to_whom_an_access_control_list_names(tmp_path: Path) -> None:
    """Its mask stands where the mode has what the group may do."""
    named = ((0x01, 7, -1), (0x02, 7, UID), (0x04, 0, -1), (0x10, 7, -1), (0x20, 0, -1))
    entries = b"".join(struct.pack("<HHi", *entry) for entry in named)
    os.setxattr(tmp_path, "system.posix_acl_access", struct.pack("<I", 2) + entries)
    assert "access control list may write" in open_to_others(tmp_path)


@needs_root
@pytest.mark.parametrize(
    ("theirs", "for_all", "words"),
    [
        ("", "", ""),
        ("", "a", ""),
        ("a/b/c", "", f"c belongs to user {UID}"),
        ("", "a/b/c", "all users may write to .*c$"),
        ("a/b", "a", f"b belongs to user {UID}"),
        ("a", "a/b", f"a belongs to user {UID}"),  # below /tmp
    ],
)
def test_a_folder_is_open_to_whoever_may_have_made_its_files(
    theirs: str, for_all: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or may put a folder of his in its place, in one of all users; its code is not loaded."""
    folder = tmp_path / "a/b/c"
    folder.mkdir(parents=True, mode=0o700)
    if theirs:
        os.chown(tmp_path / theirs, UID, UID)
    if for_all:
        (tmp_path / for_all).chmod(0o1777)
    found = open_to_others(folder)
    assert re.search(words, found) if words else found == ""
    monkeypatch.delenv(INDUCTOR_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a/b"))
    (tmp_path / "a/b/c").rename(tmp_path / "a/b/placewright")
    (kept,) = inductor_cache().values()
    assert Path(kept).is_relative_to(folder_of_process() if theirs else tmp_path)


LOADS = """
from placewright.interpreter import load_numba_without_file
load_numba_without_file()
import placewright.numerics.njit, yaml
print(yaml.safe_load("[1]"))
"""


def test_a_file_that_is_none_of_numbas_keeps_no_command_from_running(tmp_path: Path) -> None:
    """It is not opened; YAML is there as before."""
    (tmp_path / ".numba_config.yaml").write_text("[")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-W", "error", "-c", LOADS]
    assert subprocess.check_output(command, cwd=tmp_path, env=env, text=True) == "[1]\n"


def test_a_process_is_found_by_its_environment() -> None:
    """While it is running; bytes that are no text stay what they are."""
    value = "\udcff" + os.urandom(8).hex()
    command = python_command("-c", "import sys; print(flush=True); sys.stdin.read()")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | {"MARK": value}, **pipes) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdout.readline()
        assert process_with("MARK", value) == started.pid
        assert process_with("MARK", value[:-1]) is None
        assert environment_of(started.pid)["MARK"] == value
        started.stdin.close()
    assert process_with("MARK", value) is None
    assert environment_of(started.pid) == {}
