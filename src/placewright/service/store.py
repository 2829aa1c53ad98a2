"""The service's tables: stored files, jobs, tokens, and the audit log.

They are made and changed by the migrations in `migrations`. The texts of files and what jobs write
are in the service's folder; a table has no path, and a path on the disk no name of a request.

A token is 256 random bits, of which only the hash is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Engine,
    ExceptionContext,
    ForeignKey,
    Index,
    String,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from placewright.errors import InputError, RunError, check_known

MIGRATIONS = Path(__file__).with_name("migrations")

VERSION = "1"
"""Of the tables: the newest of the migrations."""

FIRST = "operator"
"""Name of the token that is made where one is needed and there is none."""

LOCK = 8_400_000_001
"""Of PostgreSQL: held by the service that has the database."""


class JobState(StrEnum):
    """Of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


SERVED = "requests.serve"
"""Operation of request services: jobs that lists and counts of jobs leave out."""

GOING = (JobState.QUEUED, JobState.RUNNING)
ENDED = tuple(state for state in JobState if state not in GOING)


def new_id() -> str:
    """An identifier that nobody can guess; later ones are larger, so that lists are in order."""
    return f"{time.time_ns() // 1000:013x}{secrets.token_hex(6)}"


class Table(DeclarativeBase):
    """Base of all tables."""


class Job(Table):
    """An operation that was asked for, and what became of it.

    `attempts`: how often a process was started for it. `retry_of`: the job whose options it has.
    """

    __tablename__ = "jobs"
    __table_args__ = (Index("jobs_by_state", "state", "id"), Index("jobs_by_owner", "owner", "id"))

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    operation: Mapped[str]
    options: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(default=JobState.QUEUED)
    owner: Mapped[str] = mapped_column(default="")
    created_s: Mapped[float] = mapped_column(default=time.time)
    started_s: Mapped[float | None]
    ended_s: Mapped[float | None]
    cancelled_s: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=0)
    exit_code: Mapped[int | None]
    error: Mapped[dict[str, str] | None] = mapped_column(JSON)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    retry_of: Mapped[str | None]


LISTED = Job.operation != SERVED


class StoredFile(Table):
    """A file that requests may name: an upload, or what a job has written.

    `kind`: of Placewright's documents, empty for others. `output`: its name in the job's folder.
    """

    __tablename__ = "files"
    __table_args__ = (Index("files_by_kind", "kind", "id"), Index("files_by_job", "job"))

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    created_s: Mapped[float] = mapped_column(default=time.time)
    owner: Mapped[str] = mapped_column(default="")
    job: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    output: Mapped[str | None]


Row = TypeVar("Row", Job, StoredFile)


class Rows(list[Row]):
    """Rows, the newest first. `next`: the `before` of those after them, if there are any."""

    next: str | None = None


ALL = 1_000_000
"""More rows than there are."""


class Token(Table):
    """A secret that lets its holder in; only its hash is kept."""

    __tablename__ = "tokens"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_s: Mapped[float] = mapped_column(default=time.time)


class Audit(Table):
    """Something that was changed or refused, and by whom."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    time_s: Mapped[float] = mapped_column(default=time.time)
    owner: Mapped[str]
    action: Mapped[str]
    what: Mapped[str]


class Version(Table):
    """Of the tables, as Alembic keeps it."""

    __tablename__ = "alembic_version"

    version_num: Mapped[str] = mapped_column(String(32), primary_key=True)


def sqlite_url(file: Path) -> str:
    """The URL of a database in a file."""
    return f"sqlite:///{file.resolve()}"


class Store:
    """The database.

    `url`: as SQLAlchemy takes it. `session`: makes a session of one transaction.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self.session = sessionmaker(self.engine, expire_on_commit=False).begin
        self._lock: Connection | None = None
        self._changing = threading.Lock()
        # Only this process changes jobs: counts hold until the next change, by its number.
        self._changes, self._counts = 0, (-1, dict[str, int]())

    def migrate(self) -> None:
        """Make the tables, or bring those of an earlier version up to date.

        Raises `DatabaseError`: it is none of ours, or of a version that is not known here.
        """
        found = self._version()
        if found is None:  # Alembic takes a while to load
            Table.metadata.create_all(self.engine)
            with self.session() as session:
                session.add(Version(version_num=VERSION))
        elif found != VERSION:
            self._upgrade()

    def _upgrade(self) -> None:
        from alembic import command
        from alembic.config import Config
        from alembic.util.exc import CommandError

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        try:
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:  # of a later version
            raise database_error(self.url, error) from None

    def lock(self) -> None:
        """Keep the database for this service alone, until it ends however it ends.

        SQLite's file is in a folder that is locked already.
        Raises `InputError`: another service has it.
        """
        if self.engine.dialect.name != "postgresql":
            return
        self._lock = self.engine.connect()
        if not self._lock.scalar(select(func.pg_try_advisory_lock(LOCK))):
            raise InputError(
                "another service has this database",
                where="--database",
                hint="end it, or name another database",
            )
        self._lock.commit()  # the session has the lock, not the transaction

    def _version(self) -> str | None:
        """Of the tables that are there."""
        with self.engine.connect() as connection:
            there = inspect(connection).has_table(Version.__tablename__)
            return connection.scalar(select(Version.version_num)) if there else None

    def close(self) -> None:
        """Close all connections."""
        if self._lock is not None:
            self._lock.close()
        self.engine.dispose()

    def _changed(self) -> None:
        """Jobs were changed."""
        with self._changing:
            self._changes += 1

    def audit(self, owner: str, action: str, what: str = "") -> None:
        """Record an action."""
        what = what[:500].replace("\0", "\ufffd")  # no text of PostgreSQL's has one
        with self.session() as session:
            session.add(Audit(owner=owner, action=action, what=what))

    def job(self, id: str) -> Job | None:
        """The job of this identifier."""
        with self.session() as session:
            return session.get(Job, id)

    def add_job(self, job: Job) -> None:
        """Keep an accepted job."""
        with self.session() as session:
            session.add(job)
        self._changed()

    def update_job(self, id: str, *, only: JobState | None = None, **changes: Any) -> Job | None:
        """Change a job that has not ended; ``None`` where it has, so that nothing ends twice.

        `only`: the state in which it must be.
        """
        states = GOING if only is None else (only,)
        going = (Job.id == id, Job.state.in_(states))
        with self.session() as session:
            changed = session.execute(update(Job).where(*going).values(**changes).returning(Job.id))
            found = session.get(Job, id) if changed.scalar() is not None else None
        self._changed()
        return found

    def jobs(
        self,
        *,
        before: str | None = None,
        states: Sequence[str] = (),
        operation: str | None = None,
        most: int = 50,
    ) -> Rows[Job]:
        """The newest jobs, those older than `before` where that is given."""
        wanted: list[Any] = [Job.state.in_(states)] if states else []
        wanted += [LISTED if operation is None else Job.operation == operation]
        return self._newest(Job, wanted, before, most)

    def open_jobs(self, owner: str) -> int:
        """How many jobs of an owner have not ended."""
        query = select(func.count()).where(Job.state.in_(GOING), Job.owner == owner, LISTED)
        with self.session() as session:
            return session.scalar(query) or 0

    def counts(self) -> Mapping[str, int]:
        """Number of jobs by state."""
        changes = self._changes
        counted, found = self._counts
        if counted != changes:
            query = select(Job.state, func.count()).where(LISTED).group_by(Job.state)
            with self.session() as session:
                found = {row[0]: row[1] for row in session.execute(query)}
            self._counts = changes, found
        return found

    def files(
        self,
        *,
        before: str | None = None,
        kinds: Sequence[str] = (),
        job: str | None = None,
        most: int = 50,
    ) -> Rows[StoredFile]:
        """The newest stored files, those older than `before` where that is given."""
        wanted: list[Any] = [StoredFile.kind.in_(kinds)] if kinds else []
        wanted += [] if job is None else [StoredFile.job == job]
        return self._newest(StoredFile, wanted, before, most)

    def _newest(
        self, table: type[Row], wanted: Sequence[Any], before: str | None, most: int
    ) -> Rows[Row]:
        older = () if before is None else (table.id < before,)
        query = select(table).where(*wanted, *older).order_by(table.id.desc()).limit(most + 1)
        with self.session() as session:
            found = session.scalars(query).all()
        rows = Rows(found[:most])
        rows.next = rows[-1].id if len(found) > most else None
        return rows

    def file(self, name: str) -> StoredFile | None:
        """The stored file of this name."""
        with self.session() as session:
            return session.scalar(select(StoredFile).where(StoredFile.name == name))

    def names(self, stem: str = "", most: int = 500) -> list[str]:
        """Names of stored files that begin so, the newest first."""
        query = select(StoredFile.name).order_by(StoredFile.id.desc()).limit(most)
        within = (StoredFile.name >= stem, StoredFile.name < f"{stem}\x7f")
        with self.session() as session:
            return list(session.scalars(query.where(*within) if stem else query))

    def delete_job(self, id: str) -> None:
        """Remove a job that has ended, and what requests may name of it."""
        with self.session() as session:
            session.execute(delete(StoredFile).where(StoredFile.job == id))
            session.execute(delete(Job).where(Job.id == id, Job.state.in_(ENDED)))
        self._changed()

    def used_bytes(self) -> int:
        """Of all stored files."""
        with self.session() as session:
            return session.scalar(select(func.sum(StoredFile.bytes))) or 0


class DatabaseError(RunError):
    """The database does not do what it should: its disk is full, it is damaged, or none of ours."""


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
        event.listen(engine, "handle_error", _refused, retval=True)
        return engine
    engine = create_engine(url, connect_args={"timeout": 30})
    event.listen(engine, "handle_error", _refused, retval=True)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        """Readers wait for no writer; what is committed is on the disk."""
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    return engine


@event.listens_for(Engine, "connect")
def _lend_time(connection: Any, record: object) -> None:
    """DBOS' tables under Python 3.12 tell the time by what SQLite has from 3.42 on."""
    if isinstance(connection, sqlite3.Connection) and sqlite3.sqlite_version_info < (3, 42):
        connection.create_function("unixepoch", 1, lambda modifier: time.time())


def _refused(context: ExceptionContext) -> InputError | DatabaseError | None:
    """What the database refused, in our words; ``None``: another error, which stays what it is."""
    error = context.sqlalchemy_exception
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return None
    if isinstance(error, DataError):
        by = str(error.orig).splitlines()[0][:200]
        return InputError("the database takes no such value", by=by, hint="give another one")
    return database_error("" if context.engine is None else str(context.engine.url), error.orig)


def database_error(url: str, error: BaseException | None) -> DatabaseError:
    """What the driver of a database has raised, in our words."""
    lite = url.startswith("sqlite")
    return DatabaseError(
        f"the database cannot be used: {str(error).splitlines()[0]:.200}",
        where=url.partition("///")[2] if lite else "--database",
        hint="free space there, see that this user may write it, or name another folder"
        if lite
        else "see that its server is up and has space, or name another database",
    )


class Tokens:
    """The tokens of a service."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.session() as session:
            self._names = {row.sha256: row.name for row in session.scalars(select(Token))}

    def change(self, new: str | None, end: str | None) -> str:
        """End a token and make one; the token that is made, empty where none is.

        Raises `UnknownNameError`: there is none of the name that is to end.
        """
        if end is not None:
            check_known("token", end, self._names.values(), where="--end-token")
            self.end(end)
        name = new or ("" if self._names else FIRST)
        return self.make(name) if name else ""

    def make(self, name: str) -> str:
        """A new token, which nobody can look up later; an earlier one of this name ends."""
        made = secrets.token_urlsafe(32)
        self.end(name)
        with self._store.session() as session:
            session.add(Token(sha256=_hash(made), name=name))
        self._names[_hash(made)] = name
        return made

    def end(self, name: str) -> None:
        """Let nobody in any more by the token of this name."""
        with self._store.session() as session:
            session.execute(delete(Token).where(Token.name == name))
        self._names = {sha256: owner for sha256, owner in self._names.items() if owner != name}

    def owner(self, token: str) -> str | None:
        """The name of the holder of a token, ``None`` where there is no such token."""
        given, found = _hash(token), None
        for known, name in self._names.items():  # each is compared, however early one is equal
            if hmac.compare_digest(known, given):
                found = name
        return found


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
