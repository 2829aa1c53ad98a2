"""The process of one job, ``python -P -m placewright ARGUMENTS``, here or on a Ray cluster.

It has a folder of its own:

    JOB/work/            its current folder: copies of the stored files that it names
    JOB/out/             what it writes: result.json, report.html, trace.json.gz, ...; folders are
                         packed when it has ended
    JOB/progress.jsonl   its progress; the last line has the exit code
    JOB/log.txt          standard error
    JOB/table.txt        standard output

The process is in a session of its own, so that it outlives the service. A service that starts
finds the process of a job by its environment, which names the progress file: no number of a process
is written down, which another process might have by then.

**On a Ray cluster** each attempt is a submission by Ray's job API. Ray chooses a machine with a
free CPU. Every machine sees the service's folder under the same path (a network file system) and
has Placewright installed where this one has it; what a job writes is there, as it is with local
processes. A job whose machine is lost has ended without a word: `Jobs` starts it once more where
that does no harm.

Ray executes what its head is told, so the cluster is one that the operator has named.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import make_archive, rmtree
from typing import Any

from placewright.errors import RunError
from placewright.interpreter import (
    environment_of,
    process_with,
    python_command,
    python_environment,
)
from placewright.io.output import end_of, json_lines

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
    interrupted
        Whether it was ended early, and has kept what there was.
    """

    exit_code: int | None
    error: dict[str, str] | None = None
    interrupted: bool = False


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

    def pack(self) -> None:
        """Make an archive of each folder that was written, which is downloaded as one file."""
        for folder in list(self.out.glob("*")):
            if folder.is_symlink() or not folder.is_dir():  # what a link names is not the job's
                continue
            with suppress(OSError):  # a full disk: what was written stays
                make_archive(str(folder), "zip", folder)
                rmtree(folder)

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
        wanted = str(self.progress)
        if self._found is None or environment_of(self._found).get(PROGRESS) != wanted:
            self._found = process_with(PROGRESS, wanted)
        return self._found

    def variable(self, name: str) -> str | None:
        """An environment variable of its process; ``None`` where none is running, or without it."""
        pid = self.process()
        return None if pid is None else environment_of(pid).get(name)

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
                return Ending(line["exit_code"], line.get("error"), line.get("interrupted", False))
            if line.get("attempt"):
                return None
        return None

    def begin_attempt(self, number: int) -> None:
        """What follows in the progress file is about this attempt.

        It becomes another file: a process of a lost machine that still lives writes into the one
        that it has open, and nobody takes its lines for those of this attempt.
        """
        earlier = self.progress.read_bytes() if self.progress.exists() else b""
        if earlier and not earlier.endswith(b"\n"):
            earlier += b"\n"  # it was killed within a line
        line = json.dumps({"attempt": number}) + "\n"
        beside = self.progress.with_suffix(".new")
        beside.write_bytes(earlier + line.encode())
        beside.replace(self.progress)

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


SILENT_S = 120.0
"""For so long a head that does not answer, or has no machine for a job, is taken for a busy one."""

HANDED_ON = ("PYTHONPATH", "PYTHONSAFEPATH", "TORCHINDUCTOR_CACHE_DIR")

GOING, UNKNOWN = ("PENDING", "RUNNING"), "UNKNOWN"
"""States of a submission."""


def ray_folders() -> Callable[[Path], JobFolder]:
    """What makes the folder of a job on the cluster that the environment names; errors as there."""
    from placewright.runtime.engines.ray_engine import job_client

    return partial(RayJobFolder, job_client())


class RayJobFolder(JobFolder):
    """The folder of a job, and the submission to Ray that works in it."""

    poll_s = 0.5

    def __init__(self, client: Any, path: Path) -> None:
        super().__init__(path)
        self._client = client
        self._attempt: int | None = None
        self._answered_s = time.monotonic()

    def start(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Submit its command; on a machine of Ray, it works in the same folder."""
        environment = python_environment()
        handed = {name: environment[name] for name in HANDED_ON if name in environment}
        stop = {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": f"{2 * GRACE_S:.0f}"}
        progress = {PROGRESS: str(self.progress)}
        command = shlex.join(python_command("-m", "placewright", *arguments))
        work, table, log = (shlex.quote(str(each)) for each in (self.work, self.table, self.log))
        self._submit(
            entrypoint=f"cd {work} && exec {command} > {table} 2>> {log}",
            submission_id=self._submission(),
            runtime_env={"env_vars": {**handed, **stop, **variables, **progress}},
            entrypoint_num_cpus=1,
        )

    def _submit(self, **submission: Any) -> None:
        """Hand it to the head, which may have no machine for it yet; `RunError`: it takes none."""
        end_s = time.monotonic() + SILENT_S
        while True:
            try:
                self._client.submit_job(**submission)
                return
            except (RuntimeError, OSError) as error:
                if self._status() not in (UNKNOWN, None):
                    return  # it was taken, and the answer was lost
                if time.monotonic() > end_s:
                    words = f"{SILENT_S:.0f} s: {str(error).strip()[:200]}"
                    hint = "look at its machines: ray status"
                    address = self._client.get_address()
                    raise RunError("Ray takes no job", where=address, by=words, hint=hint) from None
            time.sleep(self.poll_s)

    def is_running(self) -> bool:
        """Whether Ray has the submission and it has not ended."""
        status = self._status()
        if status is None:
            return time.monotonic() < self._answered_s + SILENT_S
        self._answered_s = time.monotonic()
        return status in GOING

    def was_started(self) -> bool:
        """Whether Ray knows the submission: a service may end before it has sent one."""
        return self._status() != UNKNOWN

    def _status(self) -> str | None:
        """That of the submission, `UNKNOWN` where there is none; ``None``: Ray does not answer."""
        try:
            return str(self._client.get_job_status(self._submission()).value)
        except RuntimeError as error:
            return UNKNOWN if " 404:" in str(error) else None
        except OSError:
            return None

    def end(self, sent: int) -> None:
        """Let Ray send Ctrl-C, and kill what is left later."""
        if sent == 0:
            with suppress(RuntimeError, OSError):
                self._client.stop_job(self._submission())

    def begin_attempt(self, number: int) -> None:
        """The next submission is that of this attempt."""
        super().begin_attempt(number)
        self._attempt = number

    def _submission(self) -> str:
        """Its identifier: of the job, and of the attempt that was begun last."""
        if self._attempt is None:
            self._attempt = max((line.get("attempt", 0) for line in self.lines()), default=0)
        return f"{self.path.name}-{self._attempt}"
