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
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

from placewright.errors import InputError, PlacewrightError, RunError
from placewright.planning.wings import wings
from placewright.service.files import NAME, FileStore, digest, document_kind
from placewright.service.operations import Operation, used_file
from placewright.service.process import OUT, Ending, JobFolder
from placewright.service.store import ENDED, GOING, Job, JobState, Store, new_id

QUEUE = "jobs"

ATTEMPTS = 2
"""Of a job whose process was killed."""

VERSION = "1"
"""Of the workflow: DBOS takes up those of the same version only."""

SUMMARY = (
    *("problem", "planner", "objective", "value", "lower_bound", "upper_bound", "gap", "status"),
    *("direction", "runtime_s", "measured_s", "predicted_s"),
)
"""Keys of a result that lists show."""

SUMMARY_BYTES = 64 << 20

LOG_CHARACTERS = 2000

Error = dict[str, str]


class TooManyJobsError(PlacewrightError):
    """A caller has as many jobs as one may have."""


class _Leaving(BaseException):
    """The service ends while a job is running: its workflow is left as it is, for the next one."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What may be asked for.

    `at_once`: jobs that run at the same time. `waiting`: jobs of one caller that have not ended.
    """

    at_once: int = 1
    waiting: int = 100


class Jobs:
    """All jobs of a service.

    Parameters
    ----------
    workflows
        URL of the database in which DBOS keeps its workflows.
    models
        Factories that requests may name.
    variables
        Environment variables of the jobs' processes.
    new_folder
        Makes the folder of a job, whose process is here or elsewhere.
    """

    def __init__(
        self,
        store: Store,
        files: FileStore,
        operations: Mapping[str, Operation],
        *,
        workflows: str,
        models: Sequence[str] = (),
        limits: JobLimits | None = None,
        variables: Mapping[str, str] | None = None,
        new_folder: Callable[[Path], JobFolder] = JobFolder,
    ) -> None:
        self.store, self.files, self.operations = store, files, operations
        self.models, self.limits = tuple(models), limits or JobLimits()
        self._workflows, self._variables = workflows, dict(variables or {})
        self._new_folder = new_folder
        self._stopping = threading.Event()
        self._launched = threading.Event()
        self._enqueue: Callable[[str], object] | None = None

    def folder(self, id: str) -> JobFolder:
        """Of a job that is in the store."""
        return self._new_folder(self.files.jobs / id)

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
        """
        self._used_files(operation, options)
        if self.store.open_jobs(owner) >= self.limits.waiting:
            by = f"{self.limits.waiting} have not ended"
            raise TooManyJobsError(
                "there are too many jobs", by=by, hint="wait for one, or cancel one"
            )
        job = Job(
            id=new_id(),
            operation=operation.name,
            options=dict(options),
            state=JobState.QUEUED,
            owner=owner,
            created_s=time.time(),
            attempts=0,
            retry_of=retry_of or None,
        )
        self.store.add_job(job)
        if self._enqueue is not None:  # else `launch` will do it
            self._enqueue(job.id)
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
        """Take up what was left, and begin."""
        from dbos import DBOS, SetWorkflowID

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
        DBOS.register_queue(QUEUE, concurrency=self.limits.at_once, polling_interval_sec=0.25)

        def enqueue(id: str) -> object:
            with SetWorkflowID(id):  # the second time that one is enqueued nothing happens
                return DBOS.enqueue_workflow(QUEUE, workflow, id)

        self._enqueue = enqueue
        for job in self._open():
            enqueue(job.id)
        self._launched.set()

    def take_results(self, folder: Path) -> None:
        """Show plans that commands have written to a folder, and their reports, as jobs.

        ``NAME-plan.json`` goes with ``NAME.html`` and ``NAME-trace.json.gz``, as `quickstart`
        writes them. A plan that was taken is not taken again, unless it has changed.
        """
        kinds = {wing.files().plan_document.kind: name for name, wing in wings().items()}
        taken = {file.sha256 for file in self.store.files(kinds=list(kinds), most=1_000_000)}
        for path in sorted(folder.glob("*.json")):
            wing = kinds.get(document_kind(path, path.name))
            if wing is not None and NAME.fullmatch(path.name) and digest(path) not in taken:
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
            if plan.with_name(name).is_file():
                copyfile(plan.with_name(name), job_folder.out / output)
        job.summary = _summary(job_folder.out / "result.json")
        self.store.add_job(job)
        self.files.keep_output(job.id, "result.json", plan.name, "")

    def stop(self) -> None:
        """Leave running jobs to the next service."""
        from dbos import DBOS

        self._stopping.set()
        if self._enqueue is not None:
            DBOS.destroy(destroy_registry=True)

    def execute(self, id: str) -> str:
        """Run a job to its end; see the module."""
        job = self.store.job(id)
        if job is None or job.state in ENDED:
            return "" if job is None else job.state
        folder = self.folder(id)
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
            if not folder.wait(partial(self._cancelled_s, job.id), self._stopping.is_set):
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
            self.files.copy(self._used_files(operation, job.options), folder.work)
        except PlacewrightError as error:
            return Ending(error.exit_code, parts(error))
        job.attempts += 1
        # Before the process is there: whoever finds it gone must know that there was one.
        job.started_s = job.started_s or time.time()
        running: dict[str, Any] = {"attempts": job.attempts, "started_s": job.started_s}
        if self.store.update_job(job.id, state=JobState.RUNNING, **running) is None:
            return Ending(None)  # cancelled in this moment
        folder.begin_attempt(job.attempts)
        try:
            folder.start(operation.arguments(job.options, OUT), self._variables)
        except OSError as error:
            hint = "look at the service's machine, and retry it"
            return Ending(1, parts(RunError("it did not start", by=str(error), hint=hint)))
        except PlacewrightError as error:
            return Ending(error.exit_code, parts(error))
        return None

    def _finish(self, job: Job, folder: JobFolder, ending: Ending) -> str:
        """Record how a job has ended, and let requests name what it has written."""
        summary = _summary(folder.out / "result.json")
        state = _state(job, ending, summary)
        error = None
        if state in (JobState.FAILED, JobState.INFEASIBLE, JobState.LOST):
            error = ending.error or _error(state, ending, folder)
        if state in (JobState.DONE, JobState.INTERRUPTED):
            self._keep_outputs(job, folder)
        self.store.update_job(
            job.id,
            state=state,
            ended_s=time.time(),
            exit_code=ending.exit_code,
            error=error,
            summary=summary,
        )
        return state

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

    def _open(self) -> list[Job]:
        """Jobs that have not ended, oldest first."""
        return self.store.jobs(states=GOING, most=1_000_000)[::-1]


def parts(error: PlacewrightError) -> Error:
    """The four parts of an error."""
    hint = error.hint or error.otherwise
    return {"what": error.what, "where": error.where, "by": error.by, "next": hint}


def _state(job: Job, ending: Ending, summary: Mapping[str, Any] | None) -> JobState:
    if ending.exit_code == 0:
        stopped = job.cancelled_s is not None and summary is not None
        kept = stopped and summary.get("status") == "INTERRUPTED"  # type: ignore[union-attr]
        return JobState.INTERRUPTED if kept else JobState.DONE
    if job.cancelled_s is not None:
        return JobState.CANCELLED
    if ending.exit_code is None:
        return JobState.LOST
    return JobState.INFEASIBLE if ending.exit_code == 3 else JobState.FAILED


def _error(state: JobState, ending: Ending, folder: JobFolder) -> Error:
    """What is known of a failure that has not described itself."""
    if state == JobState.LOST:
        return {
            "what": "its process was killed",
            "where": "",
            "by": "",
            "next": "look at its log, and retry it if it may run twice",
        }
    log = folder.log.read_text(errors="replace")[-LOG_CHARACTERS:] if folder.log.exists() else ""
    what = log.strip() or f"it ended with exit code {ending.exit_code}"
    return {"what": what, "where": "", "by": "", "next": "look at its log"}


def _summary(result: Path) -> dict[str, Any] | None:
    """The head of a result, as far as the file has one."""
    if not result.exists() or result.stat().st_size > SUMMARY_BYTES:
        return None
    try:
        data = json.loads(result.read_bytes())
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    return {key: data[key] for key in SUMMARY if isinstance(data.get(key), str | float | int)}
