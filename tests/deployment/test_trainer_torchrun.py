"""The script of docs/how-to/train-a-model.md, started by torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.runtime.engines import torchrun

ROOT = Path(__file__).parents[2]

FAULT = """
        if trainer.steps_done == 6:
            import os, signal
            from tests.runtime.launched import worker_of
            os.kill(worker_of(os.getpid()), signal.SIGKILL)
        LOSSES.append(loss := trainer.step(x, y))
"""
"""In place of the step of the loop: the worker of rank 0's device is killed in mid-run."""

AFTERWARDS = """
import json
from placewright import Trainer
try:
    Trainer(model, x, cluster, engine="torchrun")
except placewright.PlacewrightError as error:
    refused = str(error)
events = [(event.step, str(event.kind)) for event in trainer.timeline.events]
kept = {"losses": LOSSES, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(kept | {"events": events, "refused": refused}, "kept.pt")
"""


def script() -> str:
    """That of the page, with quick planning, a fault, and what the tests look at."""
    page = (ROOT / "docs" / "how-to" / "train-a-model.md").read_text(encoding="utf-8")
    code = page.split("```python\n# train.py\n", 1)[1].split("```", 1)[0]
    engine, step = 'engine="torchrun",\n', "        loss = trainer.step(x, y)\n"
    assert engine in code
    assert step in code
    quick = 'calibrate=False, method="analytic", planner="random",'
    often = 'loop={"snapshot_every": 4, "rejoin_every": 3},\n'
    code = code.replace(engine, f"{engine}{quick}{often}").replace(step, FAULT)
    return f"LOSSES = []\n{code}{AFTERWARDS}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes of torchrun have trained."""
    made = tmp_path_factory.mktemp("trained")
    (made / "train.py").write_text(script())
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    started = (sys.executable, "-m", "torch.distributed.run", "--master-port", port)
    ended = subprocess.run(
        [*started, "--nproc-per-node", "2", "train.py"],
        cwd=made,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("after 20 steps") == 1  # rank 0 alone went on
    return made


@pytest.fixture(scope="module")
def kept(folder: Path) -> dict[str, Any]:
    """What rank 0 saw."""
    found: dict[str, Any] = torch.load(folder / "kept.pt", weights_only=False)
    return found


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], nn.Module, torch.optim.Optimizer]:
    """The same loop in this process: losses, model and optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    loader = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(20)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model, optimizer


def test_it_learns_what_the_plain_loop_learns(
    folder: Path, kept: dict[str, Any], plain: tuple[list[float], nn.Module, torch.optim.Optimizer]
) -> None:
    """Losses, weights and the optimizer's state, bit for bit, though a worker was killed."""
    losses, model, optimizer = plain
    assert kept["losses"] == losses
    for name, value in model.state_dict().items():
        assert torch.equal(kept["model"][name], value)
        assert torch.equal(torch.load(folder / "weights.pt")[name], value)
    state = optimizer.state_dict()["state"]
    for key, moments in state.items():
        for name, value in moments.items():
            assert torch.equal(torch.as_tensor(kept["optimizer"]["state"][key][name]), value)
    assert (folder / "trained" / "model.safetensors").exists()
    assert (folder / "trained" / "plan.json").exists()


def test_the_lost_worker_is_among_the_events(kept: dict[str, Any]) -> None:
    """It was lost in the seventh step, and taken in again."""
    assert (6, "fault") in kept["events"]
    assert {"recover", "join"} <= {kind for _, kind in kept["events"]}


def test_a_second_placed_model_is_refused_at_once(kept: dict[str, Any]) -> None:
    """The processes of torchrun have ended with the first one."""
    assert kept["refused"].startswith("two: torchrun's processes serve one placed model (")
    assert "once for each model" in kept["refused"]


def test_ranks_beyond_the_first_open_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for themselves."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"(?s)rank 1: only rank 0 .*placewright\.place"):
        torchrun.Torchrun(Cluster((Device("a"), Device("b")), name="two"))
