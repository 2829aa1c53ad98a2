"""The tables, on SQLite and on PostgreSQL."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from shutil import copytree

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, select, text

from placewright.errors import InputError
from placewright.service import store as tables
from placewright.service.server import ServiceOptions
from placewright.service.store import (
    MIGRATIONS,
    DatabaseError,
    Job,
    JobState,
    Store,
    new_id,
    sqlite_url,
)
from placewright.web.client import Job as RunningJob
from tests.service.postgresql import postgresql, programs
from tests.service.serving import Serving


def test_migrations_lead_to_the_tables_that_the_code_describes(tmp_path: Path) -> None:
    """From those of version 1: names, types, keys, indices; the newest is what the code expects."""
    file, made = tmp_path / "old.sqlite", Store(sqlite_url(tmp_path / "new.sqlite"))
    with closing(sqlite3.connect(file)) as old:
        old.executescript(TABLES_1.read_text())
    migrated = Store(sqlite_url(file))
    for store in (migrated, made, made):
        store.migrate()
    assert _described(migrated.engine) == _described(made.engine)
    migrated.close()
    made.close()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == tables.VERSION


def test_an_earlier_version_is_migrated_with_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a migration like those to come."""
    made = Store(sqlite_url(tmp_path / "x.sqlite"))
    made.migrate()
    made.audit("anne", "start", "a job")
    copied = copytree(MIGRATIONS, tmp_path / "migrations")
    (copied / "versions" / "second.py").write_text(SECOND)
    monkeypatch.setattr(tables, "MIGRATIONS", copied)
    monkeypatch.setattr(tables, "VERSION", "2")
    made.migrate()
    with made.session() as session:
        rows = session.execute(text("SELECT owner, place FROM audit")).all()
        assert rows == [("anne", "here")]
        assert session.scalar(select(tables.Version.version_num)) == "2"
    made.close()


@pytest.mark.parametrize("url", ["", "x", "sqlite://", "mysql://a/b", "postgresql://[::1"])
def test_another_database_than_postgresql_is_refused(tmp_path: Path, url: str) -> None:
    """Also an SQLite file elsewhere, which two services could use at once."""
    with pytest.raises(InputError, match="is no address of a PostgreSQL database"):
        ServiceOptions(tmp_path, database=url)


def _used(store: Store) -> None:
    store.migrate()
    store.jobs()


def _version(number: str) -> str:
    table = "create table alembic_version(version_num)"
    return f"{table}; insert into alembic_version values('{number}')"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("", "not a database"),
        (_version("99"), "99"),
        (_version("1"), "no such table"),
        ("create table jobs(id)", "no such column"),
    ],
    ids=["damaged", "later", "without tables", "of others"],
)
def test_a_database_that_cannot_be_used_is_named(tmp_path: Path, script: str, says: str) -> None:
    """Damaged, of a later version, or somebody else's: its file, and what is wrong with it."""
    file = tmp_path / "service.sqlite"
    if script:
        with closing(sqlite3.connect(file)) as made:
            made.executescript(script)
    else:
        file.write_bytes(b"no database at all" * 100)
    store = Store(sqlite_url(file))
    with pytest.raises(DatabaseError, match=says) as raised:
        _used(store)
    assert raised.value.where == str(file)
    store.close()


TABLES_1 = Path(__file__).with_name("tables_1.sql")
"""Made by version 1 of the service."""

SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"


def upgrade():
    place = sa.Column("place", sa.String, nullable=False, server_default="here")
    with op.batch_alter_table("audit") as table:
        table.add_column(place)
"""


def _described(engine: object) -> dict[str, object]:
    found = inspect(engine)
    return {
        table: (
            {(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)},
            {(i["name"], tuple(i["column_names"])) for i in found.get_indexes(table)},
            found.get_pk_constraint(table)["constrained_columns"],
            [each["column_names"] for each in found.get_unique_constraints(table)],
            [
                (k["constrained_columns"], k["referred_table"])
                for k in found.get_foreign_keys(table)
            ],
        )
        for table in found.get_table_names()
    }


def test_sqlite_tells_the_time_as_tables_of_workflows_ask_for_it() -> None:
    """Under Python 3.12 and newer, whatever the version of SQLite."""
    with create_engine("sqlite://").connect() as connection:
        now = connection.exec_driver_sql("SELECT unixepoch('subsec')").scalar_one()
    assert abs(now - time.time()) < 60


def test_a_job_ends_once(tmp_path: Path) -> None:
    """What has ended is not changed any more, and lists are in order."""
    store = Store(sqlite_url(tmp_path / "x.sqlite"))
    store.migrate()
    ids = [new_id() for _ in range(5)]
    for id in ids:
        job = Job(id=id, operation="doctor", options={}, created_s=time.time(), attempts=0)
        job.state, job.owner = JobState.QUEUED, ""
        store.add_job(job)
    assert ids == sorted(ids)
    assert store.update_job(ids[0], state=JobState.CANCELLED) is not None
    assert store.update_job(ids[0], state=JobState.RUNNING) is None
    assert store.update_job(ids[1], only=JobState.RUNNING, attempts=1) is None
    newest = store.jobs(most=2, before=ids[3])
    assert ([job.id for job in newest], newest.next) == (ids[2:0:-1], ids[1])
    assert store.jobs(most=5).next is None
    assert store.counts() == {"queued": 4, "cancelled": 1}
    assert store.open_jobs("") == 4
    store.close()


@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")
def test_a_service_on_postgresql(tmp_path: Path) -> None:
    """Jobs run, and are found again by the next service; nothing is in SQLite."""
    with postgresql() as url:
        serving = Serving(tmp_path, "--database", url)
        client = serving.start()
        other = Store(url)
        with pytest.raises(InputError, match="another service has this database"):
            other.lock()
        other.close()
        for path, status in ("files?before=%00", 422), ("jobs?operation=%00", 422), ("%00", 403):
            headers = {"Host": "example.org" if status == 403 else "localhost"}
            assert serving.request("GET", f"/api/v1/{path}", headers)[0] == status
        first = client.run("devices", on="edge-duo")
        assert len(first.wait(time_limit_s=60)["devices"]) == 2
        second = client.run("devices", on="edge-quad")
        serving.end(signal.SIGTERM)
        client = serving.start()
        try:
            assert [each.id for each in client.jobs()] == [second.id, first.id]
            assert len(RunningJob(client, second.id).wait(time_limit_s=60)["devices"]) == 4
        finally:
            serving.end()
        assert not list((tmp_path / "service").glob("*.sqlite"))
