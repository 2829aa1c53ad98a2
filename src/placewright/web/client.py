"""`connect`: a service from Python. It needs nothing but the standard library.

service = placewright.connect("http://127.0.0.1:8400")
job = service.run("operators.plan", source="zoo:resnet50", on="edge-duo")
print(job.wait()["value"])
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from urllib.parse import quote

from placewright.errors import InfeasibleError, InputError, PlacewrightError, RunError
from placewright.io.arguments import Count, Unlimited, checked
from placewright.io.boundary import parse_json, read_bytes, unreadable
from placewright.io.stored import write_file

ANSWER_S = 60.0
"""Of one request."""

ADDRESS = re.compile(
    r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?(?:/[\w./-]*)?", re.ASCII
)
"""Of a service, also behind a proxy that gives it a path."""

TOKEN = re.compile(r"[!-~]{1,200}")
"""What can stand in a header."""

_PERHAPS = (dict, type(None))
STARTED, STORED, LISTED = {"id": str}, {"name": str}, {"jobs": [{"id": str}]}
OPERATIONS = [{"name": str, "options": dict}]
STATUS = {"state": str, "outputs": list, "progress": _PERHAPS, "error": _PERHAPS}
"""What answers hold: types by key, and of all entries of a list."""

ENDED = ("done", "interrupted", "infeasible", "failed", "cancelled", "lost")

Progress = Callable[[Mapping[str, Any]], object]


@checked
def connect(url: str, token: str | None = None) -> Client:
    """A client of a service that ``placewright serve`` has started.

    Parameters
    ----------
    url
        What it has printed.
    token
        The token that it has printed, where one is needed.

    Raises
    ------
    InputError
        That is no address, or no token.
    RunError
        Nobody answers there.
    """
    if not ADDRESS.fullmatch(url):
        hint = "give the address that `placewright serve` prints, http://127.0.0.1:8400"
        raise InputError(
            "is no address of a service", where="url", by=f"got {url!r:.80}", hint=hint
        )
    if token is not None and not TOKEN.fullmatch(token):
        raise InputError("is no token", where="token", hint="give the one that was printed")
    client = Client(url.rstrip("/"), token)
    client.ask("GET", "health", holds={"status": str})
    return client


@dataclass(frozen=True, slots=True)
class Client:
    """A service; `connect` makes one."""

    url: str
    token: str | None = field(default=None, repr=False)

    def operations(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of the options of everything that can be done, by name."""
        found = self.ask("GET", "operations", holds=OPERATIONS)
        return {each["name"]: each["options"] for each in found}

    @checked
    def upload(self, path: str | Path, name: str | None = None) -> str:
        """Upload a file; the name by which jobs may name it.

        Raises `InputError`: it cannot be read, or the service does not take it.
        """
        try:
            data = read_bytes(path)
        except OSError as error:
            raise unreadable(path, error) from None
        stored = self.ask("PUT", f"files/{_quoted(name or Path(path).name)}", data, STORED)
        return str(stored["name"])

    @checked
    def run(self, operation: str, **options: Any) -> Job:
        """Start an operation, such as ``operators.plan``; files given as `Path` are uploaded.

        Raises
        ------
        InputError
            The service does not take it, and says why.
        """

        def named(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [*map(named, value)]
            return self.upload(value) if isinstance(value, Path) else value

        try:
            given = {name: named(value) for name, value in options.items()}
            body = json.dumps(given, allow_nan=False, default=_number).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                "an option is nothing that JSON has",
                where=operation,
                by=f"{error!s:.200}",
                hint="give numbers, texts, truths, lists of them, and a Path for a file",
            ) from None
        return Job(
            self, self.ask("POST", f"operations/{_quoted(operation)}/jobs", body, STARTED)["id"]
        )

    @checked
    def place(self, model: str | Path, on: str | Path | None = None, **options: Any) -> Job:
        """Start to plan a model on a cluster; options are those of ``operators plan``."""
        given = options if on is None else options | {"on": on}
        return self.run("operators.plan", source=model, **given)

    @checked
    def jobs(self, most: Count = 50) -> list[Job]:
        """The newest jobs."""
        found = self.ask("GET", f"jobs?most={most}", holds=LISTED)
        return [Job(self, each["id"]) for each in found["jobs"]]

    def ask(self, method: str, path: str, body: bytes | None = None, holds: Any = object) -> Any:
        """Send a request to the API; a JSON answer as data, any other as bytes.

        `holds`: what the answer must hold, as `STATUS`.

        Raises `InputError`: the service refuses it. Raises `RunError`: nobody answers, or what is
        there is no such service.
        """
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        headers = {"content-type": kind} if body is not None else {}
        headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}", data=body, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                data = answer.read()
                json_too = answer.headers.get_content_type() == "application/json"
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, HTTPException) as error:  # also in the middle of an answer
            why = getattr(error, "reason", error)
            hint = "start `placewright serve`, and give the address that it prints"
            raise RunError(f"no answer: {why}", where=self.url, hint=hint) from None
        with suppress(InputError):
            found = parse_json(data, where=path) if json_too and data else data
            if _holds(found, holds):
                return found
        raise RunError(
            "the answer is none of a service of Placewright",
            where=request.full_url,
            by=f"{data[:60]!r}",
            hint="give the address that `placewright serve` prints, of this version",
        )


def _holds(answer: Any, wanted: Any) -> bool:
    """Whether an answer has these keys and types."""
    if isinstance(wanted, dict):
        known = isinstance(answer, dict) and wanted.keys() <= answer.keys()
        return known and all(_holds(answer[key], each) for key, each in wanted.items())
    if isinstance(wanted, list):
        return isinstance(answer, list) and all(_holds(each, wanted[0]) for each in answer)
    return isinstance(answer, wanted)


_quoted = partial(quote, safe="", errors="replace")


def _number(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"got {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a service."""

    client: Client
    id: str

    def status(self) -> dict[str, Any]:
        """State, latest progress, error, the head of the result."""
        found: dict[str, Any] = self.client.ask("GET", f"jobs/{_quoted(self.id)}", holds=STATUS)
        return found

    @checked
    def wait(self, progress: Progress | None = None, time_limit_s: Unlimited | None = None) -> Any:
        """Wait until it has ended, and return its result.

        Parameters
        ----------
        progress
            Called with value, bound and gap whenever they are new.
        time_limit_s
            For how long; the job goes on then.

        Raises
        ------
        InfeasibleError
            No plan fits.
        RunError
            It failed, was cancelled or lost, or has not ended in time.
        """
        end_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        latest, pause_s = None, 0.1
        while (status := self.status())["state"] not in ENDED:
            if progress is not None and status["progress"] not in (None, latest):
                progress(latest := status["progress"])
            if end_s is not None and time.monotonic() > end_s:
                hint = "wait again; it goes on"
                raise RunError("has not ended in time", where=f"job {self.id}", hint=hint)
            time.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.2)
        if status["state"] not in ("done", "interrupted"):
            raise _failed(self.id, status)
        return self.result() if "result.json" in status["outputs"] else None

    def result(self) -> Any:
        """The document that it has written, as ``-o`` writes it."""
        return self.client.ask("GET", f"jobs/{_quoted(self.id)}/result")

    def cancel(self) -> None:
        """End it; a search keeps the best plan so far."""
        self.client.ask("POST", f"jobs/{_quoted(self.id)}/cancel", b"")

    def log(self) -> str:
        """What it has said on standard error."""
        said: bytes = self.client.ask("GET", f"jobs/{_quoted(self.id)}/log", holds=bytes)
        return said.decode(errors="replace")

    @checked
    def report(self, path: str | Path) -> Path:
        """Write its self-contained page.

        Raises `InputError`: there is none, or the file cannot be written.
        """
        page = self.client.ask("GET", f"jobs/{_quoted(self.id)}/report", holds=bytes)
        return write_file(path, page)


def _failed(id: str, status: Mapping[str, Any]) -> PlacewrightError:
    state = status["state"]
    parts = status["error"] or {"what": f"was {state}", "where": f"job {id}"}
    return _stated(InfeasibleError if state == "infeasible" else RunError, parts)


def _stated(kind: type[PlacewrightError], parts: Mapping[str, Any]) -> PlacewrightError:
    """An error with the parts that the service has stated."""
    what, where, by, hint = (str(parts.get(name) or "") for name in ("what", "where", "by", "next"))
    return kind(what, where=where, by=by, hint=hint)


def _refused(error: urllib.error.HTTPError) -> PlacewrightError:
    """What the service has answered, in its own words."""
    with suppress(InputError, OSError, HTTPException):
        answer = parse_json(error.read(), where=error.url or "")
        if _holds(answer, {"error": {"what": str}}):
            return _stated(InputError, answer["error"])
    return RunError(f"answered {error.code} {error.reason}", where=error.url or "")
