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
