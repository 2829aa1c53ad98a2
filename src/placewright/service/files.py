"""Stored files: uploads, and what jobs have written, by names that requests may give."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from placewright.errors import InputError, PlacewrightError, UnknownNameError
from placewright.io.stored import sha256_of
from placewright.service.store import Store, StoredFile, new_id
from placewright.web.refusals import Refusal

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""A name that is one on every system, and no option of a command."""

ENDINGS = (
    *(".json", ".yaml", ".yml", ".gz", ".txt", ".csv", ".stg", ".dot"),
    *(".onnx", ".data", ".xml", ".bin", ".safetensors", ".npz"),
)
"""Files that are data. Graphs of TensorFlow and Keras files are not: they may hold programs."""

MOST_BYTES, ALL_BYTES = 256 << 20, 8 << 30
"""Of one file, and of all together."""

UPLOADS_AT_ONCE = 32
"""Each holds a file open, of which a process may have some hundreds beside its connections."""

COMPANIONS = (".onnx", ".xml")
"""Models whose weights may be in another file of the same stem."""


class TooLargeError(PlacewrightError):
    """A file that is too large, or one more than fits."""


class FileStore:
    """The files in a folder, and their rows in the store.

    Parameters
    ----------
    most_bytes
        Of one file.
    total_bytes
        Of all files together.
    """

    def __init__(
        self, folder: Path, store: Store, most_bytes: int = MOST_BYTES, total_bytes: int = ALL_BYTES
    ) -> None:
        self.uploads, self.jobs = folder / "files", folder / "jobs"
        self.store, self.most_bytes, self.total_bytes = store, most_bytes, total_bytes
        self._receiving: dict[str, int] = {}
        for each in (self.uploads, self.jobs):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self.uploads.glob("*.part"):
            left.unlink()

    def path(self, file: StoredFile) -> Path:
        """Where it is; made of identifiers, and of no name that a request has given."""
        if file.job is not None:
            return self.jobs / file.job / "out" / str(file.output)
        return self.uploads / file.id

    def __contains__(self, name: object) -> bool:
        """Whether there is a file of this name."""
        return isinstance(name, str) and self.store.file(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Names of the newest files."""
        return iter(self.store.names())

    def find(self, name: str) -> StoredFile:
        """The file of this name; `UnknownNameError` offers the nearest."""
        found = self.store.file(name)
        if found is None:
            raise UnknownNameError("file", name, self)
        return found

    async def receive(self, name: str, pieces: AsyncIterator[bytes], owner: str) -> StoredFile:
        """Store an upload; a file that is there already keeps its name, and this one gets another.

        Raises
        ------
        InputError
            It has no name that a file can have here.
        TooLargeError
            It is too large.
        Refusal
            So many are uploaded already.
        """
        check_name(name)
        if len(self._receiving) >= UPLOADS_AT_ONCE:
            reason = f"{UPLOADS_AT_ONCE} files are being uploaded"
            raise Refusal(503, reason, code="uploads-full", retry_after_s=1.0)
        id, digest = new_id(), hashlib.sha256()
        part, left = self.uploads / f"{id}.part", self.total_bytes - self.store.used_bytes()
        self._receiving[id] = 0
        try:
            with open(part, "xb") as file:
                async for piece in pieces:
                    self._receiving[id] += len(piece)
                    self._refuse_large(name, self._receiving[id], left)
                    digest.update(piece)
                    file.write(piece)
            part.rename(self.uploads / id)
        finally:
            size = self._receiving.pop(id)
            part.unlink(missing_ok=True)
        row = StoredFile(id=id, name=name, bytes=size, sha256=digest.hexdigest(), owner=owner)
        return await asyncio.to_thread(self._received, row)

    def _received(self, row: StoredFile) -> StoredFile:
        file = self.uploads / row.id
        try:
            row.kind = stored_kind(file, row.name)
            return self._named(row)
        except BaseException:  # without a row nobody could name it, or remove it
            file.unlink(missing_ok=True)
            raise

    def keep_output(self, job: str, output: str, name: str, owner: str) -> StoredFile:
        """Let requests name a file that a job has written."""
        path = self.jobs / job / "out" / output
        found = {"kind": stored_kind(path, name), "sha256": sha256_of(path)}
        given = {"name": name, "job": job, "output": output, "owner": owner}
        return self._named(StoredFile(bytes=path.stat().st_size, **found, **given))

    def delete(self, name: str) -> None:
        """Remove a file; jobs that have used it have their own copy."""
        file = self.find(name)
        with self.store.session() as session:
            session.delete(file)
        if file.job is None:
            self.path(file).unlink(missing_ok=True)

    def copy(self, names: Collection[str], target: Path, accepted_s: float) -> None:
        """Copy files, and the weights that belong to models among them, into a job's folder.

        Raises `InputError`: one that was named is another one than when the job was accepted.
        """
        for each in {each for name in names for each in self._with_companions(name)}:
            file = self.find(each)
            if file.created_s > accepted_s:
                if each not in names:  # weights that the job was not accepted with, or of others
                    continue
                by = f"stored {file.created_s - accepted_s:.1f} s after the job was accepted"
                hint = "start the job again, if it is to have the file that is there now"
                raise InputError("is another file now", where=each, by=by, hint=hint)
            shutil.copyfile(self.path(file), target / each)

    def _with_companions(self, name: str) -> Iterator[str]:
        yield name
        stem, dot, ending = name.rpartition(".")
        if dot + ending in COMPANIONS:
            yield from self.store.names(f"{stem}.")

    def _named(self, row: StoredFile) -> StoredFile:
        """Add a row; where its name is taken, by the first name like it that is free."""
        stem, dot, ending = row.name.partition(".")
        for number in range(2, 10_000):
            with suppress(IntegrityError), self.store.session() as session:
                session.add(row)
                return row
            row.name = f"{stem}-{number}{dot}{ending}"
        raise TooLargeError(
            "there are too many files of this name", where=row.name, hint="delete some"
        )

    def _refuse_large(self, name: str, size: int, left: int) -> None:
        if size > self.most_bytes:
            by = f"more than {self.most_bytes} bytes"
            raise TooLargeError("the file is too large", where=name, by=by, hint="pack it by gzip")
        if sum(self._receiving.values()) > left:
            by = f"all files may have {self.total_bytes} bytes"
            raise TooLargeError(
                "there is no room for the file", where=name, by=by, hint="delete others"
            )


def check_name(name: str) -> None:
    """Raise `InputError` where a file may not be called so."""
    if not NAME.fullmatch(name) or ".." in name:
        raise InputError(
            "is no name that a file can have here",
            where="name",
            by=f"got {name!r:.200}",
            hint="letters, digits, dots, dashes and underscores, at most 100 of them",
        )
    if not name.lower().endswith(ENDINGS):
        raise InputError(
            "files of this kind are not taken: only data are",
            where=name,
            hint=f"known: {', '.join(ENDINGS)}",
        )


def stored_kind(path: Path, name: str) -> str:
    """The kind of a document of ours, or a model; empty for other files and very large ones."""
    from placewright.files import kind_if_small

    return "model" if name.lower().endswith(COMPANIONS) else kind_if_small(path, name.lower())
