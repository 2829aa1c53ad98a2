"""Processes that compile kernels beside this one."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.interpreter import python_command, python_environment
from placewright.operators.planners import rehearsals
from placewright.operators.problem import OperatorProblem
from placewright.planning import compiling
from placewright.planning.compiling import (
    COMPILERS,
    MOST_COMPILERS,
    CompilingAhead,
    compile_beside,
    compilers,
)
from placewright.planning.wings import find_wing

CHILD = python_command("-m", "placewright.planning.compiling", "operators", "0")


def test_there_is_one_for_every_other_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as many as a variable says; not thousands, nor what is no number."""
    monkeypatch.delenv(COMPILERS, raising=False)
    assert 0 <= compilers() <= MOST_COMPILERS
    monkeypatch.setenv(COMPILERS, "7")
    assert compilers() == 7
    for wrong in ("-1", "two", "65", "9" * 5000, "\u0663", " "):
        monkeypatch.setenv(COMPILERS, wrong)
        with pytest.raises(InputError, match=f"{COMPILERS}: is no whole number from 0 to 64"):
            compilers()


def test_they_are_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for no wing without kernels."""
    started: list[list[str]] = []

    class Started:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def __enter__(self) -> Started:
            return self

        def __exit__(self, *_: object) -> None:
            """Ended."""

        def kill(self) -> None:
            """At the exit."""

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(compiling, "_COMPILED", set())
    monkeypatch.setenv(COMPILERS, "2")
    for name in ("operators", "operators", "samples"):
        compile_beside(find_wing(name))
    assert [command[-2:] for command in started] == [["operators", "0"], ["operators", "1"]]


def test_they_end_with_a_script_that_has_planned(tmp_path: Path) -> None:
    """Without a warning, and though they are not done."""
    script = """
from placewright.planning.compiling import compile_beside
from placewright.planning.wings import find_wing
import subprocess
started = []
class Popen(subprocess.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        started.append(self)
subprocess.Popen = Popen
compile_beside(find_wing("operators"))
print(*(process.pid for process in started))
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        python_command("-W", "error", str(tmp_path / "script.py")),
        env=python_environment() | {COMPILERS: "2", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    pids = done.stdout.split()
    assert len(pids) == 2
    assert done.stderr == ""
    assert not any(Path("/proc", pid).exists() for pid in pids)


def test_the_list_of_rehearsals_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for while a kernel is compiled: building a problem would begin this again."""
    monkeypatch.setattr(OperatorProblem, "builder", None)
    assert len(rehearsals()) > 5


def test_the_rehearsals_of_operators_plan() -> None:
    """Each to its end."""
    for rehearse in rehearsals():
        rehearse()


def test_a_process_that_compiles_ends_with_the_one_that_started_it() -> None:
    """As soon as its input ends, which it does even where that one is killed."""
    environment = python_environment() | {COMPILERS: "0"}
    with subprocess.Popen(CHILD, env=environment, stdin=subprocess.PIPE) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_kernels_are_compiled_ahead_until_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says at which part it is; `COMPILERS` = 0 keeps it from starting."""
    said = "import time; print('part 1 of 2', flush=True); time.sleep(4)"
    command = python_command("-c", said)
    monkeypatch.setattr(compiling, "python_command", lambda *_: command)
    ahead = CompilingAhead()
    monkeypatch.setenv(COMPILERS, "0")
    ahead.start()
    monkeypatch.setenv(COMPILERS, "1")
    assert ahead.left == ""
    ahead.start()
    until_left(ahead, "part 1 of 2")
    until_left(ahead, "")


def until_left(ahead: CompilingAhead, wanted: str) -> None:
    """Wait until so much is left."""
    end_s = time.monotonic() + 30
    while ahead.left != wanted:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_nothing_is_compiled_ahead_while_a_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is gone, and with it the locks of functions; another goes on afterwards."""
    said = "import time; print('part 1 of 2', flush=True); time.sleep(60)"
    command = python_command("-c", said)
    monkeypatch.setattr(compiling, "python_command", lambda *_: command)
    monkeypatch.setenv(COMPILERS, "1")
    ahead = CompilingAhead()
    with ahead.paused():
        ahead.start()
        assert ahead._process is None
    until_left(ahead, "part 1 of 2")
    first = ahead._process
    assert first is not None
    with ahead.paused(), ahead.paused():
        assert first.wait(10) == -signal.SIGKILL
        assert ahead.left == ""
    until_left(ahead, "part 1 of 2")
    with ahead.paused():
        ahead._wanted = False  # nothing is left to the test
