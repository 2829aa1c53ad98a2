"""Request services: jobs of ``requests serve``, which run until they are drained; routes and pages.

A service is a job in a queue of its own, left out of all lists of jobs and known by its name. Its
process is one of this machine whatever the engine, and listens on a free port of 127.0.0.1, which
its table names. Its token is in the environment of that process alone, and is found there by
whichever service comes later. Nothing here talks to another address.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, create_model

from placewright.errors import InputError, PlacewrightError, RunError, UnknownNameError, look_up
from placewright.io.stored import write_file
from placewright.layers.devicemap.files import map_section
from placewright.requests.serving.measured import ServerClient, measured_problem, recent_requests
from placewright.requests.serving.protocol import LENGTH
from placewright.service.app import ErrorParts, JobDetails, Owner, Service, log_end
from placewright.service.jobs import SERVICES_AT_ONCE, Jobs, TooManyJobsError
from placewright.service.operations import BESIDE, Operation, Option
from placewright.service.pages import Pages
from placewright.service.process import JobFolder
from placewright.service.store import ALL, SERVED, Job, JobState

OPTIONS = (
    *("server", "cluster", "policy", "max_waiting", "max_batch", "deadline", "drain"),
    *("context", "users"),
)
"""Of ``requests serve``, those that a request may give."""

TOKEN = "PLACEWRIGHT_TOKEN"

FAMILY = "_family.yaml"
"""The file of a service's variants; no stored file is called so."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,39}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class StrictBody(BaseModel):
    """A body without other keys."""

    model_config = ConfigDict(extra="forbid")


class VariantBody(StrictBody):
    """A variant: a stored ONNX file, and its accuracy on data that it was not trained on."""

    name: Label
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,94}\.onnx$")]
    accuracy: Share


class ServiceState(StrEnum):
    """Of a request service."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    LOST = "lost"


LIVE = (ServiceState.STARTING, ServiceState.RUNNING, ServiceState.DRAINING)

ENDINGS = {
    JobState.FAILED: ServiceState.FAILED,
    JobState.INFEASIBLE: ServiceState.FAILED,
    JobState.LOST: ServiceState.LOST,
}
"""Of a job, and what they are of a service; every other one is that it was drained."""


@dataclass(frozen=True)
class ServeOperation(Operation):
    """``requests serve`` with `OPTIONS`, for a service that has a name and what it serves.

    Its options in a request are ``name``, ``family`` and ``variants``, or ``language_model``, and
    ``options``.

    Attributes
    ----------
    folders
        Of the language models that requests may name, by name.
    """

    folders: Mapping[str, Path] = field(default_factory=dict)

    @staticmethod
    def among(
        operations: Iterable[Operation], folders: Iterable[Path] = ()
    ) -> dict[str, Operation]:
        """It, by name, as it is made of all verbs of the command line."""
        verb = next(each for each in operations if each.name == SERVED)
        kept = tuple(each for each in verb.options if each.name in OPTIONS)
        named = {each.resolve().name: each.resolve() for each in folders}
        return {SERVED: ServeOperation(verb.path, verb.summary, verb.text, kept, named)}

    @cached_property
    def model(self) -> type[BaseModel]:
        """What a request for a service is validated by."""
        options = super().model
        digits = "Empty: the digits, which are trained."
        return create_model(
            "ServiceBody",
            __base__=StrictBody,
            name=(Name, ...),
            family=(Label, Field("digits", description="What clients call the model.")),
            variants=(
                Annotated[list[VariantBody], Field(max_length=32)],
                Field(default_factory=list, description=digits),
            ),
            language_model=(
                Annotated[str, Field(max_length=100)],
                Field("", description="In place of variants: one that the operator allows."),
            ),
            options=(options, Field(default_factory=options)),
        )

    def texts(self, given: Mapping[str, Any]) -> Iterator[tuple[Option, str]]:
        """Of its options, and the files of its variants."""
        yield from super().texts(given["options"])
        for each in given["variants"]:
            yield replace(BESIDE, name=f"variant {each['name']}"), each["file"]

    def command(
        self, given: Mapping[str, Any], folder: Path, outputs: str
    ) -> tuple[list[str], dict[str, str]]:
        """Write the family's file beside its models; the arguments, and a new token."""
        if given.get("language_model"):
            own = [f"--language-model={self.folders[given['language_model']]}"]
        else:
            family = self._family(given, folder)
            own = [f"--family={family}", f"--log={outputs}/log.jsonl"]
        own += ["--port=0", "--format=json", "--log-format=text"]
        chosen = self.arguments(given["options"], outputs)[len(self.path) :]
        return [*self.path, *own, *chosen], {TOKEN: secrets.token_urlsafe(32)}

    def _family(self, given: Mapping[str, Any], folder: Path) -> str:
        """What is served: the digits, or the file of its variants, which is written."""
        if not given["variants"]:
            return "digits"
        keys = ("file", "accuracy")
        entries = {v["name"]: {key: v[key] for key in keys} for v in given["variants"]}
        text = json.dumps({"name": given["family"], "variants": entries})  # JSON is YAML
        write_file(folder / FAMILY, text)
        return FAMILY

    def ending_s(self, given: Mapping[str, Any]) -> float:
        """As long as it may drain."""
        defaults = {each.name: each.default for each in self.options}
        return float((defaults | given["options"])["drain"])


class Services:
    """All request services, by name; `jobs` has them, among others."""

    def __init__(self, jobs: Jobs) -> None:
        operation = jobs.operations[SERVED]
        assert isinstance(operation, ServeOperation)
        self.operation = operation
        self._jobs, self._lock = jobs, threading.Lock()
        newest = self.all()
        for job in self._every():
            if newest[job.options["name"]].id != job.id:
                jobs.delete(job.id)  # it ended when it had been started again

    def all(self) -> dict[str, Job]:
        """By name, the newest first."""
        found: dict[str, Job] = {}
        for job in self._every():
            found.setdefault(job.options["name"], job)
        return found

    def _every(self) -> list[Job]:
        return self._jobs.store.jobs(operation=SERVED, most=ALL)

    def find(self, name: str) -> Job:
        """The service of this name; `UnknownNameError` offers the nearest."""
        return look_up("service", name, self.all())

    def create(self, options: Mapping[str, Any], owner: str) -> Job:
        """Accept a service, which is then started.

        Raises
        ------
        InputError
            Its name is taken, it has no variants, or an option names what it may not.
        TooManyJobsError
            So many run already.
        """
        name, family = options["name"], options["family"]
        language, known = options.get("language_model"), self.operation.folders
        if language and language not in known:
            raise UnknownNameError("language model", language, known, where="language_model")
        if language and options["variants"]:
            hint = "leave one of them out"
            raise InputError("has variants and a language model", where=name, hint=hint)
        names = [each["name"] for each in options["variants"]]
        if twice := [each for each in names if names.count(each) > 1]:
            hint = "give each its own name"
            raise InputError("two variants have the same name", where=twice[0], hint=hint)
        if not options["variants"] and family != "digits":
            raise InputError("has no variants", where=family, hint="give ONNX files")
        with self._lock:
            if name in self.all():
                hint = "give another name, or delete that one"
                raise InputError("there is a service of this name", where=name, hint=hint)
            return self._submit(options, owner)

    def start_again(self, name: str, owner: str) -> Job:
        """Start one that has ended, with the same options; errors as `create`."""
        with self._lock:
            ended = self._ended(name)
            started = self._submit(ended.options, owner)
            self._jobs.delete(ended.id)
            return started

    def drain(self, name: str) -> Job:
        """Ask it to finish what it has read, and to end."""
        self._jobs.cancel(self.find(name).id)
        return self.find(name)

    def delete(self, name: str) -> None:
        """Remove one that has ended, with its log."""
        with self._lock:
            self._jobs.delete(self._ended(name).id)

    def state(self, job: Job) -> ServiceState:
        """What it does now."""
        if job.state == JobState.QUEUED:
            return ServiceState.STARTING
        if job.state != JobState.RUNNING:
            return ENDINGS.get(JobState(job.state), ServiceState.DRAINED)
        if job.cancelled_s is not None:
            return ServiceState.DRAINING
        return ServiceState.RUNNING if self.url(job) else ServiceState.STARTING

    def folder(self, job: Job) -> JobFolder:
        """Of its process."""
        return self._jobs.service_folder(job.id)

    def url(self, job: Job) -> str:
        """Where its server listens; empty until it has said so."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(self.folder(job).table.read_bytes())["url"])
        return ""

    def server(self, job: Job) -> ServerClient:
        """What asks the server of a service.

        Raises `RunError`: there is none.
        """
        where, url = f"service {job.options['name']}", self.url(job)
        token = self.folder(job).variable(TOKEN)
        if not url or token is None:
            by = self.state(job)
            raise RunError("no server is there", where=where, by=by, hint="start it")
        return ServerClient(url, token, where)

    def _submit(self, options: Mapping[str, Any], owner: str) -> Job:
        """Hand it to the jobs, unless so many run already."""
        live = [name for name, job in self.all().items() if self.state(job) in LIVE]
        if len(live) >= SERVICES_AT_ONCE:
            by = f"{', '.join(live)}; at most {SERVICES_AT_ONCE}"
            raise TooManyJobsError("too many services run", by=by, hint="drain one")
        return self._jobs.submit(self.operation, options, owner)

    def _ended(self, name: str) -> Job:
        """The service of this name; `InputError`: it has not ended."""
        job = self.find(name)
        if self.state(job) in LIVE:
            raise InputError("it runs", where=f"service {name}", hint="drain it first")
        return job


SERVERS = ("a:1", "b:0.6", "c:0.3")
"""What the form offers: unequal ones."""

CAPACITY = "requests.plan"
"""The operation that finds the capacity."""

READY_S = 2.0
"""For an answer of a server about its state."""

HANDED_ON = ("content-type", LENGTH, "retry-after")
"""Headers of requests to servers and of their answers, beside ``x-...``."""

Forwarded = Annotated[
    str,
    Field(pattern=r"^(health/(live|ready)|(chat/)?completions|models(/[A-Za-z0-9][\w.-]*){0,5})$"),
]
"""A path of a server that clients may ask: nothing that changes what it serves."""


class ServerBody(StrictBody):
    """A server: a worker process, and its speed relative to this machine."""

    name: Label
    speed: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


async def _raw(request: Request) -> bytes:
    return await request.body()


Raw = Annotated[bytes, Depends(_raw)]
"""The body as it is."""


class CapacityBody(StrictBody):
    """The load that is looked for: what share of requests is to be answered in time.

    `deadline_ms`, `min_accuracy`: of the requests.
    """

    target_success: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.95
    deadline_ms: Annotated[float, Field(gt=0, le=3.6e6, allow_inf_nan=False)] = 200.0
    min_accuracy: Share = 0.0


class ServiceAnswer(BaseModel):
    """A request service.

    `url`: of its server, for clients on this machine.
    """

    name: str
    state: ServiceState
    family: str
    variants: list[VariantBody]
    language_model: str = ""
    options: dict[str, Any]
    created_s: float
    url: str | None
    error: ErrorParts | None


class ServiceStatus(BaseModel):
    """How a service is: its state, its server's numbers, and its latest requests."""

    state: ServiceState
    numbers: dict[str, Any] | None
    recent: dict[str, Any]


def _served(name: Name, request: Request) -> Job:
    services: Services = request.app.state.services
    return services.find(name)


Served = Annotated[Job, Depends(_served)]
"""The request service of the address."""


def add_services(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add routes and pages of request services."""
    services = app.state.services = Services(service.jobs)
    for routes in (_list, _change, _administer, _use):
        router = APIRouter(prefix="/api/v1")
        routes(router, service, services)
        app.include_router(router)

    @app.get("/services", include_in_schema=False)
    def every() -> HTMLResponse:
        found = [answer(services, job) for job in services.all().values()]
        return pages.page("services.html", services=found)

    @app.get("/services/new", include_in_schema=False)
    def new(on: str = "", variant: str = "") -> HTMLResponse:
        from placewright.requests.planners import listed  # loads numba

        given = {"cluster": on} if on else {"server": list(SERVERS)}
        form = pages.form_of(services.operation, given)
        form["choices"]["policy"] = [("auto", ""), *((each.name, "") for each in listed())]
        own = {"name": _free_name(services), "variant": variant, "models": _models(service)}
        languages = list(services.operation.folders)
        return pages.page("service_new.html", languages=languages, **own, **form)

    @app.get("/services/{name}", include_in_schema=False)
    def one(job: Served) -> HTMLResponse:
        found = answer(services, job)
        if found.language_model:
            numbers = status(services, job).numbers if found.url else None
            plan = (numbers or {}).get("map", {}).get("plan")
            drawn = map_section(plan, numbers) if plan else ""
            return pages.page("service_text.html", service=found, live=LIVE, drawn=drawn)
        return pages.page("service.html", service=found, live=LIVE, models=_models(service))


def _models(service: Service) -> list[str]:
    """ONNX files that a form offers."""
    stored = service.store.files(kinds=["model"], most=200)
    return [file.name for file in stored if file.name.endswith(".onnx")]


def _free_name(services: Services) -> str:
    """The first of ``digits``, ``digits-2``, ... that no service has."""
    taken = services.all()
    names = ("digits", *(f"digits-{number}" for number in range(2, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def answer(services: Services, job: Job) -> ServiceAnswer:
    """A service as clients see it."""
    state = services.state(job)
    url = services.url(job) if state is ServiceState.RUNNING else None
    own: dict[str, Any] = {"created_s": job.created_s, "url": url, "error": job.error}
    return ServiceAnswer(state=state, **job.options, **own)


def _list(router: APIRouter, service: Service, services: Services) -> None:
    """What runs."""

    @router.get("/services")
    def list_services() -> list[ServiceAnswer]:
        """List request services, the newest first."""
        return [answer(services, job) for job in services.all().values()]

    @router.get("/services/{name}")
    def read_service(job: Served) -> ServiceAnswer:
        """Read a request service."""
        return answer(services, job)

    @router.get("/services/{name}/status")
    def read_status(job: Served) -> ServiceStatus:
        """Read the numbers of its server: success, accuracy, latency, queue, servers, refusals."""
        return status(services, job)

    @router.get("/services/{name}/log", response_class=PlainTextResponse)
    def read_service_log(job: Served) -> PlainTextResponse:
        """Read the end of its log: losses, refusals, changes."""
        return PlainTextResponse(log_end(services.folder(job).log))


def _change(router: APIRouter, service: Service, services: Services) -> None:
    """Start, drain, start again, remove."""

    def audited(owner: str, what: str, job: Job) -> ServiceAnswer:
        service.store.audit(owner, what, f"service {job.options['name']}")
        return answer(services, job)

    def create_service(owner: Owner, given: Any) -> ServiceAnswer:
        """Start a request server that runs until it is drained."""
        options = given.options.model_dump(exclude_unset=True)
        asked = given.model_dump(exclude={"options"}) | {"options": options}
        return audited(owner, "start", services.create(asked, owner))

    create_service.__annotations__["given"] = services.operation.model
    router.post("/services", status_code=202)(create_service)

    @router.post("/services/{name}/drain", status_code=202)
    def drain_service(name: Name, owner: Owner) -> ServiceAnswer:
        """Let it finish what it has read, and end."""
        return audited(owner, "drain", services.drain(name))

    @router.post("/services/{name}/start", status_code=202)
    def start_service(name: Name, owner: Owner) -> ServiceAnswer:
        """Start one that has ended again, with the same options."""
        return audited(owner, "start", services.start_again(name, owner))

    @router.delete("/services/{name}", status_code=204)
    def delete_service(name: Name, owner: Owner) -> None:
        """Remove one that has ended, with its log of requests."""
        services.delete(name)
        service.store.audit(owner, "delete", f"service {name}")


def _administer(router: APIRouter, service: Service, services: Services) -> None:
    """Servers and variants come and go."""

    def change(
        owner: str, job: Job, what: str, method: str, path: str, body: bytes | None = None
    ) -> ServiceStatus:
        service.store.audit(owner, what, f"service {job.options['name']}")
        services.server(job).accepted(method, f"/admin/{path}", body)
        return status(services, job)

    def variant_path(job: Job, variant: str) -> str:
        return f"models/{quote(job.options['family'])}/variants/{quote(variant)}"

    @router.post("/services/{name}/servers")
    def add_server(job: Served, given: ServerBody, owner: Owner) -> ServiceStatus:
        """Add a server while it runs."""
        body = given.model_dump_json().encode()
        return change(owner, job, f"add server {given.name}", "POST", "servers", body)

    @router.delete("/services/{name}/servers/{server}")
    def remove_server(job: Served, server: Label, owner: Owner) -> ServiceStatus:
        """Remove a server; it finishes its batch."""
        path = f"servers/{quote(server)}"
        return change(owner, job, f"remove server {server}", "DELETE", path)

    @router.post("/services/{name}/variants")
    def add_variant(job: Served, given: VariantBody, owner: Owner) -> ServiceStatus:
        """Add a variant, a stored ONNX file, while it runs."""
        model = service.files.path(service.files.find(given.file)).read_bytes()
        path = f"{variant_path(job, given.name)}?{urlencode({'accuracy': given.accuracy})}"
        return change(owner, job, f"add variant {given.name}", "PUT", path, model)

    @router.delete("/services/{name}/variants/{variant}")
    def remove_variant(job: Served, variant: Label, owner: Owner) -> ServiceStatus:
        """Remove a variant while it runs."""
        path = variant_path(job, variant)
        return change(owner, job, f"remove variant {variant}", "DELETE", path)


def _use(router: APIRouter, service: Service, services: Services) -> None:
    """Requests of clients, and the capacity."""

    @router.get("/services/{name}/{protocol}/{path:path}", response_class=Response)
    @router.post("/services/{name}/{protocol}/{path:path}", response_class=Response)
    def forward(
        job: Served, protocol: Literal["v1", "v2"], path: Forwarded, request: Request, body: Raw
    ) -> StreamingResponse:
        """Hand a request to its server: *v1* is OpenAI's API, *v2* the Open Inference Protocol."""
        given = {
            name: value
            for name, value in request.headers.items()
            if name in HANDED_ON or name.startswith("x-")
        }
        answer, pieces = services.server(job).forwarded(
            request.method, f"/{protocol}/{path}", body, given
        )
        back = {name: answer.headers[name] for name in HANDED_ON if name in answer.headers}
        return StreamingResponse(pieces, answer.status, back)

    @router.post("/services/{name}/capacity", status_code=202)
    async def find_capacity(job: Served, given: CapacityBody, owner: Owner) -> JobDetails:
        """Start to find the load that these servers carry, by their measured latencies."""
        problem = await asyncio.to_thread(_problem, services, job, given)

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(problem).encode()

        name = f"{job.options['name']}-capacity.json"
        file = await service.files.receive(name, pieces(), owner)
        options = {"source": file.name, "target_success": given.target_success}
        options["planner"] = job.options["options"].get("policy", "auto")
        operation = look_up("operation", CAPACITY, service.operations)
        return await asyncio.to_thread(service.start, operation, options, owner)


def status(services: Services, job: Job) -> ServiceStatus:
    """How a service is; without numbers where its server does not answer."""
    try:
        numbers = _numbers(services, job)
    except PlacewrightError:
        numbers = None
    recent = recent_requests(services.folder(job).out / "log.jsonl")
    return ServiceStatus(state=services.state(job), numbers=numbers, recent=recent)


def _numbers(services: Services, job: Job) -> Any:
    """What its server measures of itself."""
    return services.server(job).accepted("GET", "/status.json", wait_s=READY_S)


def _problem(services: Services, job: Job, given: CapacityBody) -> dict[str, Any]:
    """The service as a problem of ``requests plan``: what its server has measured."""
    name, family = job.options["name"], job.options["family"]
    needs = {"deadline_s": given.deadline_ms / 1e3, "min_accuracy": given.min_accuracy}
    return measured_problem(_numbers(services, job), name, family, **needs)
