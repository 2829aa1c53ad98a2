"""Durable jobs: one that was accepted is carried to its end, whatever ends in between.

A job is a row of the store before it is anything else. DBOS then holds one workflow for it, under
the same identifier, and runs so many at a time as the operator allows. The workflow has one step,
`Jobs.execute`, which is safe to repeat:

    found by the step                               what it does
    the job has ended                               nothing
    its process has written how it ended            takes that
    its process is running                          waits for it
    nothing was started yet                         starts a process
    a process is gone without a word                starts another once, if the verb only computes;
                                                    otherwise the job is *lost*

Request services are jobs, too, in a queue of their own, in which none waits for another.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

from sqlalchemy.exc import DBAPIError

from placewright.errors import InputError, PlacewrightError, RunError
from placewright.io.boundary import data_of_pickle
from placewright.io.output import end_of
from placewright.io.stored import sha256_of
from placewright.planning.wings import families
from placewright.service.files import FileStore, stored_kind
from placewright.service.operations import Operation, used_file
from placewright.service.process import OUT, Ending, JobFolder
from placewright.service.store import (
    ALL,
    ENDED,
    GOING,
    SERVED,
    DatabaseError,
    Job,
    JobState,
    Store,
    database_error,
    new_id,
)

QUEUE, SERVICES_QUEUE = "jobs", "services"

SERVICES_AT_ONCE = 4
"""Request services that run at a time."""

MOST_WAITING = 100
"""Jobs of one caller that have not ended."""

SERVICE_POLL_S = 0.5
"""Between two looks at each of them."""

ATTEMPTS = 2
"""Of a job whose process was killed."""

AGAIN_S = 2.0
"""Until a job is looked at again whose state the database did not take."""

VERSION = "1"
"""Of the workflow: DBOS takes up those of the same version only."""

SUMMARY = (
    *("problem", "planner", "objective", "value", "lower_bound", "upper_bound", "gap", "status"),
    *("unit", "direction", "runtime_s", "measured_s", "predicted_s"),
)
"""Keys of a result that lists show."""

LOG_BYTES = 2000


class TooManyJobsError(PlacewrightError):
    """A caller has as many jobs as one may have."""


class _Leaving(BaseException):
    """The service ends while a job is running: its workflow is left as it is, for the next one."""


class Jobs:
    """All jobs of a service.

    Parameters
    ----------
    workflows
        URL of the database in which DBOS keeps its workflows.
    models
        Factories that requests may name.
    at_once
        Jobs that run at the same time.
    variables
        Environment variables of the jobs' processes.
    new_folder
        Makes the folder of a job, whose process is here or elsewhere.

    `alone`: entered while a job that is no service runs.
    """

    def __init__(
        self,
        store: Store,
        files: FileStore,
        operations: Mapping[str, Operation],
        *,
        workflows: str,
        models: Sequence[str] = (),
        at_once: int = 1,
        variables: Mapping[str, str] | None = None,
        new_folder: Callable[[Path], JobFolder] = JobFolder,
    ) -> None:
        self.store, self.files, self.operations = store, files, operations
        self.models, self._at_once = tuple(models), at_once
        self._workflows, self._variables = workflows, dict(variables or {})
        self._new_folder = new_folder
        self.alone: Callable[[], AbstractContextManager[None]] = nullcontext
        self._stopping = threading.Event()
        self._enqueue: Callable[[Job], object] | None = None

    def folder(self, id: str) -> JobFolder:
        """Of a job that is in the store."""
        return self._new_folder(self.files.jobs / id)

    def service_folder(self, id: str) -> JobFolder:
        """Of a service, whose server is here whatever the engine."""
        return _service_folder(self.files.jobs / id)

    def submit(
        self, operation: Operation, options: Mapping[str, Any], owner: str, retry_of: str = ""
    ) -> Job:
        """Accept a job.

        Raises
        ------
        InputError
            An option names what it may not, or no file.
        TooManyJobsError
            The caller has too many jobs already.
        DatabaseError
            The database cannot be used.
        """
        self._used_files(operation, options)
        services = operation.name == SERVED  # which `Services` counts
        if not services and self.store.open_jobs(owner) >= MOST_WAITING:
            by = f"{MOST_WAITING} have not ended"
            raise TooManyJobsError(
                "there are too many jobs", by=by, hint="wait for one, or cancel one"
            )
        given = {"options": dict(options), "retry_of": retry_of or None}
        job = Job(operation=operation.name, owner=owner, **given)
        self.store.add_job(job)
        if self._enqueue is not None:  # else `launch` will do it
            try:
                self._enqueue(job)
            except DBAPIError as error:
                with suppress(DatabaseError):  # who asked is told that there is no job
                    self.cancel(job.id)
                    self.store.delete_job(job.id)
                raise database_error(self._workflows, error.orig) from None
        return job

    def cancel(self, id: str) -> None:
        """Cancel a job; the process of a running one is asked for the best so far."""
        now_s = time.time()
        ended = {"state": JobState.CANCELLED, "cancelled_s": now_s, "ended_s": now_s}
        if self.store.update_job(id, only=JobState.QUEUED, **ended) is None:
            job = self.store.job(id)
            if job is not None and job.cancelled_s is None:
                self.store.update_job(id, cancelled_s=now_s)

    def delete(self, id: str) -> None:
        """Remove a job that has ended, with everything that it has written.

        Raises `InputError`: it has not ended.
        """
        job = self.store.job(id)
        if job is not None and job.state not in ENDED:
            raise InputError("has not ended", where=f"job {id}", by=job.state, hint="cancel it")
        self.store.delete_job(id)
        rmtree(self.folder(id).path, ignore_errors=True)

    def launch(self) -> None:
        """Take up what was left, and begin.

        Raises `DatabaseError`: the database of the workflows cannot be used.
        """
        try:
            self._launch()
        except DBAPIError as error:
            raise database_error(self._workflows, error.orig) from None

    def _launch(self) -> None:
        from dbos import DBOS, SetWorkflowID

        load_only_data()
        logging.getLogger("dbos").addFilter(_brief)
        DBOS(
            config={
                "name": "placewright",
                "system_database_url": self._workflows,
                "application_version": VERSION,
                "executor_id": "service",
                "console_log_level": "ERROR",
                "log_level": "ERROR",
                "enable_otlp": False,
            }
        )

        @DBOS.step(name="execute")
        def execute(id: str) -> str:
            return self.execute(id)

        @DBOS.workflow(name="run_job")
        def workflow(id: str) -> str:
            return execute(id)

        DBOS.launch()
        for queue, at_once in ((QUEUE, self._at_once), (SERVICES_QUEUE, SERVICES_AT_ONCE)):
            DBOS.register_queue(queue, concurrency=at_once, polling_interval_sec=0.25)

        def enqueue(job: Job) -> object:
            queue = SERVICES_QUEUE if job.operation == SERVED else QUEUE
            with SetWorkflowID(job.id):  # the second time that one is enqueued nothing happens
                return DBOS.enqueue_workflow(queue, workflow, job.id)

        self._enqueue = enqueue
        for operation in (None, SERVED):
            left = self.store.jobs(states=GOING, operation=operation, most=ALL)
            for job in reversed(left):
                enqueue(job)

    def take_results(self, folder: Path) -> None:
        """Show plans that commands have written to a folder, and their reports, as jobs.

        ``NAME-plan.json`` goes with ``NAME.html`` and ``NAME-trace.json.gz``, as `quickstart`
        writes them. A plan that was taken is not taken again, unless it has changed.
        """
        kinds = {wing.files().plan_document.kind: name for name, wing in families()}
        every = (job for job in self.store.jobs(most=ALL) if "found" in job.options)
        results = (self.folder(job.id).out / "result.json" for job in every)
        taken = {sha256_of(result) for result in results if result.is_file()}
        for path in sorted(filter(_is_plain, folder.glob("*.json"))):
            wing = kinds.get(stored_kind(path, path.name))
            if wing is not None and sha256_of(path) not in taken:
                self._take(path, f"{wing}.plan")

    def _take(self, plan: Path, operation: str) -> None:
        """Keep a plan as a job that is done, though nothing was run for it."""
        written_s = plan.stat().st_mtime
        job = Job(id=new_id(), operation=operation, options={"found": plan.name}, attempts=0)
        job.state, job.created_s, job.ended_s = JobState.DONE, written_s, written_s
        job_folder, stem = self.folder(job.id), plan.stem.removesuffix("-plan")
        job_folder.make()
        beside = {"report.html": f"{stem}.html", "trace.json.gz": f"{stem}-trace.json.gz"}
        for output, name in {"result.json": plan.name, **beside}.items():
            if _is_plain(plan.with_name(name)):
                copyfile(plan.with_name(name), job_folder.out / output)
        job.summary = _summary(job_folder)
        self.store.add_job(job)
        name = re.sub(r"[^\w.+-]", "-", plan.name, flags=re.ASCII)[-100:].lstrip("_.+-")
        self.files.keep_output(job.id, "result.json", name, "")

    def stop(self) -> None:
        """Leave running jobs to the next service."""
        from dbos import DBOS

        self._stopping.set()
        if self._enqueue is not None:
            DBOS.destroy(destroy_registry=True)

    def execute(self, id: str) -> str:
        """Run a job to its end; see the module.

        While the database takes nothing the job is left as it is, and looked at again.
        """
        while True:
            try:
                return self._executed(id)
            except DatabaseError:
                if self._stopping.wait(AGAIN_S):
                    raise _Leaving from None

    def _executed(self, id: str) -> str:
        job = self.store.job(id)
        if job is None or job.state in ENDED:
            return "" if job is None else job.state
        served = job.operation == SERVED
        folder = self.service_folder(id) if served else self.folder(id)
        with nullcontext() if served else self.alone():
            while True:
                ending = self._ended(job, folder)
                again = ending.exit_code is None and job.cancelled_s is None
                if not (again and self._may_repeat(job)):
                    break
        return self._finish(job, folder, ending)

    def _ended(self, job: Job, folder: JobFolder) -> Ending:
        """How the job's process has ended, which is started if it was not."""
        ending = folder.ending()
        if ending is None and not folder.is_running():
            if job.attempts and not (self._may_repeat(job) or self._was_never_started(job, folder)):
                return Ending(None)
            refused = self._start(job, folder)
            if refused is not None:
                return refused
        if ending is None or folder.is_running():
            operation = self.operations.get(job.operation)
            ending_s = None if operation is None else operation.ending_s(job.options)
            cancelled_s = partial(self._cancelled_s, job.id)
            if not folder.wait(cancelled_s, self._stopping.is_set, ending_s):
                raise _Leaving
            ending = folder.ending()
        job.cancelled_s = self._cancelled_s(job.id)
        return ending or Ending(None)

    def _may_repeat(self, job: Job) -> bool:
        return self.operations[job.operation].repeatable and job.attempts < ATTEMPTS

    def _was_never_started(self, job: Job, folder: JobFolder) -> bool:
        """Whether the latest attempt ended before it had a process."""
        return self.operations[job.operation].repeatable and not folder.was_started()

    def _start(self, job: Job, folder: JobFolder) -> Ending | None:
        """Start the job's process, or say why that cannot be."""
        operation = self.operations.get(job.operation)
        try:
            if operation is None:
                raise InputError("the verb is gone", where=job.operation, hint="install its wing")
            folder.make()
            if not job.attempts:  # else it has its copies, whatever became of the files
                names = self._used_files(operation, job.options)
                self.files.copy(names, folder.work, accepted_s=job.created_s)
            arguments, secrets = operation.command(job.options, folder.work, OUT)
        except DatabaseError:
            raise
        except PlacewrightError as error:
            return Ending(error.exit_code, error.parts)
        except OSError as error:
            return _not_started(error)
        job.attempts += 1
        # Before the process is there: whoever finds it gone must know that there was one.
        job.started_s = job.started_s or time.time()
        running: dict[str, Any] = {"attempts": job.attempts, "started_s": job.started_s}
        if self.store.update_job(job.id, state=JobState.RUNNING, **running) is None:
            return Ending(None)  # cancelled in this moment
        try:
            folder.begin_attempt(job.attempts)
            folder.start(arguments, self._variables | secrets)
        except OSError as error:
            return _not_started(error)
        except PlacewrightError as error:
            return Ending(error.exit_code, error.parts)
        return None

    def _finish(self, job: Job, folder: JobFolder, ending: Ending) -> str:
        """Record how a job has ended, and let requests name what it has written."""
        state = _state(job, ending)
        error = None
        if state in (JobState.FAILED, JobState.INFEASIBLE, JobState.LOST):
            error = ending.error or _error(state, ending, folder)
        folder.pack()
        if state in (JobState.DONE, JobState.INTERRUPTED):
            self._keep_outputs(job, folder)
        self.store.update_job(
            job.id,
            state=state,
            ended_s=time.time(),
            exit_code=ending.exit_code,
            error=error,
            summary=_summary(folder),
        )
        return state.value

    def _keep_outputs(self, job: Job, folder: JobFolder) -> None:
        kept = {file.output for file in self.store.files(job=job.id)}
        for path in sorted(folder.out.glob("*")):
            stem, dot, ending = path.name.partition(".")
            usable = dot and path.is_file() and ending in ("json", "safetensors")
            if usable and path.name not in kept and path.name != "trace.json.gz":
                middle = "" if stem == "result" else f"-{stem}"
                name = f"{job.operation.replace('.', '-')}-{job.id[-6:]}{middle}.{ending}"
                self.files.keep_output(job.id, path.name, name, job.owner)

    def _used_files(self, operation: Operation, options: Mapping[str, Any]) -> list[str]:
        """Names of the stored files that options name; `InputError` where one may not stand."""
        used = (
            used_file(option, text, self.files, self.models)
            for option, text in operation.texts(options)
        )
        return [name for name in used if name is not None]

    def _cancelled_s(self, id: str) -> float | None:
        job = self.store.job(id)
        return None if job is None else job.cancelled_s


def _is_plain(path: Path) -> bool:
    """Whether a command may have written it: no pipe, which is waited for, and no link."""
    return path.is_file() and not path.is_symlink()


@lru_cache(maxsize=256)
def _service_folder(path: Path) -> JobFolder:
    """One object for all who ask, which knows its process once it has been looked for."""
    folder = JobFolder(path)
    folder.poll_s = SERVICE_POLL_S  # it is looked at for days
    return folder


def load_only_data() -> None:
    """Let DBOS make nothing but data of the pickles that it keeps in its database.

    A workflow of ours has an identifier and a state. Whoever may write to the database, which may
    be on another machine, could have code executed otherwise.
    """
    from dbos._serialization import DefaultSerializer

    def deserialize(self: object, data: str) -> Any:
        return data_of_pickle(b64decode(data))

    DefaultSerializer.deserialize = deserialize  # type: ignore[method-assign, assignment]


def _brief(record: logging.LogRecord) -> bool:
    """A line of DBOS's log says what a database refused; pages of traceback say no more."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DatabaseError | DBAPIError):
        why = error.orig if isinstance(error, DBAPIError) else error.what
        record.msg, record.args = f"{record.getMessage()} {why}", ()
        record.exc_info = record.exc_text = None
    return True


def _not_started(error: OSError) -> Ending:
    hint = "look at the service's machine, and retry it"
    return Ending(1, RunError("it did not start", by=str(error), hint=hint).parts)


def _state(job: Job, ending: Ending) -> JobState:
    if ending.exit_code == 0:
        return JobState.INTERRUPTED if ending.interrupted else JobState.DONE
    if job.cancelled_s is not None:
        return JobState.CANCELLED
    if ending.exit_code is None:
        return JobState.LOST
    return JobState.INFEASIBLE if ending.exit_code == 3 else JobState.FAILED


def _error(state: JobState, ending: Ending, folder: JobFolder) -> dict[str, str]:
    """What is known of a failure that has not described itself."""
    if state == JobState.LOST:
        hint = "look at its log, and start it again if it may run twice"
        return RunError("its process was killed", hint=hint).parts
    log = end_of(folder.log, LOG_BYTES).decode(errors="replace")
    what = log.strip() or f"it ended with exit code {ending.exit_code}"
    return RunError(what, hint="look at its log").parts


def _summary(folder: JobFolder) -> dict[str, Any] | None:
    """The head of a result, as far as there is one."""
    data = folder.result()
    if data is None:
        return None
    return {key: data[key] for key in SUMMARY if isinstance(data.get(key), str | float | int)}
