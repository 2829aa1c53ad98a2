"""Servers on the nodes of a real testbed, with unequal CPU quotas."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from placewright.requests.serving.server import Running, ServingOptions, running_server
from placewright.testbed.requirements import missing
from tests.requests.serving.models import family
from tests.requests.serving.test_server import body, call, infer, until

pytestmark = pytest.mark.skipif(bool(missing()), reason=str(missing()))


def in_its_groups(running: Running, server: int) -> bool:
    """Whether a server's process is in the control groups of its node."""
    process = running.dispatcher.fleet.slots[server].process
    assert process.handle is not None
    lists = [(Path(each) / "cgroup.procs").read_text().split() for each in process.handle.groups]
    return all(str(process.pid) in each for each in lists)


def test_unequal_quotas_and_a_lost_worker() -> None:
    """Processes run under their node's quota, after a crash too; nodes are not added later."""
    options = ServingOptions(port=0, engine="testbed")
    with running_server([family()], {"a": 0.5, "b": 0.2}, options) as running:
        slots = running.dispatcher.fleet.slots
        assert in_its_groups(running, 0)
        assert in_its_groups(running, 1)
        assert slots[0].process.handle != slots[1].process.handle
        assert infer(running, body())[0] == 200
        lost = slots[1].process.pid
        assert lost is not None
        os.kill(lost, signal.SIGKILL)
        until(lambda: slots[1].restarts == 1 and slots[1].up)
        assert slots[1].process.pid != lost
        assert in_its_groups(running, 1)
        data = json.dumps({"name": "c", "speed": 0.3}).encode()
        status, _, answer = call(running, "POST", "/admin/servers", data)
        assert status == 400
        assert "fixed" in answer["error"]
        assert "--engine local" in answer["error"]
