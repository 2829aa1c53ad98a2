"""Events that the emulator waits for, on empty records."""

from __future__ import annotations

import select
from dataclasses import replace

from placewright.testbed.record import Process, Record, owner_events, still_needed
from tests.testbed.conftest import Start


def readable(files: tuple[int, ...], patience_s: float = 0.0) -> bool:
    """Whether one of them has become readable."""
    return bool(select.select(files, (), (), patience_s)[0])


def test_ends_and_changes_are_events_until_the_last_owner_ends(empty: Record, start: Start) -> None:
    """Who joins is watched from then on; who leaves is watched no more; the last one ends it."""
    first, second = start(), start()
    owners = (Process.of(first.pid), Process.of(second.pid))
    bed = replace(empty, owners=owners[:1])
    bed.write()
    looks = owner_events(bed.folder)
    files = next(looks)
    assert not readable(files)
    replace(bed, owners=owners).write()
    assert readable(files)
    files = next(looks)
    assert not readable(files)
    first.kill()
    assert readable(files, 20)
    files = next(looks)
    assert (len(files), readable(files)) == (2, False)
    second.kill()
    assert readable(files, 20)
    assert next(looks, None) is None
    assert not bed.folder.exists()


def test_a_kept_testbed_has_no_end_event(empty: Record, start: Start) -> None:
    """From when somebody asks to keep it; nothing but a change is watched."""
    owner = start()
    bed = replace(empty, owners=(Process.of(owner.pid),))
    bed.write()
    looks = owner_events(bed.folder)
    next(looks)
    bed.joined(Process.this(), keep=True).write()
    owner.kill()
    owner.wait()
    assert not readable(files := next(looks))
    assert (len(files), still_needed(bed.folder)) == (1, empty)
    looks.close()
