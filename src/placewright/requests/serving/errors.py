"""`Refusal`: a request that is not answered, with the reason that its client reads."""

from __future__ import annotations


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
