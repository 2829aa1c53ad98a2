"""CPUs with more cores than this machine are not measured with too many threads."""

from __future__ import annotations

import warnings

import pytest

from placewright.cluster.cluster import Device
from placewright.profiling import profile_warnings
from placewright.profiling.profile_warnings import (
    SharedCoresWarning,
    TooFewCoresWarning,
    cores_to_measure,
    warn_of_cores,
    warn_of_shared_cores,
)

KNOWN = Device("server", cores=16, peak_flops=1e12)
UNKNOWN = Device("desk", cores=3)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores."""
    monkeypatch.setattr(profile_warnings, "cpu_cores", lambda: 2)


def test_never_more_threads_than_cores() -> None:
    """As many as the device has, as many as are here, or none where the formula knows better."""
    devices = Device("a"), Device("b", cores=2, peak_flops=1.0), UNKNOWN, KNOWN
    assert [cores_to_measure(d) for d in devices] == [1, 2, 2, 0]


def test_the_warning_names_devices_and_the_next_step() -> None:
    """One warning for those that are computed, one for those that are measured all the same."""
    with pytest.warns(TooFewCoresWarning) as warned:
        warn_of_cores("net", [KNOWN, UNKNOWN, Device("a")])
    computed, measured = (str(w.message) for w in warned)
    assert "computed from peak_flops, not measured, for server (16): this machine has 2" in computed
    assert "a machine with 16 cores" in computed
    assert "measured with too few cores for desk (3)" in measured
    assert "next: give peak_flops" in measured


def test_no_warning_where_all_cores_are_here() -> None:
    """Neither of small devices nor of none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_cores("net", [Device("a"), Device("b", cores=2)])


def test_shared_cores_are_reported() -> None:
    """By cores times speed of the CPUs; one alone is another warning's."""
    boards = [Device("a"), Device("b"), Device("c", speed=0.5), Device("g", kind="gpu", cores=8)]
    with pytest.warns(SharedCoresWarning, match=r"3 CPUs of trio ask for 2.5 cores .* has 2"):
        warn_of_shared_cores("trio", boards)
    warn_of_shared_cores("duo", boards[1:])
    warn_of_shared_cores("one", [Device("a", cores=4)])
