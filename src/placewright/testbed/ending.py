"""When a testbed ends: with the last process that needs it, with the machine, or by ``down``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from placewright.testbed.record import Process, Record, one_at_a_time, record_in, records
from placewright.testbed.removal import remove


def leave(record: Record) -> None:
    """Let go of it: it goes down unless another process holds it, or it is to stay."""
    with one_at_a_time():
        now, own = record.now(), Process.this()
        if now is None or own not in now.owners:
            return
        others = now.others(own)
        if others:
            replace(now, owners=others).write()
        else:
            remove(now)


def end(record: Record) -> None:
    """Take it down, whoever needs it; one that is down is fine."""
    with one_at_a_time():
        now = record.now()
        if now is not None:
            remove(now)


def end_all(only: str | None = None) -> tuple[Record, ...]:
    """Take down what there is, or what there is of the id `only`, also what was broken off."""
    with one_at_a_time():
        found = tuple(record for record in records() if only in (None, record.id))
        for record in found:
            remove(record)
    return found


def sweep() -> None:
    """Remove every testbed whose owners, or machine, have ended without taking it down."""
    with one_at_a_time():
        for record in records():
            if record.abandoned:
                remove(record)


def still_needed(folder: Path) -> Record | None:
    """The record in `folder`; ``None`` where it is down, or was abandoned and is down now."""
    record = record_in(folder)
    if record is None or not record.abandoned:
        return record  # without the lock, which the making of another testbed holds for seconds
    with one_at_a_time():
        record = record_in(folder)
        if record is not None and record.abandoned:
            remove(record)
            return None
    return record
