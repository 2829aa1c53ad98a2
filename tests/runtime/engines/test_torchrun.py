"""The worker program under torchrun, on two nodes that share only a network."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.runtime.engines import torchrun, torchrun_agent
from placewright.runtime.engines.torchrun import Torchrun

ROOT = Path(__file__).parents[3]
SECRET = "known to both nodes " * 2
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")


def agent(number: int, node: str, port: int, folder: Path) -> subprocess.Popen[str]:
    """A node's torchrun, as on a machine of its own."""
    meeting = ("--master-addr", "localhost", "--master-port", str(port))
    command = (*TORCHRUN, "--node-rank", str(number), *meeting)
    return subprocess.Popen(
        [*command, "-m", "tests.runtime.launched", str(folder / "other.pid")],
        cwd=ROOT,
        env=os.environ | {"PLACEWRIGHT_NODE": node, "PLACEWRIGHT_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the coordinator saw."""
    folder = tmp_path_factory.mktemp("torchrun")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    agents = [agent(number, node, port, folder) for number, node in enumerate(("far", "near"))]
    try:
        outputs = [a.communicate(timeout=600) for a in agents]
    finally:
        for a in agents:
            a.kill()
    assert [a.returncode for a in agents] == [0, 0], outputs
    (line,) = [out for out, _ in outputs if out]
    return json.loads(line)


def test_two_nodes_compute_what_one_process_computes(report: Any) -> None:
    """All sixteen placements, outputs fetched without a shared disk; devices sit on their nodes."""
    assert report["equal"]
    assert report["nodes"] == ["near", "far"]


def test_links_and_speeds_are_emulated_there_too(report: Any) -> None:
    """A transfer takes at least latency and bytes / bandwidth, and the emulation is reported."""
    assert report["transfer_s"] >= 0.02 + 128 / 1e5 - 1e-9
    assert report["emulated"] == "b at 0.5x by waiting, 2 links by waiting"


def test_a_killed_worker_is_named_and_the_next_session_works(report: Any) -> None:
    """The agent says how its worker ended, and starts another one when asked."""
    assert (
        f"device '{report['victim']}': the worker process died (killed by signal 9)"
        in report["death"]
    )
    assert report["again"]


def test_one_process_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few processes, or none of torchrun's, are refused before anything is done."""
    cluster = Cluster((Device("a"), Device("b"), Device("c")), name="trio")
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InputError, match="RANK and WORLD_SIZE are not set"):
        Torchrun(cluster)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"2 processes for 3 devices .*\(1 too few\)"):
        Torchrun(cluster)
    for variable in ("WORLD_SIZE", "RANK"):
        monkeypatch.setenv(variable, "two")
        with pytest.raises(InputError, match=f"{variable}: is no whole number from 0 to .*'two'"):
            Torchrun(cluster)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for port, words in (("65536", "MASTER_PORT: is no whole number"), ("1", "MASTER_ADDR: is not")):
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(InputError, match=words):
            torchrun_agent.store()


def test_an_engine_that_cannot_be_entered_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while ranks are waited for: its handler, its port and its folder are gone."""
    for variable, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(variable, value)
    closed: list[bool] = []
    listener = SimpleNamespace(port=1, accept=_interrupt, close=lambda: closed.append(True))
    for name in ("end_with_torchrun", "warn_of_open_rendezvous", "run_agent"):
        monkeypatch.setattr(torchrun, name, lambda *_: None)
    monkeypatch.setattr(torchrun, "listen_for_workers", lambda folder: (listener, b""))
    monkeypatch.setattr(Torchrun, "_opened", False)
    before = signal.getsignal(signal.SIGTERM)
    engine = Torchrun(Cluster((Device("a"), Device("b")), name="duo"))
    with pytest.raises(KeyboardInterrupt):
        engine.__enter__()
    assert signal.getsignal(signal.SIGTERM) is before
    assert closed
    assert not Path(engine._folder.name).exists()


def _interrupt(limit_s: float) -> None:
    raise KeyboardInterrupt


STOPPED = """
import atexit
import os
import signal

if os.environ["RANK"] == "1":
    WHEN(lambda: os.kill(os.getpid(), signal.SIGSTOP))
from placewright.cluster.cluster import Cluster, Device
from placewright.runtime import limits
from placewright.runtime.engines.torchrun import Torchrun
from placewright.runtime.engines.torchrun_agent import served_torchrun

limits.STOPPED_S = 1.0
if served_torchrun("torchrun"):
    raise SystemExit
with Torchrun(Cluster((Device("a"), Device("b")), name="duo")):
    pass
"""


@pytest.mark.parametrize(
    ("when", "named"),
    [("(lambda stop: stop())", "before it had called"), ("atexit.register", "at the end")],
)
def test_a_rank_that_is_stopped_is_killed_and_named(when: str, named: str, tmp_path: Path) -> None:
    """Nobody waits for it for a minute, nor for ever where it has served and is about to end."""
    script = tmp_path / "script.py"
    script.write_text(STOPPED.replace("WHEN", when))
    command = [*TORCHRUN[:3], "--standalone", "--nproc-per-node", "2", str(script)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 1
    assert "a process that torchrun has started is stopped (SIGSTOP)" in ended.stderr
    assert "rank 1" in ended.stderr
    assert named in ended.stderr
