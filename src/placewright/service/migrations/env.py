"""Run by Alembic: bring the database of `Store.migrate` to the newest version."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
