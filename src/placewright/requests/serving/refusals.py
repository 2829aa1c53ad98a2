"""`Refusal`: a request that is not answered, with the reason that its client reads.

Refused are requests that no server can answer, or not in time, and pages of other sites.

A browser sends requests to this machine for any page that its user visits:

    a page whose name leads here (DNS rebinding)     Host is that name              403
    a form or script of another origin               Origin, Sec-Fetch-Site         403
    the same, of a browser that says neither         text/plain, multipart bodies   415
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from placewright.requests.service import Service

if TYPE_CHECKING:
    from placewright.requests.serving.protocol import Needs


class Refusal(Exception):  # noqa: N818  (an answer to a client, not a failure of ours)
    """An HTTP answer other than 200.

    Parameters
    ----------
    status
        HTTP status.
    reason
        What the client reads under ``error``.
    code
        A word for metrics and logs: ``malformed``, ``queue-full``, ``deadline``, ...
    retry_after_s
        When trying again may help; ``None``: never.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        code: str = "malformed",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code
        self.retry_after_s = retry_after_s


def only(method: str, wanted: str) -> None:
    """Raise a `Refusal` of every other method; who may GET may ask for the HEAD alone."""
    if method != wanted and not (method == "HEAD" and wanted == "GET"):
        raise Refusal(405, f"use {wanted} here", code="method")


LONGEST_RETRY_S = 60.0


def refuse_impossible(service: Service, family: int, needs: Needs) -> None:
    """Refuse what no server could do if it had nothing else to do.

    Raises `Refusal`: 422: no variant is so accurate, or none so fast.
    """
    name = service.family_names[family]
    fastest_s = fastest_alone_s(service, family, needs.min_accuracy)
    if fastest_s == math.inf:
        best = service.accuracy[service.family == family].max()
        raise Refusal(
            422,
            f"no variant of {name!r} has min_accuracy {needs.min_accuracy:g}; "
            f"the best has {best:.4f}",
            code="accuracy",
        )
    if needs.deadline_s < fastest_s:
        raise Refusal(
            422,
            f"no server answers {name!r} at min_accuracy {needs.min_accuracy:g} within "
            f"{needs.deadline_s * 1e3:.3g} ms; the fastest takes {fastest_s * 1e3:.3g} ms",
            code="infeasible",
        )


def fastest_alone_s(service: Service, family: int, min_accuracy: float) -> float:
    """Seconds of a batch of one; ``inf`` where no variant is so accurate."""
    fits = (service.family == family) & (service.accuracy >= min_accuracy)
    return float(service.latency_s[:, fits, 1].min(initial=math.inf))


def backlog_s(service: Service, waiting: int) -> float:
    """Roughly what so many rows take at the best rate of each server, from 1 s to a minute."""
    sizes = np.arange(1, service.max_batch + 1)
    rates = (sizes / service.latency_s[:, :, 1:]).max(axis=(1, 2))
    return float(min(LONGEST_RETRY_S, max(1.0, waiting / max(float(rates.sum()), 1e-9))))


def queue_full(service: Service, waiting: int, rows: int, most: int) -> Refusal:
    """Too many rows wait."""
    why = f"{waiting} rows wait; {rows} more would be above {most}"
    return Refusal(429, why, code="queue-full", retry_after_s=backlog_s(service, waiting))


def overload(service: Service, waiting: int, why: str) -> Refusal:
    """A deadline that is missed, or would be, as so many rows wait."""
    return Refusal(503, why, code="deadline", retry_after_s=backlog_s(service, waiting))


def server_lost(attempts: int, reason: str) -> Refusal:
    """Every server that was to compute a row has failed."""
    why = f"{attempts} servers failed while they computed it; the last: {reason}"
    return Refusal(503, why, code="server-lost", retry_after_s=1.0)


def no_server() -> Refusal:
    """All servers are down."""
    return Refusal(503, "no server is up", code="no-server", retry_after_s=1.0)


def shutting_down() -> Refusal:
    """The end of the server."""
    return Refusal(503, "the server is shutting down", code="draining", retry_after_s=5.0)


LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine that no other can take."""

_FORMS = ("text/plain", "multipart/form-data")
"""Content types that a page may send to another origin without asking it first. The third one,
``application/x-www-form-urlencoded``, is what curl and urllib send when nothing else is said."""


def refuse_foreign(method: str, headers: Mapping[str, str], hosts: Collection[str]) -> None:
    """Refuse a request for another host, or one of another origin that would change something.

    `hosts`: names that clients may call this server by. A request without a host comes from no
    browser.
    Raises `Refusal`: 403 or 415.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and host_name(host) not in hosts:
        raise Refusal(
            403,
            f"this server is not {host!r:.100}; serve with --allow-host NAME if it is",
            code="forbidden",
        )
    if origin is not None and origin.partition("://")[2] != host:
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    if method in ("GET", "HEAD"):  # they change nothing, and browsers keep answers from the page
        return
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        raise Refusal(415, f"Content-Type {kind} is not taken: send application/json")


def host_name(host: str) -> str | None:
    """The name in a ``Host`` header, in lower case and without port; ``None`` where it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not close
        return None
