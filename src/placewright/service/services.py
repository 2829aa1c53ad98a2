"""Request services: jobs of ``requests serve``, which run until they are drained.

A service is a job in a queue of its own, left out of all lists of jobs and known by its name. Its
process is one of this machine whatever the engine, and listens on a free port of 127.0.0.1, which
its table names. Its token is in the environment of that process alone, and is found there by
whichever service comes later. Nothing here talks to another address.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from placewright.errors import InputError, RunError, UnknownNameError
from placewright.io.stored import write_file
from placewright.requests.serving.measured import ServerClient
from placewright.service.jobs import SERVICES_AT_ONCE, Jobs, TooManyJobsError
from placewright.service.operations import BESIDE, Operation, Option
from placewright.service.process import JobFolder
from placewright.service.store import ALL, SERVED, Job, JobState

OPTIONS = (
    *("server", "cluster", "policy", "max_waiting", "max_batch", "deadline", "drain"),
    *("context", "users"),
)
"""Of ``requests serve``, those that a request may give."""

TOKEN = "PLACEWRIGHT_TOKEN"

FAMILY = "_family.yaml"
"""The file of a service's variants; no stored file is called so."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,39}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class StrictBody(BaseModel):
    """A body without other keys."""

    model_config = ConfigDict(extra="forbid")


class VariantBody(StrictBody):
    """A variant: a stored ONNX file, and its accuracy on data that it was not trained on."""

    name: Label
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,94}\.onnx$")]
    accuracy: Share


class ServiceState(StrEnum):
    """Of a request service."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    LOST = "lost"


LIVE = (ServiceState.STARTING, ServiceState.RUNNING, ServiceState.DRAINING)

ENDINGS = {
    JobState.FAILED: ServiceState.FAILED,
    JobState.INFEASIBLE: ServiceState.FAILED,
    JobState.LOST: ServiceState.LOST,
}
"""Of a job, and what they are of a service; every other one is that it was drained."""


@dataclass(frozen=True)
class ServeOperation(Operation):
    """``requests serve`` with `OPTIONS`, for a service that has a name and what it serves.

    Its options in a request are ``name``, ``family`` and ``variants``, or ``language_model``, and
    ``options``.

    Attributes
    ----------
    folders
        Of the language models that requests may name, by name.
    """

    folders: Mapping[str, Path] = field(default_factory=dict)

    @staticmethod
    def among(
        operations: Iterable[Operation], folders: Iterable[Path] = ()
    ) -> dict[str, Operation]:
        """It, by name, as it is made of all verbs of the command line."""
        verb = next(each for each in operations if each.name == SERVED)
        kept = tuple(each for each in verb.options if each.name in OPTIONS)
        named = {each.resolve().name: each.resolve() for each in folders}
        return {SERVED: ServeOperation(verb.path, verb.summary, verb.text, kept, named)}

    @cached_property
    def model(self) -> type[BaseModel]:
        """What a request for a service is validated by."""
        options = super().model
        digits = "Empty: the digits, which are trained."
        return create_model(
            "ServiceBody",
            __base__=StrictBody,
            name=(Name, ...),
            family=(Label, Field("digits", description="What clients call the model.")),
            variants=(
                Annotated[list[VariantBody], Field(max_length=32)],
                Field(default_factory=list, description=digits),
            ),
            language_model=(
                Annotated[str, Field(max_length=100)],
                Field("", description="In place of variants: one that the operator allows."),
            ),
            options=(options, Field(default_factory=options)),
        )

    def texts(self, given: Mapping[str, Any]) -> Iterator[tuple[Option, str]]:
        """Of its options, and the files of its variants."""
        yield from super().texts(given["options"])
        for each in given["variants"]:
            yield replace(BESIDE, name=f"variant {each['name']}"), each["file"]

    def command(
        self, given: Mapping[str, Any], folder: Path, outputs: str
    ) -> tuple[list[str], dict[str, str]]:
        """Write the family's file beside its models; the arguments, and a new token."""
        if given.get("language_model"):
            own = [f"--language-model={self.folders[given['language_model']]}"]
        else:
            family = self._family(given, folder)
            own = [f"--family={family}", f"--log={outputs}/log.jsonl"]
        own += ["--port=0", "--format=json", "--log-format=text"]
        chosen = self.arguments(given["options"], outputs)[len(self.path) :]
        return [*self.path, *own, *chosen], {TOKEN: secrets.token_urlsafe(32)}

    def _family(self, given: Mapping[str, Any], folder: Path) -> str:
        """What is served: the digits, or the file of its variants, which is written."""
        if not given["variants"]:
            return "digits"
        keys = ("file", "accuracy")
        entries = {v["name"]: {key: v[key] for key in keys} for v in given["variants"]}
        text = json.dumps({"name": given["family"], "variants": entries})  # JSON is YAML
        write_file(folder / FAMILY, text)
        return FAMILY

    def ending_s(self, given: Mapping[str, Any]) -> float:
        """As long as it may drain."""
        defaults = {each.name: each.default for each in self.options}
        return float((defaults | given["options"])["drain"])


class Services:
    """All request services, by name; `jobs` has them, among others."""

    def __init__(self, jobs: Jobs) -> None:
        operation = jobs.operations[SERVED]
        assert isinstance(operation, ServeOperation)
        self.operation = operation
        self._jobs, self._lock = jobs, threading.Lock()
        newest = self.all()
        for job in self._every():
            if newest[job.options["name"]].id != job.id:
                jobs.delete(job.id)  # it ended when it had been started again

    def all(self) -> dict[str, Job]:
        """By name, the newest first."""
        found: dict[str, Job] = {}
        for job in self._every():
            found.setdefault(job.options["name"], job)
        return found

    def _every(self) -> list[Job]:
        return self._jobs.store.jobs(operation=SERVED, most=ALL)

    def find(self, name: str) -> Job:
        """The service of this name; `UnknownNameError` offers the nearest."""
        known = self.all()
        if name not in known:
            raise UnknownNameError("service", name, known)
        return known[name]

    def create(self, options: Mapping[str, Any], owner: str) -> Job:
        """Accept a service, which is then started.

        Raises
        ------
        InputError
            Its name is taken, it has no variants, or an option names what it may not.
        TooManyJobsError
            So many run already.
        """
        name, family = options["name"], options["family"]
        language, known = options.get("language_model"), self.operation.folders
        if language and language not in known:
            raise UnknownNameError("language model", language, known, where="language_model")
        if language and options["variants"]:
            hint = "leave one of them out"
            raise InputError("has variants and a language model", where=name, hint=hint)
        if not options["variants"] and family != "digits":
            raise InputError("has no variants", where=family, hint="give ONNX files")
        with self._lock:
            if name in self.all():
                hint = "give another name, or delete that one"
                raise InputError("there is a service of this name", where=name, hint=hint)
            return self._submit(options, owner)

    def start_again(self, name: str, owner: str) -> Job:
        """Start one that has ended, with the same options; errors as `create`."""
        with self._lock:
            ended = self._ended(name)
            started = self._submit(ended.options, owner)
            self._jobs.delete(ended.id)
            return started

    def drain(self, name: str) -> Job:
        """Ask it to finish what it has read, and to end."""
        self._jobs.cancel(self.find(name).id)
        return self.find(name)

    def delete(self, name: str) -> None:
        """Remove one that has ended, with its log."""
        with self._lock:
            self._jobs.delete(self._ended(name).id)

    def state(self, job: Job) -> ServiceState:
        """What it does now."""
        if job.state == JobState.QUEUED:
            return ServiceState.STARTING
        if job.state != JobState.RUNNING:
            return ENDINGS.get(JobState(job.state), ServiceState.DRAINED)
        if job.cancelled_s is not None:
            return ServiceState.DRAINING
        return ServiceState.RUNNING if self.url(job) else ServiceState.STARTING

    def folder(self, job: Job) -> JobFolder:
        """Of its process."""
        return self._jobs.service_folder(job.id)

    def url(self, job: Job) -> str:
        """Where its server listens; empty until it has said so."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(self.folder(job).table.read_bytes())["url"])
        return ""

    def server(self, job: Job) -> ServerClient:
        """What asks the server of a service.

        Raises `RunError`: there is none.
        """
        where, url = f"service {job.options['name']}", self.url(job)
        token = self.folder(job).variable(TOKEN)
        if not url or token is None:
            by = self.state(job)
            raise RunError("no server is there", where=where, by=by, hint="start it")
        return ServerClient(url, token, where)

    def _submit(self, options: Mapping[str, Any], owner: str) -> Job:
        """Hand it to the jobs, unless so many run already."""
        live = [name for name, job in self.all().items() if self.state(job) in LIVE]
        if len(live) >= SERVICES_AT_ONCE:
            by = f"{', '.join(live)}; at most {SERVICES_AT_ONCE}"
            raise TooManyJobsError("too many services run", by=by, hint="drain one")
        return self._jobs.submit(self.operation, options, owner)

    def _ended(self, name: str) -> Job:
        """The service of this name; `InputError`: it has not ended."""
        job = self.find(name)
        if self.state(job) in LIVE:
            raise InputError("it runs", where=f"service {name}", hint="drain it first")
        return job
