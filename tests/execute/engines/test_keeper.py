"""What torchrun's processes do when its agent is gone."""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = """
import signal, sys, time
from placewright.execute.engines.keeper import end_with_agent
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), sys.exit()))
end_with_agent()
print("up", flush=True)
time.sleep(100)
"""

AGENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}])
time.sleep(100)
"""


def test_a_process_ends_when_its_agent_is_killed() -> None:
    """An agent that is killed outright tells nobody; the pipe closes when all have ended."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "up\n"
    agent.send_signal(signal.SIGKILL)
    assert agent.stdout.read() == "ended\n"
    agent.stdout.close()
    agent.wait()
