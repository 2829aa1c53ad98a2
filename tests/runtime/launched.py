"""Sessions one after another under torchrun, one of which loses a worker."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import WorkerError
from placewright.runtime.engines.torchrun import Torchrun
from placewright.runtime.engines.torchrun_agent import is_coordinator, serve
from placewright.runtime.session import Session
from tests.processes import children
from tests.runtime.chain import answer, diamond

DUO = Cluster(
    (Device("a", node="near"), Device("b", node="far", speed=0.5)),
    (Link("a", "b", 1e5, 0.02), Link("b", "a", 1e5, 0.02)),
    name="duo",
)


def coordinate(other: Path) -> dict[str, object]:
    """What rank 0 saw."""
    graph, state = diamond()
    report: dict[str, object] = {}
    with Torchrun(DUO) as engine:
        with Session(graph, DUO, state, engine) as session:
            equal = []
            for placement in itertools.product(range(2), repeat=4):
                session.load(placement, range(4))
                session.run(2)
                equal.append(torch.equal(session.outputs()["output"], answer(state)))
            report["equal"] = all(equal)
            session.load([0, 1, 1, 1], range(4))
            (record,) = session.run(1, watched=True)
            ((_, _, sent_s, arrived_s),) = record.logs[0].transfers
            report["transfer_s"] = arrived_s - sent_s
            report["emulated"] = session.emulated
            report["nodes"] = [host.name for host in session.group.hosts]
        try:
            with Session(graph, DUO, state, engine) as session:
                session.load([0, 1, 1, 1], range(4))
                os.kill(worker_of(int(other.read_text())), signal.SIGKILL)
                session.run(1)
        except WorkerError as error:
            mine = os.environ["PLACEWRIGHT_NODE"]
            (report["victim"],) = [d.name for d in DUO.devices if d.node != mine]
            report["death"] = str(error)
        with Session(graph, DUO, state, engine) as session:
            session.load([0, 1, 1, 1], range(4))
            session.run(1)
            report["again"] = torch.equal(session.outputs()["output"], answer(state))
    return report


def worker_of(agent: int) -> int:
    """The process that its forkserver has made."""
    (worker,) = [w for server in children(agent) for w in children(server)]
    return worker


def main(other: Path) -> None:
    """Every rank."""
    if is_coordinator():
        print(json.dumps(coordinate(other)))
    else:
        other.write_text(str(os.getpid()))
        serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
