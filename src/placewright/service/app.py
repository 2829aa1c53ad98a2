"""The API: operations, jobs, files and clusters as resources, under ``/api/v1``.

Every error is an object with the four parts of our errors:
``{"error": {"what": ..., "where": ..., "by": ..., "next": ...}}``.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from placewright.adapt.timeline import followed
from placewright.cluster.cluster import Cluster
from placewright.cluster.files import read_cluster
from placewright.cluster.schema import preset_names
from placewright.errors import InputError, PlacewrightError, RunError, UnknownNameError, look_up
from placewright.io.boundary import validate
from placewright.io.output import end_of, json_lines, lines_since
from placewright.planning.compiling import CompilingAhead
from placewright.planning.wings import wings
from placewright.service.files import NAME, FileStore, TooLargeError
from placewright.service.jobs import Jobs, TooManyJobsError
from placewright.service.operations import Operation
from placewright.service.store import (
    ALL,
    ENDED,
    SERVED,
    DatabaseError,
    Job,
    JobState,
    Store,
    Tokens,
)
from placewright.version import __version__
from placewright.web.access import BODY_S, COOKIE, HINTS, REPORT_CONTENT
from placewright.web.refusals import Refusal, body_pieces

LOOK_S, QUIET_S = 0.4, 1.5
"""Between two looks for what an event stream has to say; at most, where there was nothing."""

LEAST_RATE = 1 << 16
"""Bytes per second of an upload after its first `BODY_S`: half a megabit."""

LOG_BYTES = 1 << 18
"""Of a log, its end."""

OperationName = Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")]
FileName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{25}$")]

REFUSED = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)

HINT = "GET /api/openapi.json has the schema of every request"

START = "/api/v1/operations/{name}/jobs"
"""The route that starts jobs of every operation."""

PROGRESS_BYTES = 1 << 14
"""Of a progress file, the end in which the latest line is."""

COOKIE_S = 30 * 86400
"""For how long a browser keeps the token."""

MEDIA = {
    ".json": "application/json",
    ".html": "text/html",
    ".gz": "application/gzip",
    ".jsonl": "application/x-ndjson",
}


class ErrorParts(BaseModel):
    """What is wrong, where, by how much, and what to do next."""

    what: str
    where: str
    by: str
    next: str


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorParts


class JobAnswer(BaseModel, from_attributes=True):
    """A job.

    `summary`: the head of its result. `outputs`: names of what it has written.
    """

    id: str
    operation: str
    options: dict[str, Any]
    state: JobState
    owner: str
    created_s: float
    started_s: float | None
    ended_s: float | None
    exit_code: int | None
    error: ErrorParts | None
    summary: dict[str, Any] | None
    retry_of: str | None


class JobDetails(JobAnswer):
    """A job with what it has written and its latest progress."""

    outputs: list[str]
    progress: dict[str, Any] | None


class JobList(BaseModel):
    """A page of jobs; `next` is given as `before` for the one after it."""

    jobs: list[JobAnswer]
    next: str | None
    counts: dict[str, int]


class FileAnswer(BaseModel, from_attributes=True):
    """A stored file."""

    name: str
    kind: str
    bytes: int
    sha256: str
    created_s: float
    job: str | None


class FileList(BaseModel):
    """A page of files; `next` is given as `before` for the one after it."""

    files: list[FileAnswer]
    next: str | None


class OperationAnswer(BaseModel, from_attributes=True):
    """An operation, and the JSON schema of its options."""

    name: str
    wing: str | None
    summary: str
    text: str
    options: dict[str, Any] = Field(validation_alias="schema")


class WingAnswer(BaseModel):
    """A family of problems."""

    name: str
    title: str
    unit: str
    operations: list[str]


class ClusterAnswer(BaseModel):
    """A cluster that requests may name."""

    name: str
    stored: bool
    devices: int
    links: int


@dataclass(frozen=True, slots=True)
class Service:
    """What answers requests.

    `stopping`: set when the service ends, and with it streams of events. `ahead`: which kernels are
    compiled before a job needs them.
    """

    store: Store
    files: FileStore
    jobs: Jobs
    tokens: Tokens | None = None
    stopping: Event = field(default_factory=Event)
    ahead: CompilingAhead = field(default_factory=CompilingAhead)

    @property
    def operations(self) -> dict[str, Operation]:
        """By name, without that of request services."""
        return {name: each for name, each in self.jobs.operations.items() if name != SERVED}

    def job(self, id: str) -> Job:
        """The job of this identifier; `UnknownNameError` where there is none."""
        found = self.store.job(id)
        if found is None or found.operation == SERVED:
            raise UnknownNameError("job", id, ())
        return found

    def start(self, operation: Operation, options: dict[str, Any], owner: str) -> JobDetails:
        """Accept a job."""
        job = self.jobs.submit(operation, options, owner)
        self.store.audit(owner, "start", f"{operation.name} {job.id}")
        return details(self, job)

    def outputs(self, job: Job) -> list[str]:
        """Names of files that a job has written."""
        folder = self.jobs.folder(job.id).out
        return sorted(path.name for path in folder.glob("*") if path.is_file())


async def _owner(request: Request) -> str:
    """Who asks, as `Access` has found out."""
    return str(request.scope.get("owner", ""))


def _asked(id: JobId, request: Request) -> Job:
    service: Service = request.app.state.service
    return service.job(id)


Owner = Annotated[str, Depends(_owner)]
Asked = Annotated[Job, Depends(_asked)]
"""The job of the address."""


def api(service: Service) -> FastAPI:
    """The application."""
    app = FastAPI(
        title="Placewright",
        version=__version__,
        summary="Decides where deep learning runs.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts of others
        redoc_url=None,
        responses={code: {"model": ErrorAnswer} for code in REFUSED},
    )
    for routes in (_about, _operations, _jobs, _events, _outputs, _files):
        router = APIRouter(prefix="/api/v1")
        routes(router, service)
        app.include_router(router)
    for kind in (PlacewrightError, RequestValidationError, HTTPException, Refusal, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(OSError, _answer_full)
    app.state.service = service
    app.openapi = partial(_schema, app, service)  # type: ignore[method-assign]
    static = Path(__file__).with_name("static")
    app.mount("/static", StaticFiles(directory=static), name="static")
    return app


def _about(router: APIRouter, service: Service) -> None:
    """What this service is, and how it is."""

    @router.get("/health")
    def health() -> dict[str, str]:
        """Answer that the service is up, and what it still compiles."""
        return {"status": "ok", "version": __version__, "compiling": service.ahead.left}

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """Jobs by state and stored bytes, as Prometheus reads them."""
        lines = ["# TYPE placewright_jobs gauge"]
        counts = service.store.counts()
        lines += [f'placewright_jobs{{state="{s}"}} {counts.get(s, 0)}' for s in JobState]
        lines += ["# TYPE placewright_stored_bytes gauge"]
        lines += [f"placewright_stored_bytes {service.store.used_bytes()}"]
        return PlainTextResponse("\n".join(lines) + "\n")

    @router.post("/login", status_code=204)
    def login(token: Annotated[str, Body(embed=True, max_length=200)], response: Response) -> None:
        """Exchange a token for the cookie of the page."""
        if service.tokens is None:
            return
        if service.tokens.owner(token) is None:
            service.store.audit("", "refused", "login")
            raise Refusal(401, "this is not the token")
        response.set_cookie(COOKIE, token, max_age=COOKIE_S, httponly=True, samesite="strict")

    @router.get("/wings")
    def list_wings() -> list[WingAnswer]:
        """List the families of problems."""
        return [
            WingAnswer(
                name=name,
                title=wing.title,
                unit=wing.unit,
                operations=[each for each in service.operations if each.startswith(f"{name}.")],
            )
            for name, wing in wings().items()
        ]

    @router.get("/clusters")
    def list_clusters() -> list[ClusterAnswer]:
        """List presets, and stored files that are clusters."""
        return clusters(service)


def clusters(service: Service) -> list[ClusterAnswer]:
    """Presets, and stored files that are clusters."""
    files = service.store.files(kinds=["cluster"], most=ALL)
    stored = [_cluster(file.name, service.files.path(file)) for file in files]
    every = [*map(_cluster, preset_names()), *stored]
    return [each for each in every if each is not None]


@lru_cache(maxsize=1024)  # presets do not change, and what is stored keeps its place
def _cluster(name: str, file: Path | None = None) -> ClusterAnswer | None:
    """A preset or a stored cluster, ``None`` where the file is none."""
    try:
        found = Cluster.preset(name) if file is None else read_cluster(file)
    except (PlacewrightError, OSError):
        return None
    counts = {"devices": len(found.devices), "links": len(found.links)}
    return ClusterAnswer(name=name, stored=file is not None, **counts)


def _operations(router: APIRouter, service: Service) -> None:
    """What can be done, and a route for each that does it."""

    @router.get("/operations")
    def list_operations() -> list[OperationAnswer]:
        """List what can be done, with schemas of the options."""
        return [OperationAnswer.model_validate(each) for each in service.operations.values()]

    @router.get("/operations/{name}")
    def read_operation(name: OperationName) -> OperationAnswer:
        """Read an operation."""
        return OperationAnswer.model_validate(look_up("operation", name, service.operations))

    @router.post("/operations/{name}/jobs", status_code=202)
    def start_job(
        name: OperationName, owner: Owner, options: Annotated[dict[str, Any], Body()]
    ) -> JobDetails:
        """Start a job."""
        operation = look_up("operation", name, service.operations)
        given = validate(operation.model, options, where=name, key="option", hint=HINT)
        return service.start(operation, given.model_dump(exclude_unset=True), owner)


def _schema(app: FastAPI, service: Service) -> dict[str, Any]:
    """The OpenAPI document, in which every operation has a route of its own to start a job."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    found = FastAPI.openapi(app)
    any_start = found["paths"].pop(START)["post"]
    for operation in service.operations.values():
        content = {"application/json": {"schema": operation.schema}}
        own = {
            "operationId": f"start_{operation.name}",
            "summary": operation.summary,
            "description": operation.text,
            "parameters": [],
            "requestBody": {"required": True, "content": content},
        }
        found["paths"][START.replace("{name}", operation.name)] = {"post": any_start | own}
    return found


def _jobs(router: APIRouter, service: Service) -> None:
    """What was asked for."""

    @router.get("/jobs")
    def list_jobs(
        before: JobId | None = None,
        state: Annotated[list[JobState] | None, Query()] = None,
        operation: Annotated[str | None, Query(max_length=100)] = None,
        most: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> JobList:
        """List jobs, the newest first."""
        store = service.store
        found = store.jobs(before=before, states=state or (), operation=operation, most=most)
        counts = store.counts()
        return JobList.model_validate({"jobs": found, "next": found.next, "counts": counts})

    @router.get("/jobs/{id}")
    def read_job(job: Asked) -> JobDetails:
        """Read a job: its state, its latest progress, and the head of its result."""
        return details(service, job)

    @router.post("/jobs/{id}/cancel", status_code=202)
    def cancel_job(job: Asked, owner: Owner) -> JobDetails:
        """Cancel a job; the best plan so far is kept."""
        service.jobs.cancel(job.id)
        service.store.audit(owner, "cancel", job.id)
        return details(service, service.job(job.id))

    @router.post("/jobs/{id}/retry", status_code=202)
    def retry_job(job: Asked, owner: Owner) -> JobDetails:
        """Start another job with the same options, if its operation still has them all."""
        operation = look_up("operation", job.operation, service.operations)
        validate(operation.model, job.options, where=operation.name, key="option", hint=HINT)
        again = service.jobs.submit(operation, job.options, owner, job.id)
        service.store.audit(owner, "retry", f"{job.id} as {again.id}")
        return details(service, again)

    @router.delete("/jobs/{id}", status_code=204)
    def delete_job(job: Asked, owner: Owner) -> None:
        """Remove a job that has ended, with everything that it has written."""
        service.jobs.delete(job.id)
        service.store.audit(owner, "delete", f"job {job.id}")


def _events(router: APIRouter, service: Service) -> None:
    """What happens in a job, while it does."""

    @router.get("/jobs/{id}/events", response_class=EventSourceResponse)
    async def follow_job(
        job: Asked, last_event_id: Annotated[str, Header()] = ""
    ) -> AsyncIterator[ServerSentEvent]:
        """Follow a job by server-sent events until it has ended: *state*, *progress*, *log*, *run*.

        *run* has new steps and events of a run, as ``/steps`` has them.

        A client that comes back with ``Last-Event-ID`` goes on where it was: the identifier of an
        event is how far progress and log had been read, ``120.2048``.
        """
        folder, state = service.jobs.folder(job.id), ""
        first, _, second = last_event_id.partition(".")
        read = [int(n) if n.isdecimal() and len(n) < 16 else 0 for n in (first, second)]
        wait_s = LOOK_S
        while True:
            progress, read[0] = lines_since(folder.progress, read[0], LOG_BYTES)
            added, read[1] = lines_since(folder.log, read[1], LOG_BYTES)
            lines = json_lines(progress)
            found: list[tuple[str, Any]] = [("progress", line) for line in lines if "title" in line]
            if run := followed(lines):
                found.append(("run", run))
            if added:
                found.append(("log", added.decode(errors="replace")))
            behind = job.state in ENDED and (progress or added)  # all comes before it has ended
            if job.state != state and not behind:
                state = job.state
                found.append(("state", JobAnswer.model_validate(job)))
            for kind, data in found:
                yield ServerSentEvent(id=f"{read[0]}.{read[1]}", event=kind, data=data)
            if state in ENDED or service.stopping.is_set():
                return
            # Hundreds of quiet streams must not keep others waiting.
            wait_s = 0 if behind else LOOK_S if found else min(1.3 * wait_s, QUIET_S)
            await asyncio.sleep(wait_s)
            job = await asyncio.to_thread(service.job, job.id)


def details(service: Service, job: Job) -> JobDetails:
    """A job with its outputs and its latest progress."""
    recent = service.jobs.folder(job.id).lines(PROGRESS_BYTES)
    latest = takewhile(lambda line: "attempt" not in line, reversed(recent))
    return JobDetails(
        **dict(JobAnswer.model_validate(job)),
        outputs=service.outputs(job),
        progress=next((line for line in latest if "title" in line), None),
    )


def _outputs(router: APIRouter, service: Service) -> None:
    """What jobs have written."""

    @router.get("/jobs/{id}/log", response_class=PlainTextResponse)
    def read_log(job: Asked) -> Response:
        """Read the end of a job's log."""
        return PlainTextResponse(log_end(service.jobs.folder(job.id).log))

    @router.get("/jobs/{id}/table", response_class=PlainTextResponse)
    def read_table(job: Asked) -> Response:
        """Read what the command has printed."""
        table = service.jobs.folder(job.id).table
        return FileResponse(table, media_type="text/plain") if table.exists() else Response()

    @router.get("/jobs/{id}/result", response_class=JSONResponse)
    def read_result(job: Asked) -> Response:
        """Read the document of a job, as ``-o`` writes it."""
        return output(service, job, "result.json")

    @router.get("/jobs/{id}/report", response_class=Response)
    def read_report(job: Asked) -> Response:
        """Read the self-contained page of a job."""
        return output(service, job, "report.html")

    @router.get("/jobs/{id}/outputs/{name}", response_class=Response)
    def read_output(job: Asked, name: Annotated[str, Field(max_length=200)]) -> Response:
        """Read a file that a job has written."""
        return output(service, job, name)


def output(service: Service, job: Job, name: str) -> Response:
    """A file that a job has written; its scripts, if it has any, run apart from the service."""
    if name not in (known := service.outputs(job)):  # a path is none of these names
        raise UnknownNameError("output", name, known, where=f"job {job.id}")
    path = service.jobs.folder(job.id).out / name
    media = MEDIA.get(path.suffix, "application/octet-stream")
    return FileResponse(path, media_type=media, headers={"content-security-policy": REPORT_CONTENT})


def log_end(path: Path) -> str:
    """The end of a text that grows, empty where there is none."""
    return end_of(path, LOG_BYTES).decode(errors="replace")


def _files(router: APIRouter, service: Service) -> None:
    """What requests may name."""

    @router.get("/files")
    def list_files(
        before: str | None = None,
        kind: Annotated[list[str] | None, Query()] = None,
        most: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> FileList:
        """List stored files, the newest first."""
        found = service.store.files(before=before, kinds=kind or (), most=most)
        return FileList.model_validate({"files": found, "next": found.next})

    @router.put("/files/{name}", status_code=201)
    async def upload_file(name: str, request: Request, owner: Owner) -> FileAnswer:
        """Store the body of the request as a file; where its name is taken it gets another."""
        pieces = body_pieces(request.receive, BODY_S, LEAST_RATE)
        file = await service.files.receive(name, pieces, owner)
        service.store.audit(owner, "upload", f"{file.name} {file.bytes} bytes {file.sha256}")
        return FileAnswer.model_validate(file)

    @router.get("/files/{name}", response_class=Response)
    def read_file(name: FileName) -> Response:
        """Read a stored file."""
        path = service.files.path(service.files.find(name))
        return FileResponse(
            path,
            media_type=MEDIA.get(Path(name).suffix, "application/octet-stream"),
            filename=name,
            headers={"content-security-policy": REPORT_CONTENT},
        )

    @router.delete("/files/{name}", status_code=204)
    def delete_file(name: FileName, owner: Owner) -> None:
        """Remove a stored file; jobs that have used it keep their copy."""
        service.files.delete(name)
        service.store.audit(owner, "delete", name)


def _status(error: PlacewrightError) -> int:
    if isinstance(error, UnknownNameError) and not error.where:
        return 404
    return {TooLargeError: 413, TooManyJobsError: 429, DatabaseError: 503}.get(type(error), 422)


def _invalid(error: RequestValidationError) -> InputError:
    """The first of the errors of a request, and where it is there."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    given = repr(first.get("input"))
    by = "" if first["type"] == "missing" else f"got {given:.200}"
    return InputError(first["msg"], where=where, by=by, hint=HINT)


async def answer_error(request: Request, error: Exception) -> Response:
    """The four parts of an error; the traceback of one that is not foreseen is printed, too."""
    where, headers = request.url.path[:200], dict[str, str]()
    match error:
        case PlacewrightError():
            status, found = _status(error), error
        case RequestValidationError():
            status, found = 422, _invalid(error)
        case HTTPException():
            status, headers = error.status_code, dict(error.headers or {})
            hint = "GET /api/openapi.json lists every path"
            found = InputError(str(error.detail), where=where, hint=hint)
        case Refusal():  # what is left of the body is not read
            status, headers = error.status, {"connection": "close"}
            if error.retry_after_s is not None:
                headers["retry-after"] = f"{error.retry_after_s:.0f}"
            found = RunError(error.reason, where=where, hint=HINTS.get(status, ""))
        case _:
            hint = "look at what `placewright serve` has printed, and report that"
            what = f"this should not happen: {type(error).__name__}"
            status, found = 500, RunError(what, where=where, hint=hint)
    return JSONResponse({"error": found.parts}, status, headers)


async def _answer_full(request: Request, error: Exception) -> Response:
    """A full disk under the service's folder; other errors of the system are not foreseen."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    hint = "free space on the disk of the service's folder, or delete files and jobs"
    found = RunError(str(error.strerror), where=request.url.path[:200], hint=hint)
    return JSONResponse({"error": found.parts}, 507)
