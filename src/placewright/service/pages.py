"""The pages: templates filled from the same objects as the API; scripts talk to the API.

Pages that train, or move samples, lead from a model or from nodes to trained weights. Each of their
parts is the newest job of its operation with the options that were chosen above it. What one has
found is a stored file, which the next one names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from placewright import report
from placewright.adapt.timeline import FollowedEvent, FollowedStep, followed
from placewright.capturing.zoo import EXAMPLES, zoo_models
from placewright.cluster.cluster import Cluster, device_cells, link_cells
from placewright.cluster.drawing import cluster_drawing
from placewright.cluster.files import error_line
from placewright.cluster.schema import preset_names, preset_text
from placewright.errors import PlacewrightError, UnknownNameError, look_up
from placewright.io.boundary import parse_json, read_text
from placewright.planning.side_by_side import (
    Side,
    side_by_side,
    side_by_side_page,
    side_of_data,
    verdict,
)
from placewright.planning.views import saved_sections
from placewright.planning.wings import families, find_wing, wings
from placewright.report.gantt import timelines_in
from placewright.report.text import ago, amount, percent, size
from placewright.samples.files import EXAMPLE_NODES
from placewright.service.app import ErrorParts, JobId, Service, answer_error, clusters, details
from placewright.service.operations import Operation, Option
from placewright.service.process import RESULT_BYTES
from placewright.service.store import ENDED, Job, JobState, StoredFile
from placewright.web.access import REPORT_CONTENT

HERE = Path(__file__).parent

Options = Mapping[str, Any]

Chosen = Annotated[str, Query(max_length=100)]
"""Name of a stored file."""

ROWS = 50
"""Of a page of jobs or files."""

OFFERED = 200
"""Files that a form offers, the newest; others are named by hand."""

FIRST = (
    *("source", "file", "plan", "model", "on", "planner", "time_limit", "steps", "name"),
    *("server", "cluster", "policy"),
)
"""Options that a form shows at once; the others are behind a button."""

READ = {"model": "[.]onnx", "graph": "graph[.]json", "": ":FILE|config[.]json"}
"""Kinds of files that a source may be, by what its help calls them."""

LONGEST_TEXT = 100_000
"""Characters of a cluster that is checked."""

LOOKED_AT = 200
"""The newest jobs of an operation, among which one with the chosen options is looked for."""

MOST_STEPS = 5000
"""In one answer."""


class ClusterCheck(BaseModel):
    """What was found in a cluster's YAML.

    `line`: where the error is. `drawing`: the cluster as SVG, where there is no error.
    """

    name: str = ""
    devices: int = 0
    links: int = 0
    error: ErrorParts | None = None
    line: int | None = None
    drawing: str = ""


class Steps(BaseModel):
    """What a run has done so far."""

    state: JobState
    steps: list[FollowedStep]
    events: list[FollowedEvent]


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


def add_pages(app: FastAPI, service: Service) -> Pages:
    """Add the pages to the application."""
    pages = Pages(service)
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    router.add_api_route("/", pages.overview)
    router.add_api_route("/login", lambda: pages.page("login.html"))
    router.add_api_route("/new", lambda: pages.page("choose.html", groups=pages.groups()))
    router.add_api_route("/new/{name}", pages.form)
    router.add_api_route("/jobs", pages.jobs)
    router.add_api_route("/jobs/{id}", pages.job)
    router.add_api_route("/files", pages.files)
    router.add_api_route("/clusters", pages.clusters)
    router.add_api_route("/clusters/{name}", pages.cluster)
    router.add_api_route("/train", pages.train)
    router.add_api_route("/samples", pages.samples)
    router.add_api_route("/api", pages.reference)
    router.add_api_route("/beside", pages.beside)
    router.add_api_route("/beside/report", pages.beside_report)
    router.add_api_route("/report/{name}", _of_reports, response_class=FileResponse)
    app.include_router(router)
    app.post("/api/v1/clusters/check")(check_cluster)
    app.get("/api/v1/jobs/{id}/steps")(pages.read_steps)

    async def answer(request: Request, error: Exception) -> Response:
        """An error of a page is a page."""
        found = await answer_error(request, error)
        if request.url.path.startswith("/api/"):
            return found
        parts = parse_json(bytes(found.body).decode(), where="error")["error"]
        return HTMLResponse(pages.filled("error.html", error=parts), found.status_code)

    for kind in (PlacewrightError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
    return pages


def check_cluster(text: Annotated[str, Body(embed=True, max_length=LONGEST_TEXT)]) -> ClusterCheck:
    """Check a cluster's YAML and draw it; nothing is stored."""
    try:
        cluster = Cluster.from_text(text, where="cluster")
    except PlacewrightError as error:
        return ClusterCheck(error=ErrorParts(**error.parts), line=error_line(error, text))
    devices, links = len(cluster.devices), len(cluster.links)
    return ClusterCheck(name=cluster.name, devices=devices, links=links, drawing=_drawn(cluster))


def _of_reports(name: Literal["style.css", "page.js", "timeline.js"]) -> FileResponse:
    """Style and scripts that reports and these pages share."""
    return FileResponse(Path(report.__file__).with_name(name))


class Pages:
    """What is filled into the templates."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"ago": ago, "size": size, "amount": amount, "gap": percent}
        self._templates.globals["parts"] = self._templates.get_template("parts.html").module

    def filled(self, name: str, /, **values: Any) -> str:
        """A template with its values."""
        return self._templates.get_template(name).render(**values)

    def page(self, name: str, /, **values: Any) -> HTMLResponse:
        """The same as an answer."""
        return HTMLResponse(self.filled(name, **values))

    def overview(self) -> HTMLResponse:
        """What can be done, and what was done last."""
        return self.page(
            "overview.html",
            groups=self.groups(),
            jobs=self._service.store.jobs(most=8),
            clusters=clusters(self._service),
            compiling=self._service.ahead.left,
            models=self._service.jobs.models,
        )

    def form(self, name: str, request: Request) -> HTMLResponse:
        """The form of an operation; what stands in the address is filled in."""
        operation = look_up("operation", name, self._service.operations)
        given = dict(request.query_params)
        if "again" in given:
            made = self._service.job(given["again"]).options
            # A plan that is run is not made again.
            left = {"planner", "time_limit", "seed"} if "plan" in given else set()
            given = {k: v for k, v in made.items() if k not in left} | given
        return self.page("form.html", operation=operation, **self.form_of(operation, given))

    def form_of(self, operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the fields of an operation's options are filled from."""
        first = [each for each in operation.chosen if each.required or each.name in FIRST]
        more = [each for each in operation.chosen if each not in first]
        choices = self._choices(operation)
        return {"first": first, "more": more, "given": given, "choices": choices}

    def jobs(self, request: Request, before: str | None = None, state: str = "") -> HTMLResponse:
        """All jobs, a page at a time."""
        states = [state] if state in list(JobState) else []
        found = self._service.store.jobs(before=before, states=states, most=ROWS)
        counts = self._service.store.counts()
        chosen = {"state": state, "states": list(JobState), "counts": counts}
        return self.page("jobs.html", jobs=found, **chosen)

    def job(self, id: JobId) -> HTMLResponse:
        """A job: how far it is, or what it has found."""
        job = self._service.job(id)
        result = self.result(job)
        operation = self._service.operations.get(job.operation)
        by_epoch = operation is not None and any(o.name == "epochs" for o in operation.options)
        return self.page(
            "job.html",
            job=details(self._service, job),
            ended=job.state in ENDED,
            result=result,
            step="epoch" if by_epoch else "step",
            sections=saved_sections(result) if result else [],
            files=self._service.store.files(job=job.id),
            operations=self._service.operations,
        )

    def files(self, before: str | None = None) -> HTMLResponse:
        """Stored files, a page at a time, and what may be done with each."""
        found = self._service.store.files(before=before, most=ROWS)
        return self.page("files.html", files=found, uses=self._uses)

    def clusters(self) -> HTMLResponse:
        """Presets, and stored files that are clusters."""
        return self.page("clusters.html", clusters=clusters(self._service))

    def cluster(self, name: str) -> HTMLResponse:
        """A cluster; a stored file that is none any more has its text alone."""
        text = self._cluster_text(name)
        page = {"name": name, "text": text, "preset": name in preset_names()}
        page |= {"uses": self._cluster_uses(), "cluster": None, "error": None, "drawing": ""}
        try:
            cluster = Cluster.from_text(text, where=name, name=name)
        except PlacewrightError as error:
            return self.page("cluster.html", **page | {"error": error.parts})
        page |= {"cluster": cluster, "drawing": _drawn(cluster)}
        page["devices"] = list(map(device_cells, cluster.devices))
        page["links"] = list(map(link_cells, cluster.links))
        return self.page("cluster.html", **page)

    def _cluster_text(self, name: str) -> str:
        """The YAML of a preset or of a stored file; `UnknownNameError` where there is none."""
        if name in preset_names():
            return preset_text(name)
        file = self._service.store.file(name)
        if file is None or file.kind != "cluster":
            known = [each.name for each in clusters(self._service)]
            raise UnknownNameError("cluster", name, known)
        return read_text(self._service.files.path(file))

    def _cluster_uses(self) -> list[tuple[str, str]]:
        """Address and text of every verb that plans or runs on a cluster."""
        found = []
        for operation in self._service.operations.values():
            option = next((each for each in operation.chosen if each.kind == "cluster"), None)
            if option is not None and operation.path[-1] in ("plan", "compare"):
                found.append((f"/new/{operation.name}?{option.name}=", " ".join(operation.path)))
        return found

    def read_steps(self, id: JobId, after: Annotated[int, Query(ge=0)] = 0) -> Steps:
        """Read steps of a run behind a number of steps: times, losses; and all events."""
        job = self._service.job(id)
        lines = self._service.jobs.folder(id).lines()
        begun = max((k for k, line in enumerate(lines) if "attempt" in line), default=0)
        run = followed(lines[begun:])  # of its last attempt
        steps = run.steps[after:][:MOST_STEPS]
        return Steps(state=JobState(job.state), steps=steps, events=run.events)

    def train(self, chosen: Annotated[TrainingChoice, Query()]) -> HTMLResponse:
        """Train a model: the jobs that belong to what was chosen, and their results."""
        compare, run = chosen.options("source"), chosen.options("model")
        flow = self._flow("layers", *((compare, run) if chosen.complete else (None, None)))
        compared = flow["compared"]
        stored = self._service.store.files(job=compared.id) if compared is not None else []
        models = [f"zoo:{name}" for name in (*EXAMPLES, *zoo_models())]
        return self.page(
            "train.html",
            chosen=chosen,
            models=[*models, *self._service.jobs.models],
            clusters=clusters(self._service),
            first_device=self._first_device(chosen.on),
            compare_options=compare,
            run_options=run,
            plan=next((f.name for f in stored if f.output == "result.json"), None),
            flow=flow,
        )

    def samples(self, file: Chosen = "") -> HTMLResponse:
        """Move samples: the same for nodes that a file describes."""
        document = find_wing("samples").files().problem_document
        options = {"file": file}
        asked = (options, options | {"adapt": True}) if file else (None, None)
        return self.page(
            "samples.html",
            file=file,
            files=self._service.store.files(kinds=[document.kind], most=LOOKED_AT),
            fields=document.fields(),
            rows={"name": "nodes", "fields": document.fields("NodeEntry")},
            example=EXAMPLE_NODES,
            options=options,
            flow=self._flow("samples", *asked),
        )

    def _flow(self, wing: str, compare: Options | None, run: Options | None) -> dict[str, Any]:
        """The newest comparison and the newest run with these options, and what they have found."""
        compared, ran = (
            None if options is None else self._newest(f"{wing}.{verb}", options)
            for verb, options in (("compare", compare), ("run", run))
        )
        return {
            "compared": None if compared is None else details(self._service, compared),
            "comparison": self.result(compared),
            "ran": None if ran is None else details(self._service, ran),
            "run": self.result(ran),
        }

    def _newest(self, operation: str, options: Options) -> Job | None:
        """The newest job of an operation with these options, whatever others it has.

        One that was accepted before a file of this name was stored has had another file.
        """
        texts = [value for value in options.values() if isinstance(value, str)]
        stored_s = [file.created_s for file in map(self._service.store.file, texts) if file]
        for job in self._service.store.jobs(operation=operation, most=LOOKED_AT):
            given = {"exact": True, "batch": None} | job.options
            same = all(given.get(name) == value for name, value in options.items())
            if same and job.created_s >= max(stored_s, default=0.0):
                return job
        return None

    def _first_device(self, name: str) -> str:
        """Of a cluster; empty where there is none of this name."""
        with suppress(PlacewrightError):
            return Cluster.from_text(self._cluster_text(name), where=name).device_names[0]
        return ""

    def reference(self) -> HTMLResponse:
        """The API, as it describes itself."""
        return self.page("api.html", operations=self._service.operations.values())

    def groups(self) -> list[tuple[str, str, list[Operation]]]:
        """Operations by wing: name, title, operations; those of no wing come last."""
        every = self._service.operations.values()
        found = [
            (name, wing.title, [each for each in every if each.wing == name])
            for name, wing in wings().items()
        ]
        rest = [each for each in every if each.wing not in wings()]
        return [*found, ("machine", "models, profiles and this machine", rest)]

    def _choices(self, operation: Operation) -> dict[str, list[tuple[str, str]]]:
        """What a form offers for each option that names something: value and text."""
        files = self._service.store.files(most=OFFERED)
        presets = [(each.name, each.name) for each in clusters(self._service)]
        found: dict[str, list[tuple[str, str]]] = {}
        for option in operation.chosen:
            if option.kind == "cluster":
                found[option.name] = presets
            if option.kind == "source":
                shipped = [*zoo_models(), *EXAMPLES] if "zoo:" in option.help else []
                found[option.name] = [(f"zoo:{name}", "ships with Placewright") for name in shipped]
                allowed = self._service.jobs.models if "factory" in option.help else ()
                found[option.name] += [(name, "allowed by the operator") for name in allowed]
            if option.kind in ("source", "file"):
                fitting = (file for file in files if _fits(option, operation, file))
                named = [(file.name, file.kind) for file in fitting]
                found[option.name] = [*found.get(option.name, ()), *named]
        return found

    def _uses(self, kind: str) -> list[tuple[str, str]]:
        """Address and text of what may be done with a file of this kind."""
        every = self._service.operations
        for name, wing in families():
            if wing.files().problem_document.kind == kind:
                verbs = map(every.get, (f"{name}.plan", f"{name}.compare"))
                return [(f"/new/{v.name}?{v.options[0].name}=", v.path[-1]) for v in verbs if v]
        plan = ("/new/operators.plan?source=", "plan")
        known = {"cluster": [("/new/devices?on=", "show")], "graph": [plan]}
        known["model"] = [plan, ("/services/new?variant=", "serve")]
        return known.get(kind, [])

    def result(self, job: Job | None) -> dict[str, Any] | None:
        """The document of a job that has ended, unless it is very large."""
        if job is None or job.state not in ENDED:
            return None
        return self._service.jobs.folder(job.id).result()

    def beside(self, first: Chosen = "", second: Chosen = "") -> HTMLResponse:
        """Two plans side by side, once both are chosen."""
        kinds = [wing.files().plan_document.kind for _, wing in families()]
        offered = self._service.store.files(kinds=kinds, most=OFFERED)
        values: dict[str, Any] = {"said": "", "sections": []}
        if first and second:
            sides = self._side(first), self._side(second)
            values = {"said": verdict(*sides), "sections": list(side_by_side(*sides))}
        chosen = {"first": first, "second": second}
        return self.page("beside.html", chosen=chosen, files=offered, **values)

    def beside_report(self, first: Chosen, second: Chosen) -> HTMLResponse:
        """The same as a self-contained page."""
        page = side_by_side_page(self._side(first), self._side(second))
        return HTMLResponse(page, headers={"content-security-policy": REPORT_CONTENT})

    def _side(self, name: str) -> Side:
        """A stored plan; the report of the job that made it has its timelines."""
        file = self._service.files.find(name)
        data = parse_json(_text(self._service.files.path(file)), where=name)
        if file.job is None:
            return side_of_data(data, name)
        made = _text(self._service.jobs.folder(file.job).out / "report.html")
        return side_of_data(data, name, list(timelines_in(made)) or None)


def _drawn(cluster: Cluster) -> str:
    too_many = "<p>It has too many hosts or devices to be drawn; the tables have all of them.</p>"
    return cluster_drawing(cluster) or too_many


def _text(path: Path) -> str:
    """What a job has written; empty where there is nothing, or very much."""
    if not path.exists() or path.stat().st_size > RESULT_BYTES:
        return ""
    return path.read_text(encoding="utf-8")


def _fits(option: Option, operation: Operation, file: StoredFile) -> bool:
    """Whether a file may be what an option wants, as far as that is known."""
    if option.metavar.endswith("PLAN"):
        return file.kind.endswith("plan")
    own = [wing for group, wing in families() if group == operation.path[0]]
    kinds = [wing.files().problem_document.kind for wing in own]
    if option.kind == "source":
        read = [kind for kind, text in READ.items() if re.search(text, option.help)]
        problems = kinds if option.metavar == "SOURCE" else []
        alone = not file.name.endswith((".data", ".bin"))  # what a model has beside it
        return alone and file.kind in (*read, *problems) and bool(file.kind or not file.job)
    return not own or option.name != "file" or file.kind in ("", *kinds)
