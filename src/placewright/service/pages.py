"""The pages: templates filled from the same objects as the API; scripts talk to the API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from placewright import report
from placewright.capturing.zoo import EXAMPLES, zoo_models
from placewright.errors import PlacewrightError
from placewright.io.boundary import parse_json
from placewright.planning.side_by_side import (
    Side,
    side_by_side,
    side_by_side_page,
    side_of_data,
    verdict,
)
from placewright.planning.views import saved_sections
from placewright.planning.wings import families, wings
from placewright.report.gantt import timelines_in
from placewright.report.text import ago, amount, percent, size
from placewright.service.app import JobId, Service, clusters, details
from placewright.service.operations import Operation, Option, find
from placewright.service.process import RESULT_BYTES
from placewright.service.store import ENDED, Job, JobState, StoredFile
from placewright.web.access import REPORT_CONTENT

HERE = Path(__file__).parent

SHIPS = "ships with Placewright"

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


def add_pages(app: FastAPI, service: Service) -> Pages:
    """Add the pages to the application."""
    pages = Pages(service)
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    router.add_api_route("/", pages.overview)
    router.add_api_route("/login", pages.login)
    router.add_api_route("/new", pages.choose)
    router.add_api_route("/new/{name}", pages.form)
    router.add_api_route("/jobs", pages.jobs)
    router.add_api_route("/jobs/{id}", pages.job)
    router.add_api_route("/files", pages.files)
    router.add_api_route("/api", pages.reference)
    router.add_api_route("/beside", pages.beside)
    router.add_api_route("/beside/report", pages.beside_report)
    router.add_api_route("/report/{name}", _of_reports, response_class=FileResponse)
    app.include_router(router)
    inner = app.exception_handlers[PlacewrightError]

    async def answer(request: Request, error: PlacewrightError) -> Response:
        """An error of a page is a page."""
        if request.url.path.startswith("/api/"):
            return await inner(request, error)  # type: ignore[no-any-return, misc]
        return HTMLResponse(pages.filled("error.html", error=error.parts), 404)

    app.add_exception_handler(PlacewrightError, answer)  # type: ignore[arg-type]
    return pages


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
            groups=self._groups(),
            jobs=self._service.store.jobs(most=8),
            clusters=clusters(self._service),
            compiling=self._service.ahead.left,
            models=self._service.jobs.models,
        )

    def login(self) -> HTMLResponse:
        """Ask for the token."""
        return self.page("login.html")

    def choose(self) -> HTMLResponse:
        """Choose an operation."""
        return self.page("choose.html", groups=self._groups())

    def form(self, name: str, request: Request) -> HTMLResponse:
        """The form of an operation; what stands in the address is filled in."""
        operation = find(self._service.operations, name)
        given = dict(request.query_params)
        if "again" in given:
            given |= self._service.job(given["again"]).options
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

    def reference(self) -> HTMLResponse:
        """The API, as it describes itself."""
        return self.page("api.html", operations=self._service.operations.values())

    def _groups(self) -> list[tuple[str, str, list[Operation]]]:
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
                found[option.name] = [
                    *((f"zoo:{name}", SHIPS) for name in (*zoo_models(), *EXAMPLES)),
                    *((name, "allowed by the operator") for name in self._service.jobs.models),
                ]
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


def _text(path: Path) -> str:
    """What a job has written; empty where there is nothing, or very much."""
    if not path.exists() or path.stat().st_size > RESULT_BYTES:
        return ""
    return path.read_text(encoding="utf-8")


def _fits(option: Option, operation: Operation, file: StoredFile) -> bool:
    """Whether a file may be what an option wants, as far as that is known."""
    if option.metavar.endswith("PLAN"):
        return file.kind.endswith("plan")
    if option.kind == "source" and (file.kind == "cluster" or (file.job and not file.kind)):
        return False
    own = [wing for group, wing in families() if group == operation.path[0]]
    if not own or option.name not in ("file", "source"):
        return True
    models = ("model", "graph") if option.kind == "source" else ()
    return file.kind in ("", *models, *(wing.files().problem_document.kind for wing in own))
