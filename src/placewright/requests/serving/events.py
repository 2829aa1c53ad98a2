"""Structured log of a server: starts, losses, changes, refusals under overload, the end.

{"event": "server-lost", "time_s": 1764.2, "server": "b", "reason": "its process was killed"}
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Literal

LOGGER = logging.getLogger("placewright.requests")


def event(kind: str, **fields: Any) -> None:
    """Log an event; who serves from Python attaches handlers of their own."""
    LOGGER.info(kind, extra={"fields": fields})


class EventFormatter(logging.Formatter):
    """One line per event: a JSON object, or words for people.

    `style`: ``json`` or ``text``.
    """

    def __init__(self, style: Literal["text", "json"]) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        kind = record.getMessage()
        if self._json:
            return json.dumps({"event": kind, "time_s": round(record.created, 3), **fields})
        words = [f"{name}={value}" for name, value in fields.items()]
        return " ".join([self.formatTime(record), kind, *words])


def log_events(style: Literal["text", "json"]) -> None:
    """Write events to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(style))
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
