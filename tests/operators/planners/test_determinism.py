"""The same plans under any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import hashlib
from placewright.planning.contract import Context
from placewright.operators.planners import planners
from placewright.operators.planners.pbqp import CeftPbqp
from placewright.operators.conformance import random_problem
digest = hashlib.sha256()
for seed in range(12):
    problem = random_problem(seed)
    for name in "round-robin random topological-split heft heft-contended cpop peft".split():
        plan = planners(problem)[name](problem, Context(seed=seed))
        digest.update(plan.placement.tobytes())
        digest.update(b"" if plan.order is None else plan.order.tobytes())
problem = random_problem(11, most_operators=30, most_devices=4)
digest.update(CeftPbqp(effort=1e5)(problem, Context(seed=4)).plan.placement.tobytes())
print(digest.hexdigest())
"""


def digest(hash_seed: str) -> str:
    """Of all plans, made in a process of its own."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_hash_seed_changes_nothing() -> None:
    """Two processes with different hash seeds make equal plans."""
    assert digest("1") == digest("2")
