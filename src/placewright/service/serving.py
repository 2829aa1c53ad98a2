"""Routes and pages of request services: start, watch, try, change, drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import chain
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field

from placewright.errors import InputError, PlacewrightError
from placewright.layers.devicemap.views import map_section
from placewright.requests.serving.measured import (
    LONGEST_S,
    example_inputs,
    measured_problem,
    recent_requests,
)
from placewright.service.app import ErrorParts, JobDetails, Service, log_end, owner_of
from placewright.service.operations import find
from placewright.service.pages import Pages
from placewright.service.services import (
    LIVE,
    Label,
    Name,
    Services,
    ServiceState,
    Share,
    StrictBody,
    VariantBody,
)
from placewright.service.store import Job

SERVERS = ("a:1", "b:0.6", "c:0.3")
"""What the form offers: unequal ones."""

CAPACITY = "requests.plan"
"""The operation that finds the capacity."""

READY_S = 2.0
"""For an answer of a server about its state."""


class ServerBody(StrictBody):
    """A server: a worker process, and its speed relative to this machine."""

    name: Label
    speed: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class InferBody(StrictBody):
    """A request: what it needs, and its tensors, ``None`` for an example.

    `inputs`: as the Open Inference Protocol has them.
    """

    deadline_ms: Annotated[float, Field(gt=0, le=60_000, allow_inf_nan=False)] = 1000.0
    min_accuracy: Share = 0.0
    time_sensitivity: Share = 0.5
    accuracy_sensitivity: Share = 0.5
    inputs: Annotated[list[dict[str, Any]], Field(max_length=64)] | None = None


class InferAnswer(BaseModel):
    """The answer of a server, or why it has refused.

    `parameters`: server, variant, accuracy and times.
    """

    status: int
    parameters: dict[str, Any] = Field(default_factory=dict)
    outputs: list[dict[str, Any]] = Field(default_factory=list)
    refused: str


class TalkBody(StrictBody):
    """A text for a language model to answer, or to continue where it has no chat template."""

    text: Annotated[str, Field(min_length=1, max_length=100_000)]
    new_tokens: Annotated[int, Field(ge=1, le=100_000)] = 64
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0


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


def add_services(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add routes and pages of request services."""
    services = Services(service.jobs)
    for routes in (_list, _change, _administer, _use):
        router = APIRouter(prefix="/api/v1")
        routes(router, service, services)
        app.include_router(router)

    @app.get("/services", include_in_schema=False)
    def every() -> HTMLResponse:
        found = [answer(services, services.find(name)) for name in services.names()]
        return pages.page("services.html", services=found, live=LIVE)

    @app.get("/services/new", include_in_schema=False)
    def new(on: str = "", variant: str = "") -> HTMLResponse:
        from placewright.requests.planners import listed  # loads numba

        given = {"cluster": on} if on else {"server": list(SERVERS)}
        form = pages.form_of(services.operation, given)
        form["choices"]["policy"] = [("auto", ""), *((each.name, "") for each in listed())]
        name = _free_name(services)
        models = _models(service)
        languages = list(services.operation.folders)
        own = {"name": name, "variant": variant, "models": models, "languages": languages}
        return pages.page("service_new.html", **own, **form)

    @app.get("/services/{name}", include_in_schema=False)
    def one(name: str) -> HTMLResponse:
        found = answer(services, services.find(name))
        if found.language_model:
            numbers = status(services, name).numbers if found.url else None
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
    taken = services.names()
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
        return [answer(services, services.find(name)) for name in services.names()]

    @router.get("/services/{name}")
    def read_service(name: Name) -> ServiceAnswer:
        """Read a request service."""
        return answer(services, services.find(name))

    @router.get("/services/{name}/status")
    def read_status(name: Name) -> ServiceStatus:
        """Read the numbers of its server: success, accuracy, latency, queue, servers, refusals."""
        return status(services, name)

    @router.get("/services/{name}/log", response_class=PlainTextResponse)
    def read_service_log(name: Name) -> PlainTextResponse:
        """Read the end of its log: losses, refusals, changes."""
        return PlainTextResponse(log_end(services.folder(services.find(name)).log))


def _change(router: APIRouter, service: Service, services: Services) -> None:
    """Start, drain, start again, remove."""

    def audited(request: Request, what: str, job: Job) -> ServiceAnswer:
        service.store.audit(owner_of(request), what, f"service {job.options['name']}")
        return answer(services, job)

    def create_service(request: Request, given: Any) -> ServiceAnswer:
        """Start a request server that runs until it is drained."""
        options = given.options.model_dump(exclude_unset=True)
        asked = given.model_dump(exclude={"options"}) | {"options": options}
        return audited(request, "start", services.create(asked, owner_of(request)))

    create_service.__annotations__["given"] = services.operation.model
    router.post("/services", status_code=202)(create_service)

    @router.post("/services/{name}/drain", status_code=202)
    def drain_service(name: Name, request: Request) -> ServiceAnswer:
        """Let it finish what it has read, and end."""
        return audited(request, "drain", services.drain(name))

    @router.post("/services/{name}/start", status_code=202)
    def start_service(name: Name, request: Request) -> ServiceAnswer:
        """Start one that has ended again, with the same options."""
        return audited(request, "start", services.start_again(name, owner_of(request)))

    @router.delete("/services/{name}", status_code=204)
    def delete_service(name: Name, request: Request) -> None:
        """Remove one that has ended, with its log of requests."""
        services.delete(name)
        service.store.audit(owner_of(request), "delete", f"service {name}")


def _administer(router: APIRouter, service: Service, services: Services) -> None:
    """Servers and variants come and go."""

    def change(
        request: Request, name: str, what: str, method: str, path: str, body: bytes | None = None
    ) -> ServiceStatus:
        services.find(name)
        service.store.audit(owner_of(request), what, f"service {name}")
        _accepted(services, name, method, f"/admin/{path}", body)
        return status(services, name)

    def variant_path(name: str, variant: str) -> str:
        return f"models/{_family(services, name)}/variants/{quote(variant)}"

    @router.post("/services/{name}/servers")
    def add_server(name: Name, given: ServerBody, request: Request) -> ServiceStatus:
        """Add a server while it runs."""
        body = given.model_dump_json().encode()
        return change(request, name, f"add server {given.name}", "POST", "servers", body)

    @router.delete("/services/{name}/servers/{server}")
    def remove_server(name: Name, server: Label, request: Request) -> ServiceStatus:
        """Remove a server; it finishes its batch."""
        path = f"servers/{quote(server)}"
        return change(request, name, f"remove server {server}", "DELETE", path)

    @router.post("/services/{name}/variants")
    def add_variant(name: Name, given: VariantBody, request: Request) -> ServiceStatus:
        """Add a variant, a stored ONNX file, while it runs."""
        model = service.files.path(service.files.find(given.file)).read_bytes()
        path = f"{variant_path(name, given.name)}?{urlencode({'accuracy': given.accuracy})}"
        return change(request, name, f"add variant {given.name}", "PUT", path, model)

    @router.delete("/services/{name}/variants/{variant}")
    def remove_variant(name: Name, variant: Label, request: Request) -> ServiceStatus:
        """Remove a variant while it runs."""
        what = f"remove variant {variant}"
        return change(request, name, what, "DELETE", variant_path(name, variant))


def _use(router: APIRouter, service: Service, services: Services) -> None:
    """A request by hand, and the capacity."""

    @router.post("/services/{name}/infer")
    def infer(name: Name, given: InferBody) -> InferAnswer:
        """Send one request; a refusal is an answer, with its reason."""
        inputs = given.inputs if given.inputs is not None else _example(services, name)
        needs = given.model_dump(exclude={"inputs"})
        body = json.dumps({"inputs": inputs, "parameters": needs}).encode()
        path = f"/v2/models/{_family(services, name)}/infer"
        wait_s = given.deadline_ms / 1e3 + 10
        code, data = services.server(name)("POST", path, body, wait_s=wait_s)
        return InferAnswer(**(data | {"status": code, "refused": _reason(data)}))

    @router.post("/services/{name}/talk")
    def talk(name: Name, given: TalkBody) -> StreamingResponse:
        """Send a text to a language model; its answer comes in OpenAI's events."""
        numbers = _accepted(services, name, "GET", "/status.json", wait_s=READY_S)
        chats = bool(numbers.get("map", {}).get("chat"))
        body: dict[str, Any] = {"model": numbers["models"][0], "stream": True}
        body |= {"max_tokens": given.new_tokens, "temperature": given.temperature}
        if chats:
            body["messages"] = [{"role": "user", "content": given.text}]
        else:
            body["prompt"] = given.text
        path = "/v1/chat/completions" if chats else "/v1/completions"
        pieces = services.stream(name, path, json.dumps(body).encode())
        first = next(pieces)  # a refusal has a status of its own
        return StreamingResponse(chain([first], pieces), media_type="text/event-stream")

    @router.get("/services/{name}/example")
    def read_example(name: Name) -> list[dict[str, Any]]:
        """Read tensors that a request may have: of the model's shapes, all zero."""
        return _example(services, name)

    @router.post("/services/{name}/capacity", status_code=202)
    async def find_capacity(name: Name, given: CapacityBody, request: Request) -> JobDetails:
        """Start to find the load that these servers carry, by their measured latencies."""
        owner, asked = owner_of(request), services.find(name).options["options"]
        problem = await asyncio.to_thread(_problem, services, name, given)

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(problem).encode()

        file = await service.files.receive(f"{name}-capacity.json", pieces(), owner)
        options = {"source": file.name, "target_success": given.target_success}
        options["planner"] = asked.get("policy", "auto")
        operation = find(service.operations, CAPACITY)
        return await asyncio.to_thread(service.start, operation, options, owner)


def status(services: Services, name: str) -> ServiceStatus:
    """How a service is; without numbers where its server does not answer."""
    try:
        numbers = _accepted(services, name, "GET", "/status.json", wait_s=READY_S)
    except PlacewrightError:
        numbers = None
    job = services.find(name)
    recent = recent_requests(services.folder(job).out / "log.jsonl")
    return ServiceStatus(state=services.state(job), numbers=numbers, recent=recent)


def _family(services: Services, name: str) -> str:
    """What clients call the model, as a part of a path."""
    return quote(services.find(name).options["family"])


def _example(services: Services, name: str) -> list[dict[str, Any]]:
    """One row of zeros for every input of the model."""
    path = f"/v2/models/{_family(services, name)}"
    return example_inputs(_accepted(services, name, "GET", path, wait_s=READY_S))


def _problem(services: Services, name: str, given: CapacityBody) -> dict[str, Any]:
    """The service as a problem of ``requests plan``: what its server has measured."""
    numbers = _accepted(services, name, "GET", "/status.json", wait_s=READY_S)
    needs = {"deadline_s": given.deadline_ms / 1e3, "min_accuracy": given.min_accuracy}
    return measured_problem(numbers, name, services.find(name).options["family"], **needs)


def _accepted(services: Services, name: str, *request: Any, wait_s: float = LONGEST_S) -> Any:
    """An answer of a service's server; `InputError` where that is a refusal."""
    code, data = services.server(name)(*request, wait_s=wait_s)
    if code != 200:
        hint = "see what its server can do"
        raise InputError(_reason(data), where=f"service {name}", hint=hint)
    return data


def _reason(data: Any) -> str:
    error = data.get("error", "") if isinstance(data, dict) else ""
    return error if isinstance(error, str) else json.dumps(error)[:500]
