"""Which hosts the server answers for, and which pages in a browser may ask it.

A browser sends requests to this machine for any page that its user visits:

    a page whose name leads here (DNS rebinding)     Host is that name              403
    a form or script of another origin               Origin, Sec-Fetch-Site         403
    the same, of a browser that says neither         text/plain, multipart bodies   415
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from placewright.requests.serving.errors import Refusal

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
