"""Five seconds of `benchmarks/fuzz_calls.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz_calls.py"


def test_wrong_values_are_refused_by_name() -> None:
    """No other exception, nothing wrong taken, no file written; every public name has a case."""
    command = [sys.executable, SCRIPT, "--seconds", "5", "--seed", "0", "--slowest", "60"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
