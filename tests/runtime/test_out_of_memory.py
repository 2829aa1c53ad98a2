"""Errors of workers that run out of memory."""

from __future__ import annotations

import pytest

from placewright.errors import WorkerError
from placewright.runtime.out_of_memory import KILLED, asked_bytes, explained, out_of_memory

ENDED = WorkerError("ended", where="device 'a'", by=KILLED, hint="look there")


HELD, ASKED = 1 << 20, 1 << 21
STATED = WorkerError("ended", hint=str(out_of_memory(HELD, ASKED)))
AT_AN_ORDER = WorkerError("ended", by="MemoryError: no")


@pytest.mark.parametrize(
    ("error", "expected", "by"),
    [
        (STATED, 0, "held 1 MiB and asked for 2 MiB more"),
        (STATED, 1 << 20, "2 MiB above"),
        (STATED, 1 << 22, "the judge expected 4 MiB, at least 1 MiB of it are missing"),
        (AT_AN_ORDER, 1 << 20, "1 MiB is what the judge"),
        (AT_AN_ORDER, 0, "MemoryError: no"),
        (ENDED, 1 << 20, "signal 9; the judge expected 1 MiB"),
    ],
)
def test_an_error_says_by_how_much_the_judge_was_wrong(
    error: WorkerError, expected: float, by: str
) -> None:
    """Above, below, and where the worker could not say what it had."""
    assert by in explained(error, expected).by


def test_other_errors_stay_as_they_are() -> None:
    """Among them a killed worker of which nothing was expected."""
    other = WorkerError("raised", by="KeyError: 1")
    assert explained(other, 1.0) is other
    assert explained(ENDED, 0.0) is ENDED


@pytest.mark.parametrize(
    ("error", "wanted_bytes"),
    [
        (
            RuntimeError("can't allocate memory: you tried to allocate 12 bytes"),
            12,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.5 GiB"), 5 << 29),
        (MemoryError(), 0),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_what_an_allocation_asked_for_is_read_from_its_error(
    error: BaseException, wanted_bytes: int | None
) -> None:
    """On the CPU and on GPUs."""
    assert asked_bytes(error) == wanted_bytes
