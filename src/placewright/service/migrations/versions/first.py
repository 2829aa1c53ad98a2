"""The first tables: files, jobs, tokens, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("operation", sa.String, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("started_s", sa.Double),
        sa.Column("ended_s", sa.Double),
        sa.Column("cancelled_s", sa.Double),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("error", sa.JSON),
        sa.Column("summary", sa.JSON),
        sa.Column("retry_of", sa.String),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "id"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "id"])
    op.create_table(
        "files",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("job", sa.String, sa.ForeignKey("jobs.id")),
        sa.Column("output", sa.String),
    )
    op.create_index("files_by_kind", "files", ["kind", "id"])
    op.create_index("files_by_job", "files", ["job"])
    op.create_table(
        "tokens",
        sa.Column("sha256", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time_s", sa.Double, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Remove them, and everything in them."""
    for name in ("audit", "tokens", "files", "jobs"):
        op.drop_table(name)
