"""Scheduling priority of the process that answers clients."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from placewright.requests.serving.priority import answer_first
before = os.sched_getscheduler(0)
answer_first()
assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (before, os.SCHED_FIFO)
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


WORKER = """
import os
from pathlib import Path
from placewright.requests.serving.priority import compute_behind, computing
def slice_ns():
    lines = [line for line in Path("/proc/self/sched").read_text().splitlines() if ".slice" in line]
    return int(lines[0].split()[-1]) if lines else None
chosen, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
compute_behind()
waiting = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
assert waiting in (chosen, os.SCHED_FIFO)
for _ in range(2):
    with computing():
        assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == chosen
        assert slice_ns() in (None, 10_000_000) or chosen
        assert os.getpriority(os.PRIO_PROCESS, 0) == min(nice + 10, 19)
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == waiting
"""


def test_a_worker_computes_as_an_ordinary_thread_behind_others() -> None:
    """It waits so that it begins at once, and computes in long slices."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


WITHOUT = """
import os
from placewright.requests.serving import priority
priority.SCHED_SETATTR = {}
priority.compute_behind()
with priority.computing():
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_FIFO
"""


def test_nothing_is_computed_in_real_time_where_slices_cannot_be_set() -> None:
    """Nobody else would get the processor."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
