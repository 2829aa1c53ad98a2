"""`Refusal`: a request that is not answered, with the reason that its client reads.

A browser sends requests to this machine for any page that its user visits:

    a page whose name leads here (DNS rebinding)     Host is that name              403
    a form or script of another origin               Origin, Sec-Fetch-Site         403
    the same, of a browser that says neither         text/plain, multipart bodies   415
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from placewright.errors import InputError


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


LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine that no other can take."""

_FORMS = ("text/plain", "multipart/form-data")
"""Content types that a page may send to another origin without asking it first. The third one,
``application/x-www-form-urlencoded``, is what curl and urllib send when nothing else is said."""


def refuse_foreign(
    method: str,
    headers: Mapping[str, str],
    hosts: Collection[str],
    origins: Collection[str] = (),
) -> None:
    """Refuse a request for another host, or one of another origin that would change something.

    `hosts`: names that clients may call this server by. A request without a host comes from no
    browser.
    `origins`: whose pages are answered, besides this server's own.
    Raises `Refusal`: 403 or 415.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and host_name(host) not in hosts:
        raise Refusal(
            403,
            f"this server is not {host!r:.100}; serve with --allow-host NAME if it is",
            code="forbidden",
        )
    if origin in origins:
        return
    if origin is not None and origin.partition("://")[2] != host:
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    if method in ("GET", "HEAD"):  # they change nothing, and browsers keep answers from the page
        return
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        raise Refusal(415, f"Content-Type {kind} is not taken: send application/json")


def check_origin(origin: str) -> None:
    """Raise an `InputError` of what no browser sends as an ``Origin``, and of a wildcard."""
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
        raise InputError(
            "no origin that can be allowed",
            where=f"origin {origin!r:.100}",
            hint="name each one as browsers do: https://example.org, with a port if it has one",
        )


def host_name(host: str) -> str | None:
    """The name in a ``Host`` header, in lower case and without port; ``None`` where it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not close
        return None
