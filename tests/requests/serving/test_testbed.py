"""Servers on the nodes of a real testbed, with unequal CPU quotas."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.requests.serving.engines import DISPATCHER, server_cluster, with_dispatcher
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.requests.serving.workers import LocalProcess
from placewright.testbed.testbed import Testbed, missing
from tests.requests.serving.models import family
from tests.requests.serving.test_repository import changed_while_workers_die, two_models
from tests.requests.serving.test_server import body, call, infer, many, until

pytestmark = pytest.mark.skipif(bool(missing()), reason=str(missing()))


def in_its_groups(running: Running, server: int) -> bool:
    """Whether a server's process is in the control groups of its node."""
    process = running.dispatcher.fleet.slots[server].process
    assert isinstance(process, LocalProcess)
    assert process.handle is not None
    lists = [(Path(each) / "cgroup.procs").read_text().split() for each in process.handle.groups]
    return all(str(process.pid) in each for each in lists)


def test_unequal_quotas_and_a_lost_worker() -> None:
    """Processes run under their node's quota, after a crash too; nodes are not added later."""
    options = ServingOptions(port=0, engine="testbed")
    with serve([family()], {"a": 0.5, "b": 0.2}, options) as running:
        slots = running.dispatcher.fleet.slots
        assert in_its_groups(running, 0)
        assert in_its_groups(running, 1)
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


def test_models_come_and_go_while_workers_are_killed(tmp_path: Path) -> None:
    """A second process takes the first one's place on its node, under the same quota."""
    options = ServingOptions(port=0, engine="testbed")
    with serve(two_models(tmp_path), {"a": 0.5, "b": 0.4}, options) as running:
        assert changed_while_workers_die(running, tmp_path) > 1
        assert in_its_groups(running, 0)
        assert in_its_groups(running, 1)


def test_a_cut_link_loses_no_request() -> None:
    """Links are cut under load: requests go to the other server, none is answered twice."""
    cluster = with_dispatcher(server_cluster({"a": 0.5, "b": 0.3}))
    with (
        serve([family()], cluster, ServingOptions(port=0, engine="testbed")) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        slots, bed = running.dispatcher.fleet.slots, Testbed.find(cluster.name)
        answers = pool.submit(lambda: [many(running, 10, body(30_000)) for _ in range(3)])
        until(lambda: bool(slots[0].rows) or answers.done())
        bed.cut(DISPATCHER, "a")
        until(lambda: not slots[0].up)
        found = [each for group in answers.result() for each in group]
        assert [status for status, _, _ in found] == [200] * 30
        assert running.observer.totals.total() == 30
        bed.cut(DISPATCHER, "b")
        until(lambda: not slots[1].up)
        status, headers, answer = infer(running, body(1000))
        assert (status, answer["code"]) == (503, "no-server")
        assert int(headers["retry-after"]) >= 1
        bed.restore(DISPATCHER, "a")
        until(lambda: slots[0].up)
        assert infer(running, body(30_000))[2]["parameters"]["server"] == "a"


def test_every_server_needs_a_link_from_the_dispatcher() -> None:
    """A cluster with a dispatcher is taken as it is; one without gets one."""
    alone = Device(DISPATCHER, node=DISPATCHER)
    servers = server_cluster({"a": 1.0, "b": 0.5})
    with pytest.raises(InputError, match="no link leads from 'dispatcher' to server 'a'"):
        with_dispatcher(replace(servers, devices=(*servers.devices, alone)))
    made = with_dispatcher(servers)
    assert with_dispatcher(made) is made
    assert {(k.source, k.target) for k in made.links} >= {(DISPATCHER, "a"), ("b", DISPATCHER)}
    with pytest.raises(InputError, match="there is no server"):
        server_cluster(Cluster((alone,)))
