"""Ways from a model, or from nodes with samples, to trained weights; steps of runs, live.

Each part of the page is the newest job of its operation with the options that were chosen above
it. What one has found is a stored file, which the next one names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from placewright.adapt.timeline import FollowedEvent, FollowedStep, followed
from placewright.capturing.zoo import EXAMPLES, zoo_models
from placewright.cluster.cluster import Cluster
from placewright.errors import PlacewrightError
from placewright.planning.wings import find_wing
from placewright.service.app import JobId, Service, clusters, details
from placewright.service.clusters import cluster_text
from placewright.service.pages import Pages
from placewright.service.store import Job, JobState

Options = Mapping[str, Any]

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


class Steps(BaseModel):
    """What a run has done so far."""

    state: JobState
    steps: list[FollowedStep]
    events: list[FollowedEvent]


def add_flows(app: FastAPI, service: Service, pages: Pages) -> None:
    """Add the page that trains, and the route of a run's steps."""

    @app.get("/api/v1/jobs/{id}/steps")
    def read_steps(id: JobId, after: Annotated[int, Query(ge=0)] = 0) -> Steps:
        """Read steps of a run behind a number of steps: times, losses; and all events."""
        return steps_of(service, service.job(id), after)

    @app.get("/train", include_in_schema=False)
    def train(chosen: Annotated[TrainingChoice, Query()]) -> HTMLResponse:
        return pages.page("train.html", **_page(service, pages, chosen))

    @app.get("/samples", include_in_schema=False)
    def samples(file: Annotated[str, Query(max_length=100)] = "") -> HTMLResponse:
        return pages.page("samples.html", **_samples(service, pages, file))


def steps_of(service: Service, job: Job, after: int) -> Steps:
    """Steps and events in the progress of a job; those of its last attempt."""
    lines = service.jobs.folder(job.id).lines()
    begun = max((k for k, line in enumerate(lines) if "attempt" in line), default=0)
    run = followed(lines[begun:])
    steps = run.steps[after:][:MOST_STEPS]
    return Steps(state=JobState(job.state), steps=steps, events=run.events)


class TrainingChoice(BaseModel):
    """What is trained, and where."""

    model: str = Field("", max_length=200)
    on: str = Field("", max_length=200)
    batch: int = Field(8, ge=1, le=999_999)
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
    compare, run = chosen.options("source"), chosen.options("model")
    flow = _flow(service, pages, "layers", *((compare, run) if chosen.complete else (None, None)))
    compared = flow["compared"]
    stored = service.store.files(job=compared.id) if compared is not None else []
    return {
        "chosen": chosen,
        "models": [f"zoo:{name}" for name in (*EXAMPLES, *zoo_models())]
        + list(service.jobs.models),
        "clusters": clusters(service),
        "first_device": _first_device(service, chosen.on),
        "compare_options": compare,
        "run_options": run,
        "plan": next((f.name for f in stored if f.output == "result.json"), None),
        "flow": flow,
    }


def _samples(service: Service, pages: Pages, file: str) -> dict[str, Any]:
    """Of the page that moves samples: the same for nodes that a file describes."""
    document = find_wing("samples").files().problem_document
    options = {"file": file}
    asked = (options, options | {"adapt": True}) if file else (None, None)
    schema = document.model.model_json_schema()
    return {
        "file": file,
        "files": service.store.files(kinds=[document.kind], most=LOOKED_AT),
        "fields": _fields(schema),
        "rows": {"name": "nodes", "fields": _fields(schema["$defs"]["NodeEntry"])},
        "example": EXAMPLE_NODES,
        "options": options,
        "flow": _flow(service, pages, "samples", *asked),
    }


def _flow(
    service: Service, pages: Pages, wing: str, compare: Options | None, run: Options | None
) -> dict[str, Any]:
    """The newest comparison and the newest run with these options, and what they have found."""
    compared, ran = (
        None if options is None else _newest(service, f"{wing}.{verb}", options)
        for verb, options in (("compare", compare), ("run", run))
    )
    return {
        "compared": None if compared is None else details(service, compared),
        "comparison": pages.result(compared),
        "ran": None if ran is None else details(service, ran),
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


def _newest(service: Service, operation: str, options: Options) -> Job | None:
    """The newest job of an operation with these options, whatever others it has."""
    for job in service.store.jobs(operation=operation, most=LOOKED_AT):
        given = {"exact": True, "batch": None} | job.options
        if all(given.get(name) == value for name, value in options.items()):
            return job
    return None
