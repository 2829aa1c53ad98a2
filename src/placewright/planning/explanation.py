"""Why a part of a plan is as it is, as facts and neighbouring plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from placewright.report.text import plain_table


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """What a part does in a plan and costs there, and what other plans would be worth.

    `facts`: name -> value with its unit.
    `changes`: what could be done instead -> value of that plan, or why it is not possible.
    """

    name: str
    facts: dict[str, str]
    changes: dict[str, str]
    value: str = "step time"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "facts": self.facts, "changes": self.changes}

    def __str__(self) -> str:
        parts = [f"{self.name}", plain_table(("", ""), list(self.facts.items()))]
        if self.changes:
            parts.append(plain_table(("instead", self.value), list(self.changes.items())))
        return "\n".join(parts)
