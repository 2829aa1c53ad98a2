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

PROGRESS = "PLACEWRIGHT_PROGRESS"
"""The environment variable that `placewright.cli.console` reads."""

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
        near = _processes() if self._found is None else [self._found]
        self._found = next((pid for pid in near if _has_variable(pid, wanted)), None)
        return self._found

    def is_running(self) -> bool:
        """Whether its process is running."""
        return self.process() is not None

    def was_started(self) -> bool:
        """Whether the attempt that was begun last may have had a process."""
        return True

    def wait(self, cancelled_s: Callable[[], float | None], stopping: Callable[[], bool]) -> bool:
        """Wait until its process has ended; end it where the job is cancelled.

        Parameters
        ----------
        cancelled_s
            When the job was cancelled, ``None`` if it was not.
        stopping
            Whether the service ends: the process goes on without it.

        Returns
        -------
        Whether the process has ended.
        """
        sent = 0
        while self.is_running():
            since_s = cancelled_s()
            if since_s is not None and time.time() >= since_s + sent * GRACE_S:
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
        if not self.progress.exists():
            return []
        with open(self.progress, "rb") as file:
            if last_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            return parsed_lines(file.read())

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


def parsed_lines(data: bytes) -> list[dict[str, Any]]:
    """JSON lines; one that was cut off by a crash is left out."""
    found = []
    for line in data.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def _processes() -> list[int]:
    """Of this machine."""
    return [int(each) for each in os.listdir("/proc") if each.isdigit()]


def _has_variable(pid: int, wanted: bytes) -> bool:
    """Whether a process of ours runs and was started with this variable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False
