"""`Tokens`: 256 random bits each, of which only the hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from sqlalchemy import delete, select

from placewright.service.store import Store, Token


class Tokens:
    """The tokens of a service."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.session() as session:
            self._names = {row.sha256: row.name for row in session.scalars(select(Token))}

    def __len__(self) -> int:
        return len(self._names)

    def make(self, name: str) -> str:
        """A new token, which nobody can look up later; an earlier one of this name ends."""
        made = secrets.token_urlsafe(32)
        self.end(name)
        with self._store.session() as session:
            session.add(Token(sha256=_hash(made), name=name, created_s=time.time()))
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
