"""Server processes of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from placewright.requests.serving import workers
from placewright.requests.serving.models import (
    TORCH_SERVER,
    VARIANT_SERVER,
    ServedModel,
    program_for,
)
from placewright.requests.serving.workers import LocalProcess


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    """The thread goes on starting it: only then it can be ended."""
    happened: list[str] = []
    begun = threading.Event()

    class Group:
        def launch(self) -> None:
            begun.set()
            time.sleep(0.1)
            happened.append("launched")

        def close(self) -> None:
            happened.append("closed")

    class Engine:
        def group(self, *arguments: Any) -> Group:
            return Group()

    async def main() -> None:
        process = LocalProcess("a", 1.0, lambda reason: None)
        process._engine = Engine()  # type: ignore[assignment]
        starting = asyncio.create_task(process.start({}))
        await asyncio.to_thread(begun.wait, 60)  # the thread may have others to end before
        starting.cancel()
        await asyncio.wait([starting])

    asyncio.run(main())
    workers._STARTING.submit(lambda: None).result()  # after all that it was given before
    assert happened == ["launched", "closed"]


def test_a_process_whose_start_hangs_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    """Its fork server may be stopped: the end waits for it a while only, and kills the others."""
    script = tmp_path / "serve.py"
    script.write_text(
        """
import os, signal, threading, time
from placewright.requests.serving import server
from placewright.requests.serving.server import ServingOptions, serve
from placewright.runtime.engines.local import LocalGroup
from tests.requests.serving.models import family

server.ENDING_S = 0.2
with serve([family()], {"a": 1.0, "b": 1.0}, ServingOptions(port=0)) as running:
    first, second = running.dispatcher.fleet.slots
    hung, launch = threading.Event(), LocalGroup.launch

    def hang(self):
        hung.set()
        time.sleep(3600)

    LocalGroup.launch = hang
    os.kill(first.process.pid, signal.SIGKILL)
    assert hung.wait(60)
    os.kill(second.process.pid, signal.SIGSTOP)
    print(second.process.pid, flush=True)
"""
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    stopped = Path(f"/proc/{int(done.stdout)}")
    assert not stopped.exists() or "(zombie)" in (stopped / "status").read_text()


LOADED = """
import sys
from placewright.requests.serving.server import ServingOptions, serve
from tests.requests.serving.models import family

with serve([family()], {"a": 1.0}, ServingOptions(port=0)) as running:
    (slot,) = running.dispatcher.fleet.slots
    maps = open(f"/proc/{slot.process.pid}/maps").read()
    print("torch" in maps, "onnxruntime" in maps, "torch" in sys.modules)
"""


def test_servers_of_onnx_models_do_not_load_pytorch() -> None:
    """It would take 120 MB of each, and as much of the process that serves."""
    script = [sys.executable, "-c", LOADED]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "True", "False"]
    kinds = {"onnx": VARIANT_SERVER, "factory": VARIANT_SERVER, "exported": TORCH_SERVER}
    for kind, program in kinds.items():
        assert program_for([ServedModel(kind, b"")]) == program
