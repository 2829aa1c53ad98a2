"""The process of one job: ``python -P -m placewright ARGUMENTS`` in a folder of its own.

    JOB/work/            its current folder: copies of the stored files that it names
    JOB/out/             what it writes: result.json, report.html, trace.json.gz, ...
    JOB/progress.jsonl   its progress; the last line has the exit code
    JOB/log.txt          standard error
    JOB/table.txt        standard output

The process is in a session of its own, so that it outlives the service. A service that starts
finds the process of a job by its environment, which names the progress file: no number of a process
is written down, which another process might have by then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from placewright.interpreter import python_command, python_environment
from placewright.io.growing import end_of, json_lines

PROGRESS = "PLACEWRIGHT_PROGRESS"
"""The environment variable that `placewright.cli.console` reads."""

RESULT_BYTES = 64 << 20
"""Of a document that is looked at."""

OUT = "../out"
"""Of what a job writes, as seen from its current folder."""

GRACE_S = 10.0
"""From Ctrl-C, which keeps the best plan so far, to SIGTERM, and from there to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.

    Attributes
    ----------
    exit_code
        ``None``: it was killed before it could say.
    error
        The four parts of its error, where it had one.
    """

    exit_code: int | None
    error: dict[str, str] | None = None


class JobFolder:
    """The folder of a job, and the process that works in it.

    `poll_s`: between two looks whether it has ended.
    """

    poll_s = 0.1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work, self.out = path / "work", path / "out"
        self.progress, self.log = path / "progress.jsonl", path / "log.txt"
        self.table = path / "table.txt"
        self._started: subprocess.Popen[bytes] | None = None
        self._found: int | None = None

    def make(self) -> None:
        """Make it; what an attempt that was lost has written is removed."""
        self.work.mkdir(parents=True, exist_ok=True)
        rmtree(self.out, ignore_errors=True)
        self.out.mkdir()

    def start(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start its process."""
        environment = {**python_environment(), **variables, PROGRESS: str(self.progress)}
        with open(self.log, "ab") as log, open(self.table, "wb") as table:
            self._started = subprocess.Popen(
                python_command("-m", "placewright", *arguments),
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=table,
                stderr=log,
                start_new_session=True,
            )

    def process(self) -> int | None:
        """The number of its process, ``None`` where none is running."""
        if self._started is not None:
            return self._started.pid if self._started.poll() is None else None
        wanted = f"{PROGRESS}={self.progress}".encode()
        names = os.listdir("/proc") if self._found is None else [str(self._found)]
        ours = (int(pid) for pid in names if pid.isdigit() and wanted in _environment(pid))
        self._found = next(ours, None)
        return self._found

    def variable(self, name: str) -> str | None:
        """An environment variable of its process; ``None`` where none is running, or without it."""
        pid, start = self.process(), f"{name}=".encode()
        words = [] if pid is None else _environment(pid)
        return next((w[len(start) :].decode() for w in words if w.startswith(start)), None)

    def is_running(self) -> bool:
        """Whether its process is running."""
        return self.process() is not None

    def was_started(self) -> bool:
        """Whether the attempt that was begun last may have had a process."""
        return True

    def wait(
        self,
        cancelled_s: Callable[[], float | None],
        stopping: Callable[[], bool],
        ending_s: float | None = None,
    ) -> bool:
        """Wait until its process has ended; end it where the job is cancelled.

        Parameters
        ----------
        cancelled_s
            When the job was cancelled, ``None`` if it was not.
        stopping
            Whether the service ends: the process goes on without it.
        ending_s
            For so long it may finish what it has begun: SIGTERM comes first, and nothing before
            `GRACE_S` more. ``None``: see `GRACE_S`.

        Returns
        -------
        Whether the process has ended.
        """
        first = sent = 0 if ending_s is None else 1
        begun_s, step_s = time.time(), GRACE_S + (ending_s or 0.0)
        while self.is_running():
            since_s = cancelled_s()
            # A service that was away, and may have told it nothing, does not hurry it now.
            due_s = None if since_s is None else max(since_s, begun_s) + (sent - first) * step_s
            if due_s is not None and time.time() >= due_s:
                self.end(sent)
                sent += 1
            if stopping():
                return False
            time.sleep(self.poll_s)
        return True

    def ending(self) -> Ending | None:
        """What its process has written at its end; ``None`` where it could not."""
        for line in reversed(self.lines()):
            if "exit_code" in line:
                return Ending(line["exit_code"], line.get("error"))
            if line.get("attempt"):
                return None
        return None

    def begin_attempt(self, number: int) -> None:
        """What follows in the progress file is about this attempt."""
        with open(self.progress, "a", encoding="utf-8") as file:
            file.write(json.dumps({"attempt": number}) + "\n")

    def lines(self, last_bytes: int | None = None) -> list[dict[str, Any]]:
        """The progress file, or its end; a line that is not whole is left out."""
        return json_lines(end_of(self.progress, last_bytes))

    def result(self) -> dict[str, Any] | None:
        """The document that it has written; ``None`` without one, or where it is very large."""
        path = self.out / "result.json"
        with suppress(OSError, ValueError):
            data = json.loads(path.read_bytes()) if path.stat().st_size <= RESULT_BYTES else None
            return data if isinstance(data, dict) else None
        return None

    def end(self, sent: int) -> None:
        """Ctrl-C, then SIGTERM, then an end of everything that belongs to it."""
        pid = self.process()
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if sent < 2:
                os.kill(pid, (signal.SIGINT, signal.SIGTERM)[sent])
            else:
                os.killpg(pid, signal.SIGKILL)


def _environment(pid: int | str) -> list[bytes]:
    """The variables that a process of ours was started with; none where none is running."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
