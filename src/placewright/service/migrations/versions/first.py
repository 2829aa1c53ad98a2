"""The first tables, which `Store.migrate` makes; those of later versions are changed from here."""

from __future__ import annotations

revision = "1"
down_revision = None


def upgrade() -> None:
    """Nothing is older."""
