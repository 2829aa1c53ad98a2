"""A running server from outside: what it has measured as a problem, its model, its log."""

from __future__ import annotations

import json
import os
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel, Field

from placewright.errors import InputError, RunError, UnknownNameError
from placewright.io.output import end_of, json_lines
from placewright.web.listening import trusting

if TYPE_CHECKING:
    from placewright.requests.problem import RequestProblem

ANSWER_S, LONGEST_S = 10.0, 30.0
"""For its numbers, and for anything else."""

LONGEST_TEXT_S = 600.0
"""Between two pieces of a text, its turn in the queue included."""

REQUESTS, MOST_REQUESTS, DEADLINES = 5000, 20_000, 4
"""About so many are simulated, within a minute; up to so many where the servers could answer more
in so many deadlines, since a load that is carried for a moment may be too high for long."""

TAIL_BYTES = 1 << 18
"""Of the log of requests, its end."""

LEARNED_BYTES, LEARNED = 16 << 20, 20_000
"""Of the log, and of its requests, that a policy is chosen for."""

LEAST_LEARNED = 1000
"""Requests of a log from which on a server chooses its policy for them unasked."""

LULL_S = 60.0
"""Longest time without a request that is expected again: others are of a server that was down."""

LATEST, COUNTED = 12, 500
"""Requests that are listed, and of which percentiles are."""

MOST_BYTES = 16 << 20
"""Of an answer."""

Status = Mapping[str, Any]
"""What a server answers at ``/status.json``."""


class Called(BaseModel):
    """What clients call a family, and the sizes of its open dimensions."""

    name: str
    version: int
    sizes: dict[str, int]


class Measured(BaseModel):
    """What is read of it: accuracy by family and variant, seconds by server, variant and rows."""

    families: dict[str, Called]
    models: dict[str, dict[str, float]] = Field(min_length=1)
    batch_latency_s: dict[str, dict[str, list[float | None]]] = Field(min_length=1)


def read_status(url: str, certificates: Path | None = None) -> Status:
    """Ask a server for its numbers; ``PLACEWRIGHT_TOKEN`` is sent where it is set.

    `certificates`: PEM file by which one that answers over TLS is checked, in place of the
    system's.

    Raises
    ------
    InputError
        `url` is no address of a server of `requests serve`, or there is no certificate in the file.
    RunError
        Nobody answers there, or somebody whose certificate is another.
    """
    if not url.startswith(("http://", "https://")):
        hint = "give what `requests serve` prints, http://127.0.0.1:8000"
        raise InputError("is no address of a server", where=f"{url:.100}", hint=hint)
    found: Status = read_json(url, "status.json", certificates)
    try:
        Measured.model_validate(found)
    except ValueError:
        raise _no_server(url) from None
    return found


def read_json(url: str, path: str, certificates: Path | None = None) -> Any:
    """What a server has at this path; as `read_status` otherwise."""
    token = os.environ.get("PLACEWRIGHT_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    tls = trusting(certificates) if url.startswith("https://") else None
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=ANSWER_S, context=tls) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except (OSError, HTTPException) as error:
        hint = "start it: placewright requests serve; PLACEWRIGHT_TOKEN is its token"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = "give the certificate that it was signed with: --ca-file FILE"
        raise RunError("no server answers", where=url, by=str(error)[:200], hint=hint) from None
    except ValueError:
        raise _no_server(url) from None


def _no_server(url: str) -> InputError:
    return InputError("is no server of `requests serve`", where=url, hint="check the address")


@dataclass(frozen=True, slots=True)
class ServerClient:
    """A server of this machine, which answers to its token.

    `where`: what errors call it.
    """

    url: str
    token: str = field(repr=False)
    where: str = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, wait_s: float = LONGEST_S
    ) -> tuple[int, Any]:
        """Status and JSON of an answer, which may be a refusal.

        Raises `RunError`: it does not answer.
        """
        with self._answered(method, path, body, wait_s) as answer:
            return answer.status, json.loads(answer.read())

    def accepted(
        self, method: str, path: str, body: bytes | None = None, *, wait_s: float = LONGEST_S
    ) -> Any:
        """The JSON of an answer; `InputError` where that is a refusal, `RunError` without one."""
        code, data = self.ask(method, path, body, wait_s=wait_s)
        if code != 200:
            hint = "see what its server can do"
            raise InputError(refusal_of(data), where=self.where, hint=hint)
        return data

    def forwarded(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, Iterator[bytes]]:
        """An answer, whatever it is, and its body line by line while it is made.

        Whoever stops to read closes the connection.

        Raises `RunError`: the server does not answer.
        """
        opened = ExitStack()
        answer = opened.enter_context(
            self._answered(method, path, body or None, LONGEST_TEXT_S, headers)
        )

        def pieces() -> Iterator[bytes]:
            with opened:
                yield from answer

        return answer, pieces()

    @contextmanager
    def _answered(
        self,
        method: str,
        path: str,
        body: bytes | None,
        wait_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=wait_s)
        own = {"content-type": "application/json"} if body and body[:1] == b"{" else {}
        own |= dict(headers or {}) | {"authorization": f"Bearer {self.token}"}
        try:
            connection.request(method, path, body, own)
            yield connection.getresponse()
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            by = str(error)[:200]
            raise RunError("its server does not answer", where=self.where, by=by) from None
        finally:
            connection.close()


def refusal_of(data: Any) -> str:
    """Why a server has refused a request, by its answer; empty where it has not."""
    error = data.get("error", "") if isinstance(data, dict) else ""
    return error if isinstance(error, str) else json.dumps(error)[:500]


def measured_problem(
    status: Status,
    name: str,
    family: str | None = None,
    *,
    deadline_s: float,
    min_accuracy: float = 0.0,
    rate: float | None = None,
) -> dict[str, Any]:
    """A problem file's data: measured latencies, and arrivals that are expected.

    Parameters
    ----------
    status
        See `read_status`.
    family
        Of several, the one that requests ask for.
    deadline_s, min_accuracy
        What each request needs.
    rate
        Requests per second; by default half of what the servers do by their fastest variants, a row
        at a time.

    Raises
    ------
    UnknownNameError
        There is no such family.
    InputError
        No server can run it.
    """
    families, latency = status["models"], status["batch_latency_s"]
    family = next(iter(families)) if family is None else family
    if family not in families:
        raise UnknownNameError("family", family, families)
    variants = families[family]
    rows = {server: _of_family(each, family, variants) for server, each in latency.items()}
    measured = [
        [(s, k / s) for row in each.values() for k, s in enumerate(row, 1) if s]
        for each in rows.values()
    ]
    fastest = [min(each)[0] for each in measured if each]
    most_per_s = sum(max(rate for _, rate in each) for each in measured if each)
    if not fastest:
        raise InputError("no server can run it", where=f"family {family}", hint="add a server")
    arrivals = {
        "family": family,
        "rate": rate or sum(1 / s for s in fastest) / 2,
        "deadline": deadline_s,
        "min_accuracy": min_accuracy,
    }
    accuracies = variants.items()
    count = min(MOST_REQUESTS, max(REQUESTS, DEADLINES * deadline_s * most_per_s))
    return {
        "schema_version": 1,
        "name": name,
        "variants": [{"name": v, "family": family, "accuracy": a} for v, a in accuracies],
        "servers": [{"name": server, "latency": each} for server, each in rows.items()],
        "duration": max(1.0, min(60.0, count / float(arrivals["rate"]))),
        "arrivals": [arrivals],
    }


def _of_family(rows: Mapping[str, Any], family: str, variants: Collection[str]) -> dict[str, Any]:
    """Latencies by variant; a server calls variants ``family/variant`` where it has several."""
    # Not by what stands before a slash: both names may have one.
    found = {v: rows.get(f"{family}/{v}", rows.get(v)) for v in variants}
    return {v: row for v, row in found.items() if row is not None}


def requests_of_log(log: Path, families: Collection[str] | None = None) -> RequestProblem | None:
    """The latest requests of a log with their arrivals and needs, as they may come again.

    A request of several rows is several of one row that come together, as policies have them.
    Servers and latencies of the problem mean nothing. `families`: requests of others are left out.
    ``None``: the log has no request, or there is no log.
    """
    from placewright.requests.problem import RequestProblem
    from placewright.requests.service import service_of
    from placewright.requests.stream import stream_of

    if not log.is_file():
        return None
    lines = [
        line
        for line in json_lines(end_of(log, LEARNED_BYTES))
        if "deadline_s" in line and (families is None or line["family"] in families)
    ]
    lines.sort(key=lambda line: line["started_s"] + line["arrival_s"])
    # Servers compute rows; a log of before has not said how many.
    lines = [line for line in lines[-LEARNED:] for _ in range(line.get("rows", 1))][-LEARNED:]
    if not lines:
        return None
    at_s = np.array([line["started_s"] + line["arrival_s"] for line in lines])
    gaps_s = np.minimum(np.diff(at_s, prepend=at_s[0]), LULL_S)
    arrival_s = np.cumsum(gaps_s)
    names = tuple(dict.fromkeys(line["family"] for line in lines))
    stream = stream_of(
        arrival_s,
        [line["deadline_s"] for line in lines],
        [names.index(line["family"]) for line in lines],
        min_accuracy=[line["min_accuracy"] for line in lines],
        time_sensitivity=[line.get("time_sensitivity", 0.5) for line in lines],
        accuracy_sensitivity=[line.get("accuracy_sensitivity", 0.5) for line in lines],
    )
    k = len(names)
    latency_s = np.broadcast_to([0.0, 1.0], (1, k, 2))
    service = service_of(
        ("any",), names, np.ones(k), latency_s, family_names=names, family=np.arange(k)
    )
    gap_s = float(arrival_s[-1]) / len(lines)
    return RequestProblem(service, stream, max(float(arrival_s[-1]) + gap_s, 1e-3), name=log.name)


def recent_requests(log: Path) -> dict[str, Any]:
    """Latest requests of a log, percentiles of latency, and what servers and variants answered."""
    lines = json_lines(end_of(log, TAIL_BYTES))[-COUNTED:]
    answered = [line for line in lines if line.get("status") == 200]
    taken = sorted(line.get("answered_s", line["end_s"]) - line["arrival_s"] for line in answered)
    served: dict[str, Counter[str]] = defaultdict(Counter)
    for line in answered:
        served[line["server"]][line["variant"]] += 1
    percentiles = {f"p{q}": taken[(len(taken) - 1) * q // 100] for q in (50, 95, 99) if taken}
    return {"latest": lines[: -LATEST - 1 : -1], "percentiles_s": percentiles, "served": served}
