"""The way from a model to trained weights: a page that chains operations; steps of runs, live.

Each part of the page is the newest job of its operation with the options that were chosen above
it. What one has found is a stored file, which the next one names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from placewright.capturing.zoo import EXAMPLES, zoo_models
from placewright.cluster.cluster import Cluster
from placewright.errors import PlacewrightError
from placewright.service.app import JobDetails, JobId, Service, clusters, details
from placewright.service.clusters import cluster_text
from placewright.service.pages import Pages, ranked
from placewright.service.store import ENDED, Job, State

COMPARE, RUN = "layers.compare", "layers.run"

LOOKED_AT = 200
"""The newest jobs of an operation, among which one with the chosen options is looked for."""

RESULT_BYTES = 16 << 20

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

    state: State
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
        chosen = Chosen(model=model, on=on, batch=int(batch or 8), exact=exact == "on")
        return HTMLResponse(pages.filled("train.html", **_page(service, chosen)))

    app.include_router(shown)


def steps_of(service: Service, job: Job, after: int) -> Steps:
    """Steps and events in the progress of a job; those of its last attempt."""
    lines = service.jobs.folder(job.id).lines()
    begun = max((k for k, line in enumerate(lines) if "attempt" in line), default=0)
    done = [line for line in lines[begun:] if "step" in line]
    steps = [line for line in done if "step_s" in line and "event" not in line]
    return Steps(
        state=State(job.state),
        steps=[StepAnswer(**_step(line)) for line in steps[after:][:MOST_STEPS]],
        events=[
            EventAnswer(step=line["step"], event=line["event"], text=line["text"])
            for line in done
            if "event" in line
        ],
    )


def _step(line: Mapping[str, Any]) -> dict[str, Any]:
    loss = line.get("loss")
    known = {name: line[name] for name in ("step", "step_s", "plan")}
    return known | {"loss": loss if isinstance(loss, int | float) else None}


class Chosen(BaseModel):
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


def _page(service: Service, chosen: Chosen) -> dict[str, Any]:
    """What the page shows: the jobs that belong to what was chosen, and their results."""
    compared = _newest(service, COMPARE, chosen.options("source")) if chosen.complete else None
    ran = _newest(service, RUN, chosen.options("model")) if chosen.complete else None
    comparison = _result(service, compared)
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
        "run": _result(service, ran),
    }


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


def _result(service: Service, job: Job | None) -> dict[str, Any] | None:
    """The document of a job that has ended, unless it is very large."""
    if job is None or job.state not in ENDED:
        return None
    path = service.jobs.folder(job.id).out / "result.json"
    if not path.exists() or path.stat().st_size > RESULT_BYTES:
        return None
    data = json.loads(path.read_bytes())
    return data if isinstance(data, dict) else None
