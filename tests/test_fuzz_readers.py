"""Two seconds of `benchmarks/fuzz_readers.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz_readers.py"


def test_wrong_files_are_refused_by_every_reader(tmp_path: Path) -> None:
    """No other exception than ours, no hang, no flood of memory, nothing touched or started."""
    found = subprocess.run(
        [sys.executable, SCRIPT, "--groups", "plain", "--seconds", "2", "--findings", tmp_path],
        capture_output=True,
        text=True,
    )
    kept = [path.read_text() for path in sorted(tmp_path.glob("*/error.txt"))]
    assert found.returncode == 0, "\n".join([found.stdout, found.stderr, *kept])
