"""What answers clients is scheduled before what computes."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from placewright.requests.serving.priority import answer_first
before = os.sched_getscheduler(0)
answer_first()
assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == before
pid = os.fork()
if not pid:
    assert os.sched_getscheduler(0) == before
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
answer_first()
assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_BATCH
"""


def test_only_this_thread_with_its_ordinary_policy_is_changed() -> None:
    """Children are ordinary, and a policy that somebody chose stays."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SLICES = """
import os, platform
from pathlib import Path
from placewright.requests.serving.priority import compute_behind, computing, send_first
def slice_ns():
    lines = [line for line in Path("/proc/self/sched").read_text().splitlines() if ".slice" in line]
    return int(lines[0].split()[-1]) if lines else None
chosen = os.sched_getscheduler(0)
compute_behind()
waiting = slice_ns()
with computing():
    assert slice_ns() == (waiting and 10 * waiting) or chosen
assert slice_ns() == waiting
send_first()
assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (chosen, os.SCHED_FIFO)
"""


def test_a_worker_computes_with_long_slices() -> None:
    """A worker has short slices while it waits, and long ones while it computes."""
    done = subprocess.run(
        [sys.executable, "-c", SLICES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
