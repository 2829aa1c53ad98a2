"""Jobs on the machines of a Ray cluster, by Ray's job API: one submission for each attempt.

Ray chooses a machine with a free CPU. Every machine sees the service's folder under the same path
(a network file system) and has Placewright installed where this one has it; what a job writes is
there, as it is with local processes. A job whose machine is lost has ended without a word: `Jobs`
starts it once more where that does no harm.

Ray executes what its head is told, so the cluster is one that the operator has named.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from placewright.errors import InputError, MissingDependencyError, RunError
from placewright.interpreter import python_command, python_environment
from placewright.service.process import GRACE_S, PROGRESS, JobFolder

ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that name the cluster, as for ``ray job submit``: ``http://HEAD:8265``."""

SILENT_S = 120.0
"""For so long a head that does not answer, or has no machine for a job, is taken for a busy one."""

HANDED_ON = ("PYTHONPATH", "PYTHONSAFEPATH", "TORCHINDUCTOR_CACHE_DIR")

GOING, UNKNOWN = ("PENDING", "RUNNING"), "UNKNOWN"
"""States of a submission."""


def ray_folders() -> Callable[[Path], JobFolder]:
    """What makes the folder of a job on the cluster that the environment names.

    Raises
    ------
    InputError
        It names none.
    RunError
        Nobody answers there.
    MissingDependencyError
        Ray's job API is not installed.
    """
    address = next(filter(None, map(os.environ.get, ADDRESSES)), "")
    if not address.startswith(("http://", "https://")):
        raise InputError(
            "the Ray cluster is not named",
            where="--engine ray",
            by=f"{ADDRESSES[0]} is {address!r:.100}" if address else f"{ADDRESSES[0]} is not set",
            hint=f"{ADDRESSES[0]}=http://HEAD:8265, as `ray start --head` prints it",
        )
    try:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(address)
    except ModuleNotFoundError as error:
        purpose = "--engine ray"
        raise MissingDependencyError(str(error.name), extra="ray", purpose=purpose) from None
    except (ConnectionError, RuntimeError) as error:
        words = (str(error).strip().splitlines() or [""])[0]
        hint = "start it: ray start --head"
        raise RunError("no Ray cluster answers", where=address, by=words, hint=hint) from None
    return partial(RayJobFolder, client)


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
