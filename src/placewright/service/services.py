"""Request services: request servers that run until they are drained, each a process of its own.

    services/ID/service.json     what was asked for
    services/ID/work/            its current folder: the family's YAML and ONNX files
    services/ID/progress.jsonl   how its process has ended
    services/ID/out/log.jsonl    every request

A service is what ``placewright requests serve`` starts, on a free port of 127.0.0.1. Like that of a
job its process outlives this service, and is found again by its environment. Its token is in that
environment alone, and so is found with it. Nothing here talks to another address.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from shutil import rmtree
from typing import Any

from placewright.errors import InputError, PlacewrightError, RunError, UnknownNameError
from placewright.io.stored import write_file
from placewright.service.files import FileStore
from placewright.service.jobs import TooManyJobsError
from placewright.service.operations import Operation, used_file
from placewright.service.process import OUT, JobFolder
from placewright.service.store import new_id

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")

MOST = 4
"""Services that run at a time."""

ANSWER_S = 30.0

READY_S = 2.0
"""For an answer about its state."""

OPTIONS = ("server", "cluster", "policy", "max_waiting", "max_batch", "deadline", "drain")
"""Of ``requests serve``, those that a request may give."""

TOKEN = "PLACEWRIGHT_TOKEN"


class ServiceState(StrEnum):
    """Of a request service."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    LOST = "lost"


LIVE = (ServiceState.STARTING, ServiceState.RUNNING, ServiceState.DRAINING)


@dataclass(frozen=True, slots=True)
class VariantFile:
    """A variant: the name of a stored ONNX file, and its accuracy on data of one's own."""

    name: str
    file: str
    accuracy: float


@dataclass(frozen=True, slots=True)
class RequestService:
    """What was asked for.

    `family`: what clients call the model. `variants`: empty for the digits, which are trained.
    `drained_s`: when it was asked to finish.
    """

    id: str
    name: str
    family: str
    variants: Sequence[VariantFile]
    options: Mapping[str, Any]
    owner: str
    created_s: float
    drained_s: float | None = None


@dataclass(slots=True)
class FoundService:
    """A service, and the folder and process of it."""

    asked: RequestService
    folder: JobFolder
    port: int | None = None
    token: str = field(default="", repr=False)


def serving_operation(operations: Iterable[Operation]) -> Operation:
    """``requests serve`` with `OPTIONS`, of all operations."""
    found = next(each for each in operations if each.path == ("requests", "serve"))
    return replace(found, options=tuple(each for each in found.options if each.name in OPTIONS))


class Services:
    """All request services.

    Parameters
    ----------
    operation
        See `serving_operation`.
    """

    def __init__(self, folder: Path, files: FileStore, operation: Operation) -> None:
        self.operation = operation
        self._folder, self._files = folder, files
        self._found: dict[str, FoundService] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*/service.json")):
            with suppress(ValueError, TypeError, OSError):
                asked = _read(path)
                self._found[asked.name] = FoundService(asked, JobFolder(path.parent))

    def launch(self) -> None:
        """Start those that were accepted when the last service ended, and had no process yet."""
        for found in [*self._found.values()]:
            with self._lock:  # requests may start others meanwhile
                if not found.folder.progress.exists() and found.asked.drained_s is None:
                    self._start(found)

    def names(self) -> list[str]:
        """The newest first."""
        every = sorted(self._found.values(), key=lambda found: found.asked.id, reverse=True)
        return [found.asked.name for found in every]

    def find(self, name: str) -> FoundService:
        """The service of this name; `UnknownNameError` offers the nearest."""
        if name not in self._found:
            raise UnknownNameError("service", name, self._found)
        return self._found[name]

    def create(
        self,
        name: str,
        family: str,
        variants: Sequence[VariantFile],
        options: Mapping[str, Any],
        owner: str,
    ) -> FoundService:
        """Accept a service, and start it.

        Raises
        ------
        InputError
            Its name is taken, or an option names what it may not.
        TooManyJobsError
            So many run already.
        """
        asked = RequestService(
            new_id(), name, family, tuple(variants), dict(options), owner, time.time()
        )
        self._used_files(asked)
        with self._lock:
            if name in self._found:
                hint = "give another name, or delete that one"
                raise InputError("there is a service of this name", where=name, hint=hint)
            self._refuse_too_many()
            found = FoundService(asked, JobFolder(self._folder / asked.id))
            found.folder.make()
            _write(found)
            self._found[name] = found
            self._start(found)
        return found

    def start_again(self, name: str) -> None:
        """Start one whose process has ended, with the same options."""
        with self._lock:
            found = self.find(name)
            if self.state(found) in LIVE:
                raise InputError("it runs already", where=f"service {name}", hint="drain it first")
            self._refuse_too_many()
            asked = replace(found.asked, drained_s=None)
            # With a new folder object: the old one keeps the process that has ended.
            found = self._found[name] = FoundService(asked, JobFolder(found.folder.path))
            _write(found)
            self._start(found)

    def drain(self, name: str) -> None:
        """Ask it to finish what it has read, and to end."""
        found = self.find(name)
        if found.asked.drained_s is None:
            found.asked = replace(found.asked, drained_s=time.time())
            _write(found)
        pid = found.folder.process()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def delete(self, name: str) -> None:
        """Remove one that has ended, with its log."""
        with self._lock:
            found = self.find(name)
            if self.state(found) in LIVE:
                raise InputError("it runs", where=f"service {name}", hint="drain it first")
            del self._found[name]
            rmtree(found.folder.path, ignore_errors=True)

    def state(self, found: FoundService) -> ServiceState:
        """What it does now."""
        if found.folder.process() is not None:
            if found.asked.drained_s is not None:
                return ServiceState.DRAINING
            return ServiceState.RUNNING if self._port(found) else ServiceState.STARTING
        ending = found.folder.ending()
        if found.asked.drained_s is not None or (ending is not None and ending.exit_code == 0):
            return ServiceState.DRAINED
        return ServiceState.LOST if ending is None else ServiceState.FAILED

    def error(self, found: FoundService) -> dict[str, str] | None:
        """Why it has failed, in four parts."""
        ending = found.folder.ending()
        if self.state(found) is not ServiceState.FAILED or ending is None:
            return None
        what = f"its process ended with exit code {ending.exit_code}"
        return ending.error or {"what": what, "where": "", "by": "", "next": "look at its log"}

    def ask(
        self,
        found: FoundService,
        method: str,
        path: str,
        body: bytes | None = None,
        wait_s: float = ANSWER_S,
    ) -> tuple[int, Any]:
        """Status and JSON of an answer of its server.

        Raises `RunError`: there is none.
        """
        port = self._port(found) if found.folder.process() is not None else None
        where = f"service {found.asked.name}"
        if port is None:
            raise RunError("no server is there", where=where, by=self.state(found), hint="start it")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=wait_s)
        try:
            headers = {"authorization": f"Bearer {self._token(found)}"}
            headers |= {"content-type": "application/json"} if body and body[:1] == b"{" else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RunError("its server does not answer", where=where, by=str(error)) from None
        finally:
            connection.close()

    def _start(self, found: FoundService) -> None:
        """Start its process; what it names is copied beside it first."""
        asked, folder = found.asked, found.folder
        try:
            folder.make()
            self._files.copy(self._used_files(asked), folder.work)
            family = self._write_family(asked, folder.work)
        except PlacewrightError as error:
            self._refused(folder, error)
            return
        words = self.operation.arguments(asked.options, OUT)
        own = ["--family", family, "--port", "0", "--log", f"{OUT}/log.jsonl", "-f", "json"]
        arguments = [*self.operation.path, *own, "--log-format", "text", *words[2:]]
        folder.begin_attempt(1)
        found.token, found.port = secrets.token_urlsafe(32), None
        folder.start(arguments, {TOKEN: found.token})

    def _refused(self, folder: JobFolder, error: PlacewrightError) -> None:
        """Record why no process was started."""
        hint = error.hint or error.otherwise
        four = {"what": error.what, "where": error.where, "by": error.by, "next": hint}
        with open(folder.progress, "a", encoding="utf-8") as file:
            file.write(json.dumps({"exit_code": error.exit_code, "error": four}) + "\n")

    def _used_files(self, asked: RequestService) -> list[str]:
        """Stored files that it names; `InputError` where one may not stand."""
        named = [
            used_file(option, text, self._files, ())
            for option, text in self.operation.texts(asked.options)
        ]
        for each in asked.variants:
            if not each.file.endswith(".onnx"):
                hint = "give the name of an ONNX file that was uploaded"
                raise InputError("is no ONNX file", where=f"variant {each.name}", hint=hint)
            named.append(self._files.find(each.file).name)
        return [name for name in named if name is not None]

    def _write_family(self, asked: RequestService, folder: Path) -> str:
        """Write the family's file beside its models; its name on the command line."""
        if not asked.variants:
            return "digits"
        entries = {v.name: {"file": v.file, "accuracy": v.accuracy} for v in asked.variants}
        name = f"family-{asked.id}.yaml"  # JSON is YAML; no stored file is called so
        write_file(folder / name, json.dumps({"name": asked.family, "variants": entries}))
        return name

    def _refuse_too_many(self) -> None:
        live = [name for name, each in self._found.items() if self.state(each) in LIVE]
        if len(live) >= MOST:
            by = f"{', '.join(live)}; at most {MOST}"
            raise TooManyJobsError("too many services run", by=by, hint="drain one")

    def _port(self, found: FoundService) -> int | None:
        """Where its server listens, once it has said so."""
        if found.port is None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                url = json.loads(found.folder.table.read_bytes())["url"]
                found.port = int(url.rpartition(":")[2])
        return found.port

    def _token(self, found: FoundService) -> str:
        """That of its server: known since it was started, or read from its process."""
        pid = found.folder.process()
        if not found.token and pid is not None:
            with suppress(OSError, StopIteration):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                start = f"{TOKEN}=".encode()
                found.token = next(w for w in words if w.startswith(start))[len(start) :].decode()
        return found.token


def _read(path: Path) -> RequestService:
    data = json.loads(path.read_bytes())
    data["variants"] = tuple(VariantFile(**each) for each in data["variants"])
    return RequestService(**data)


def _write(found: FoundService) -> None:
    """Keep what was asked for; at any time a whole file is there."""
    write_file(found.folder.path / "service.json", json.dumps(asdict(found.asked)))
