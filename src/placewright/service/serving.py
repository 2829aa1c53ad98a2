"""Routes and pages of request services: start, watch, try, change, drain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, create_model

from placewright.errors import InputError, PlacewrightError
from placewright.requests.serving.measured import (
    example_inputs,
    measured_problem,
    recent_requests,
)
from placewright.service.app import (
    ErrorParts,
    JobDetails,
    Service,
    clusters,
    details,
    log_end,
    owner_of,
)
from placewright.service.operations import find
from placewright.service.pages import Pages
from placewright.service.services import (
    LIVE,
    READY_S,
    FoundService,
    Services,
    ServiceState,
    VariantFile,
)

SERVERS = ("a:1", "b:0.6", "c:0.3")
"""What the form offers: unequal ones."""

CAPACITY = "requests.plan"
"""The operation that finds the capacity."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,39}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class StrictBody(BaseModel):
    """A body without other keys."""

    model_config = ConfigDict(extra="forbid")


class VariantBody(StrictBody):
    """A variant: a stored ONNX file, and its accuracy on data that it was not trained on."""

    name: Label
    file: Annotated[str, Field(max_length=100)]
    accuracy: Share


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
    parameters: dict[str, Any]
    outputs: list[dict[str, Any]]
    refused: str


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
    options: dict[str, Any]
    created_s: float
    url: str | None
    error: ErrorParts | None


class ServiceStatus(BaseModel):
    """How a service is: its state, its server's numbers, and its latest requests."""

    state: ServiceState
    numbers: dict[str, Any] | None
    recent: dict[str, Any]


def add_services(app: FastAPI, service: Service, pages: Pages, services: Services) -> None:
    """Add routes and pages of request services."""
    for routes in (_list, _change, _administer, _use):
        router = APIRouter(prefix="/api/v1")
        routes(router, service, services)
        app.include_router(router)
    shown = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @shown.get("/services")
    def every() -> HTMLResponse:
        found = [answer(services, services.find(name)) for name in services.names()]
        return HTMLResponse(pages.filled("services.html", services=found, live=LIVE))

    @shown.get("/services/new")
    def new(on: str = "", variant: str = "") -> HTMLResponse:
        form = _form(service, services, on)
        return HTMLResponse(pages.filled("service_new.html", variant=variant, **form))

    @shown.get("/services/{name}")
    def one(name: str) -> HTMLResponse:
        found = services.find(name)
        values = {"service": answer(services, found), "live": LIVE}
        values["models"] = [f.name for f in service.store.files(most=200) if _is_model(f.name)]
        return HTMLResponse(pages.filled("service.html", **values))

    app.include_router(shown)


def _is_model(name: str) -> bool:
    return name.endswith(".onnx")


def _form(service: Service, services: Services, on: str) -> dict[str, Any]:
    """What the form of a new service offers."""
    from placewright.requests.planners import listed  # loads numba

    taken = services.names()
    numbers = range(1, len(taken) + 2)
    free = next(
        n for n in (f"digits-{k}" if k > 1 else "digits" for k in numbers) if n not in taken
    )
    first = ("server", "cluster", "policy")
    options = services.operation.options
    return {
        "name": free,
        "models": [f.name for f in service.store.files(most=200) if _is_model(f.name)],
        "first": [each for each in options if each.name in first],
        "more": [each for each in options if each.name not in first],
        "given": {"cluster": on} if on else {"server": list(SERVERS)},
        "choices": {
            "cluster": [(each.name, each.name) for each in clusters(service)],
            "policy": [("auto", ""), *((each.name, "") for each in listed())],
        },
    }


def answer(services: Services, found: FoundService) -> ServiceAnswer:
    """A service as clients see it."""
    state, asked = services.state(found), found.asked
    error = services.error(found)
    return ServiceAnswer(
        name=asked.name,
        state=state,
        family=asked.family,
        variants=[
            VariantBody(name=v.name, file=v.file, accuracy=v.accuracy) for v in asked.variants
        ],
        options=dict(asked.options),
        created_s=asked.created_s,
        url=f"http://127.0.0.1:{found.port}" if state is ServiceState.RUNNING else None,
        error=None if error is None else ErrorParts(**error),
    )


def _list(router: APIRouter, service: Service, services: Services) -> None:
    """What runs, and a route that starts one."""

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
        return status(services, services.find(name))

    @router.get("/services/{name}/log", response_class=PlainTextResponse)
    def read_service_log(name: Name) -> PlainTextResponse:
        """Read the end of its log: losses, refusals, changes."""
        return PlainTextResponse(log_end(services.find(name).folder.log))

    router.add_api_route(
        "/services",
        _creating(service, services),
        methods=["POST"],
        status_code=202,
        name="start a request service",
        summary="Start a request server that runs until it is drained.",
        response_model=ServiceAnswer,
    )


def _creating(service: Service, services: Services) -> Callable[..., ServiceAnswer]:
    """The route that starts a service; options are those of ``requests serve``."""
    body = create_model(
        "ServiceBody",
        __base__=StrictBody,
        name=(Name, ...),
        family=(Label, Field("digits", description="What clients call the model.")),
        variants=(
            Annotated[list[VariantBody], Field(max_length=32)],
            Field(default_factory=list, description="Empty: the digits, which are trained."),
        ),
        options=(services.operation.model, Field(default_factory=services.operation.model)),
    )

    def create_service(request: Request, given: Any) -> ServiceAnswer:
        variants = [VariantFile(v.name, v.file, v.accuracy) for v in given.variants]
        if not variants and given.family != "digits":
            raise InputError("has no variants", where=given.family, hint="give ONNX files")
        options = given.options.model_dump(exclude_unset=True)
        owner = owner_of(request)
        found = services.create(given.name, given.family, variants, options, owner)
        service.store.audit(owner, "start", f"service {given.name}")
        return answer(services, found)

    create_service.__annotations__.update(request=Request, given=body)
    return create_service


def _change(router: APIRouter, service: Service, services: Services) -> None:
    """Drain, start again, remove."""

    def audited(request: Request, what: str, found: FoundService) -> ServiceAnswer:
        service.store.audit(owner_of(request), what, f"service {found.asked.name}")
        return answer(services, services.find(found.asked.name))

    @router.post("/services/{name}/drain", status_code=202)
    def drain_service(name: Name, request: Request) -> ServiceAnswer:
        """Let it finish what it has read, and end."""
        services.drain(name)
        return audited(request, "drain", services.find(name))

    @router.post("/services/{name}/start", status_code=202)
    def start_service(name: Name, request: Request) -> ServiceAnswer:
        """Start one that has ended again, with the same options."""
        services.start_again(name)
        return audited(request, "start", services.find(name))

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
        found = services.find(name)
        service.store.audit(owner_of(request), what, f"service {name}")
        code, data = services.ask(found, method, f"/admin/{path}", body)
        _refuse(code, data, found)
        return status(services, found)

    def variant_path(name: str, variant: str) -> str:
        return f"models/{quote(services.find(name).asked.family)}/variants/{quote(variant)}"

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
        if not _is_model(given.file):
            raise InputError("is no ONNX file", where=given.file, hint="upload one")
        model = service.files.path(service.files.find(given.file)).read_bytes()
        query = urlencode({"accuracy": given.accuracy})
        path = f"{variant_path(name, given.name)}?{query}"
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
        found = services.find(name)
        inputs = given.inputs if given.inputs is not None else _example(services, found)
        needs = given.model_dump(exclude={"inputs"})
        body = json.dumps({"inputs": inputs, "parameters": needs}).encode()
        path = f"/v2/models/{quote(found.asked.family)}/infer"
        code, data = services.ask(found, "POST", path, body, given.deadline_ms / 1e3 + 10)
        return InferAnswer(
            status=code,
            parameters=data.get("parameters", {}),
            outputs=data.get("outputs", []),
            refused=_reason(data),
        )

    @router.get("/services/{name}/example")
    def read_example(name: Name) -> list[dict[str, Any]]:
        """Read tensors that a request may have: of the model's shapes, all zero."""
        return _example(services, services.find(name))

    @router.post("/services/{name}/capacity", status_code=202)
    async def find_capacity(name: Name, given: CapacityBody, request: Request) -> JobDetails:
        """Start to find the load that these servers carry, by their measured latencies."""
        import asyncio

        owner, found = owner_of(request), services.find(name)
        problem = await asyncio.to_thread(_problem, services, found, given)
        data = json.dumps(problem).encode()

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        file = await service.files.receive(f"{name}-capacity.json", pieces(), owner)
        options = {
            "source": file.name,
            "target_success": given.target_success,
            "planner": _policy(found),
        }
        operation = find(service.operations, CAPACITY)
        submit = partial(service.jobs.submit, operation, options, owner)
        job = await asyncio.to_thread(submit)
        service.store.audit(owner, "start", f"{CAPACITY} {job.id}")
        return details(service, job)


def status(services: Services, found: FoundService) -> ServiceStatus:
    """How a service is; without numbers where its server does not answer."""
    state, numbers = services.state(found), None
    if state in (ServiceState.RUNNING, ServiceState.DRAINING):
        try:
            code, numbers = services.ask(found, "GET", "/status.json", wait_s=READY_S)
            numbers = numbers if code == 200 else None
        except PlacewrightError:
            state = services.state(found)
    return ServiceStatus(
        state=state, numbers=numbers, recent=recent_requests(found.folder.out / "log.jsonl")
    )


def _example(services: Services, found: FoundService) -> list[dict[str, Any]]:
    """One row of zeros for every input of the model."""
    code, data = services.ask(
        found, "GET", f"/v2/models/{quote(found.asked.family)}", None, READY_S
    )
    _refuse(code, data, found)
    return example_inputs(data)


def _problem(services: Services, found: FoundService, given: CapacityBody) -> dict[str, Any]:
    """The service as a problem of ``requests plan``: what its server has measured."""
    code, numbers = services.ask(found, "GET", "/status.json", wait_s=READY_S)
    _refuse(code, numbers, found)
    needs = {"deadline_s": given.deadline_ms / 1e3, "min_accuracy": given.min_accuracy}
    return measured_problem(numbers, found.asked.name, found.asked.family, **needs)


def _policy(found: FoundService) -> str:
    """The policy that it serves by, as a planner."""
    from placewright.requests.planners import AUTO  # loads numba

    policy = str(found.asked.options.get("policy", "auto"))
    return AUTO if policy == "auto" else policy


def _refuse(code: int, data: Any, found: FoundService) -> None:
    """Raise `InputError` for an answer that is a refusal."""
    if code != 200:
        where = f"service {found.asked.name}"
        raise InputError(_reason(data), where=where, hint="see what its server can do")


def _reason(data: Any) -> str:
    error = data.get("error", "") if isinstance(data, dict) else ""
    return error if isinstance(error, str) else json.dumps(error)[:500]
