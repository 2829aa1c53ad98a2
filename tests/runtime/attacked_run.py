"""A session under torchrun that lasts until the test ends its attack on it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from placewright.cluster.cluster import Cluster, Device
from placewright.runtime.engines.torchrun import Torchrun
from placewright.runtime.engines.torchrun_agent import is_coordinator, serve
from placewright.runtime.session import Session
from tests.runtime.chain import answer, diamond

DUO = Cluster((Device("a"), Device("b")), name="duo")


def coordinate(folder: Path) -> dict[str, object]:
    """Two sessions, one before and one during the attack; rank 0 and where its store listens."""
    graph, state = diamond()
    equal = []
    with Torchrun(DUO) as engine:
        for number in range(2):
            with Session(graph, DUO, state, engine) as session:
                session.load([0, 1, 1, 0], range(4))
                session.run(1)
                if number == 1:
                    (folder / "ready.new").write_text(f"{os.getpid()} {os.environ['MASTER_PORT']}")
                    (folder / "ready.new").rename(folder / "ready")
                    while not (folder / "go").exists():
                        time.sleep(0.02)
                session.run(2)
                equal.append(torch.equal(session.outputs()["output"], answer(state)))
    return {"equal": equal}


if __name__ == "__main__":
    if is_coordinator():
        print(json.dumps(coordinate(Path(sys.argv[1]))))
    else:
        serve()
