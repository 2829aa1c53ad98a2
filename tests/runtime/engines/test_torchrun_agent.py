"""Processes of torchrun whose agent is gone."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CHILD = """
import os, signal, sys, time
from placewright.runtime.engines.torchrun_agent import end_with_torchrun
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), sys.exit()))
while LATE and os.getppid() == AGENT:
    time.sleep(0.01)
end_with_torchrun()
print("up", os.getppid(), flush=True)
time.sleep(100)
"""

AGENT = """
import os, subprocess, sys, time
code = CHILD.replace("AGENT", str(os.getpid())).replace("LATE", str(LATE))
subprocess.Popen([sys.executable, "-c", code])
time.sleep(0 if LATE else 100)
"""


def agent(*, late: bool) -> subprocess.Popen[str]:
    """A process with one child, which looks for it; with `late` only once it is gone."""
    code = AGENT.replace("CHILD", repr(CHILD)).replace("LATE", str(late))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_process_ends_when_its_agent_is_killed() -> None:
    """An agent that is killed outright tells nobody; the pipe closes when all have ended."""
    with agent(late=False) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"up {parent.pid}\n"
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == "ended\n"


def test_a_process_ends_whose_agent_was_gone_before_it_looked() -> None:
    """It is the child of the first process then, which is no agent."""
    with agent(late=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        if line != "up 1\n":
            pytest.skip(f"orphans are not adopted by the first process here: {line}")
        assert parent.stdout.read() == "ended\n"
