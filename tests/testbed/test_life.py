"""A testbed under random sequences of commands and faults."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from placewright.errors import UnknownNameError
from placewright.testbed import Testbed
from placewright.testbed.record import emulator_pid
from placewright.testbed.status import status
from placewright.testbed.testbed import missing
from tests.testbed.conftest import cluster
from tests.testbed.test_testbed import own_traces

SPEEDS = st.sampled_from((0.1, 0.25, 0.5, 1.0))
RATES = st.sampled_from((1e5, 1e6, 125e6))


class Life(RuleBasedStateMachine):
    """The last settings hold through revivals; after `down` nothing is left."""

    @initialize()
    def begin(self) -> None:
        """Nothing is up yet; a name of our own."""
        self.cluster = cluster()
        self.bed: Testbed | None = None
        self.whole = False

    @rule()
    def up(self) -> None:
        """Makes it, finds it or revives it."""
        first = self.bed is None
        found = Testbed.up(self.cluster)
        assert found.held == first
        assert found.alive
        if first:
            self.bed, self.rate, self.speed, self.cut = found, 5e6, 0.5, False
        self.whole = True

    @precondition(lambda self: self.bed)
    @rule(rate=RATES, speed=SPEEDS, cut=st.booleans())
    def change(self, rate: float, speed: float, cut: bool) -> None:
        """All that can be set."""
        assert self.bed
        self.bed.set_link("left", "right", bandwidth=rate, cut=cut)
        self.bed.set_device("right", speed=speed)
        self.rate, self.speed, self.cut = rate, speed, cut

    @precondition(lambda self: self.bed and self.whole)
    @rule()
    def kill(self) -> None:
        """The emulator dies without a word."""
        assert self.bed
        os.kill(emulator_pid(self.bed.record), signal.SIGKILL)
        while emulator_pid(self.bed.record):
            pass
        self.whole = False

    @precondition(lambda self: self.bed and self.whole)
    @rule(device=st.sampled_from(("left", "right")))
    def lose(self, device: str) -> None:
        """Somebody deletes a namespace."""
        assert self.bed
        subprocess.run(["ip", "netns", "del", self.bed.handle(device).namespace], check=True)
        self.whole = False

    @precondition(lambda self: self.bed)
    @rule()
    def look(self) -> None:
        """The status shows the last settings, broken or not."""
        assert self.bed
        seen = status(Testbed.find(self.cluster.name))
        assert seen.alive == self.whole
        assert {(way.bandwidth, way.cut) for way in seen.ways} == {(self.rate, self.cut)}
        assert seen.devices[1].cpu_share == self.speed

    @rule()
    def down(self) -> None:
        """Whatever is there goes."""
        if self.bed is None:
            with pytest.raises(UnknownNameError):
                Testbed.find(self.cluster.name)
            return
        self.bed.down()
        assert own_traces(self.bed) == set()
        self.bed = None

    def teardown(self) -> None:
        """Leave nothing."""
        if getattr(self, "bed", None) is not None:
            self.down()


def test_any_life_of_a_testbed() -> None:
    """Twelve lives of up to fifteen events."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    run_state_machine_as_test(Life, settings=settings(max_examples=12, stateful_step_count=15))
