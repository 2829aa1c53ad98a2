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
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from placewright.errors import InfeasibleError, InputError, PlacewrightError, RunError
from placewright.io.arguments import checked

ANSWER_S = 60.0
"""Of one request."""

ADDRESS = re.compile(
    r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?(?:/[\w./-]*)?", re.ASCII
)
"""Of a service, also behind a proxy that gives it a path."""

TOKEN = re.compile(r"[!-~]{1,200}")
"""What can stand in a header."""

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
    client.ask("GET", "health")
    return client


@dataclass(frozen=True, slots=True)
class Client:
    """A service; `connect` makes one."""

    url: str
    token: str | None = field(default=None, repr=False)

    def operations(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of the options of everything that can be done, by name."""
        return {each["name"]: each["options"] for each in self.ask("GET", "operations")}

    def upload(self, path: str | Path, name: str | None = None) -> str:
        """Upload a file; the name by which jobs may name it."""
        data = Path(path).read_bytes()
        stored = self.ask("PUT", f"files/{quote(name or Path(path).name)}", data)
        return str(stored["name"])

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

        body = json.dumps({name: named(value) for name, value in options.items()}).encode()
        return Job(self, self.ask("POST", f"operations/{quote(operation, '')}/jobs", body)["id"])

    def place(self, model: str | Path, on: str | Path | None = None, **options: Any) -> Job:
        """Start to plan a model on a cluster; options are those of ``operators plan``."""
        given = options if on is None else options | {"on": on}
        return self.run("operators.plan", source=model, **given)

    def jobs(self, most: int = 50) -> list[Job]:
        """The newest jobs."""
        found = self.ask("GET", f"jobs?most={most}")
        return [Job(self, each["id"]) for each in found["jobs"]]

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Send a request to the API; a JSON answer as data, any other as bytes."""
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
                return json.loads(data) if json_too and data else data
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, HTTPException) as error:  # also in the middle of an answer
            why = getattr(error, "reason", error)
            hint = "start `placewright serve`, and give the address that it prints"
            raise RunError(f"no answer: {why}", where=self.url, hint=hint) from None


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a service."""

    client: Client
    id: str

    def status(self) -> dict[str, Any]:
        """State, latest progress, error, the head of the result."""
        found: dict[str, Any] = self.client.ask("GET", f"jobs/{self.id}")
        return found

    def wait(self, progress: Progress | None = None, time_limit_s: float | None = None) -> Any:
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
        return self.client.ask("GET", f"jobs/{self.id}/result")

    def cancel(self) -> None:
        """End it; a search keeps the best plan so far."""
        self.client.ask("POST", f"jobs/{self.id}/cancel", b"")

    def log(self) -> str:
        """What it has said on standard error."""
        return bytes(self.client.ask("GET", f"jobs/{self.id}/log")).decode()

    def report(self, path: str | Path) -> Path:
        """Write its self-contained page."""
        Path(path).write_bytes(self.client.ask("GET", f"jobs/{self.id}/report"))
        return Path(path)


def _failed(id: str, status: Mapping[str, Any]) -> PlacewrightError:
    state = status["state"]
    parts = status["error"] or {"what": f"was {state}", "where": f"job {id}", "by": "", "next": ""}
    kind = InfeasibleError if state == "infeasible" else RunError
    return kind(parts["what"], where=parts["where"], by=parts["by"], hint=parts["next"])


def _refused(error: urllib.error.HTTPError) -> PlacewrightError:
    """What the service has answered, in its own words."""
    try:
        parts = json.loads(error.read())["error"]
        return InputError(parts["what"], where=parts["where"], by=parts["by"], hint=parts["next"])
    except (ValueError, KeyError, TypeError):
        return RunError(f"answered {error.code} {error.reason}", where=error.url or "")
