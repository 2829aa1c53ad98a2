"""Ways from a model, or from nodes with samples, to trained weights; steps of runs, live.

Each part of the page is the newest job of its operation with the options that were chosen above
it. What one has found is a stored file, which the next one names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from placewright.capturing.zoo import EXAMPLES, zoo_models
from placewright.cluster.cluster import Cluster
from placewright.errors import PlacewrightError
from placewright.planning.wings import find_wing
from placewright.service.app import JobDetails, JobId, Service, clusters, details, run_of
from placewright.service.clusters import cluster_text
from placewright.service.pages import Pages, ranked
from placewright.service.store import Job, JobState

COMPARE, RUN = "layers.compare", "layers.run"

EXAMPLE_NODES = [
    {"name": name, "samples": count, "seconds_per_sample": each_s, "uplink": rate, "downlink": rate}
    for name, count, each_s, rate in (
        ("cellar", 900, "4ms", "20Mbps"),
        ("roof", 400, "2ms", "40Mbps"),
        ("server", 100, "0.5ms", "100Mbps"),
    )
]
"""What the form of nodes offers at first."""

LOOKED_AT = 200
"""The newest jobs of an operation, among which one with the chosen options is looked for."""

MOST_STEPS = 5000
"""In one answer."""


class StepAnswer(BaseModel):
    """A step of a run: its wall time, its plan's number, and the loss where there is one."""

    step: int
    step_s: float
    plan: int
    loss: float | None


class EventAnswer(BaseModel):
    """Something that happened after a step: drift, migration, fault, recovery."""

    step: int
    event: str
    text: str


class Steps(BaseModel):
    """What a run has done so far."""

    state: JobState
    steps: list[StepAnswer]
    events: list[EventAnswer]


def add_flows(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add the page that trains, and the route of a run's steps."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/jobs/{id}/steps")
    def read_steps(id: JobId, after: Annotated[int, Query(ge=0)] = 0) -> Steps:
        """Read steps of a run behind a number of steps: times, losses; and all events."""
        return steps_of(service, service.job(id), after)

    app.include_router(router)
    shown = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @shown.get("/train")
    def train(
        model: Annotated[str, Query(max_length=200)] = "",
        on: Annotated[str, Query(max_length=200)] = "",
        batch: Annotated[str, Query(pattern=r"^\d{0,6}$")] = "",
        exact: Annotated[str, Query(pattern=r"^(|on)$")] = "",
    ) -> HTMLResponse:
        chosen = TrainingChoice(model=model, on=on, batch=int(batch or 8), exact=exact == "on")
        return HTMLResponse(pages.filled("train.html", **_page(service, pages, chosen)))

    @shown.get("/samples")
    def samples(file: Annotated[str, Query(max_length=100)] = "") -> HTMLResponse:
        return HTMLResponse(pages.filled("samples.html", **_samples(service, pages, file)))

    app.include_router(shown)


def steps_of(service: Service, job: Job, after: int) -> Steps:
    """Steps and events in the progress of a job; those of its last attempt."""
    lines = service.jobs.folder(job.id).lines()
    begun = max((k for k, line in enumerate(lines) if "attempt" in line), default=0)
    found = run_of(lines[begun:]) or {"steps": [], "events": []}
    return Steps(
        state=JobState(job.state),
        steps=[StepAnswer(**step) for step in found["steps"][after:][:MOST_STEPS]],
        events=[EventAnswer(**event) for event in found["events"]],
    )


class TrainingChoice(BaseModel):
    """What is trained, and where."""

    model: str = ""
    on: str = ""
    batch: int = Field(8, ge=1)
    exact: bool = False

    @property
    def complete(self) -> bool:
        """Whether it can be planned."""
        return bool(self.model and self.on)

    def options(self, source: str) -> dict[str, Any]:
        """As an operation takes them; `source`: what it calls the model."""
        return {source: self.model, "on": self.on, "batch": self.batch, "exact": self.exact}


def _page(service: Service, pages: Pages, chosen: TrainingChoice) -> dict[str, Any]:
    """What the page shows: the jobs that belong to what was chosen, and their results."""
    compared = _newest(service, COMPARE, chosen.options("source")) if chosen.complete else None
    ran = _newest(service, RUN, chosen.options("model")) if chosen.complete else None
    comparison = pages.result(compared)
    stored = service.store.files(job=compared.id) if compared is not None else []
    return {
        "chosen": chosen,
        "models": [f"zoo:{name}" for name in (*EXAMPLES, *zoo_models())]
        + list(service.jobs.models),
        "clusters": clusters(service),
        "first_device": _first_device(service, chosen.on),
        "compare_options": chosen.options("source"),
        "run_options": chosen.options("model"),
        "compared": _details(service, compared),
        "comparison": comparison,
        "candidates": ranked(comparison) if comparison else None,
        "plan": next((f.name for f in stored if f.output == "result.json"), None),
        "ran": _details(service, ran),
        "run": pages.result(ran),
    }


def _samples(service: Service, pages: Pages, file: str) -> dict[str, Any]:
    """Of the page that moves samples: the same for nodes that a file describes."""
    document = find_wing("samples").files().problem_document
    options = {"file": file}
    compared = _newest(service, "samples.compare", options) if file else None
    ran = _newest(service, "samples.run", options | {"adapt": True}) if file else None
    comparison = pages.result(compared)
    schema = document.model.model_json_schema()
    return {
        "file": file,
        "files": service.store.files(kinds=[document.kind], most=LOOKED_AT),
        "fields": _fields(schema),
        "rows": {"name": "nodes", "fields": _fields(schema["$defs"]["NodeEntry"])},
        "example": EXAMPLE_NODES,
        "options": options,
        "compared": _details(service, compared),
        "comparison": comparison,
        "candidates": ranked(comparison) if comparison else None,
        "ran": _details(service, ran),
        "run": pages.result(ran),
    }


def _fields(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What can be written in one line, of what the schema of a document has."""
    required = schema.get("required", ())
    found = []
    for name, each in schema["properties"].items():
        kinds = {kind.get("type") for kind in each.get("anyOf", (each,))}
        if kinds & {"number", "integer", "string"} and name != "schema_version":
            default = each.get("default")
            default = "" if default is None else default
            found.append({"name": name, "required": name in required, "default": default})
    return sorted(found, key=lambda field: not field["required"])


def _first_device(service: Service, name: str) -> str:
    """Of a cluster; empty where there is none of this name."""
    with suppress(PlacewrightError):
        return Cluster.from_text(cluster_text(service, name), where=name).device_names[0]
    return ""


def _newest(service: Service, operation: str, options: Mapping[str, Any]) -> Job | None:
    """The newest job of an operation with these options, whatever others it has."""
    for job in service.store.jobs(operation=operation, most=LOOKED_AT):
        given = {"exact": True, "batch": None} | job.options
        if all(given.get(name) == value for name, value in options.items()):
            return job
    return None


def _details(service: Service, job: Job | None) -> JobDetails | None:
    return None if job is None else details(service, job)
