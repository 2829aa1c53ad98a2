"""Seconds of every operator of an ONNX model by ONNX Runtime's own profiler."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np

from placewright.capturing.files.model_file import ModelFile
from placewright.errors import RunError
from placewright.numerics.arrays import FloatArray
from placewright.runtime.model_files.onnx_sessions import open_session, whole_model
from placewright.runtime.model_files.timing import WARM_UP, run_seconds
from placewright.runtime.scratch import Scratch

KERNEL = "_kernel_time"


def operator_seconds(file: ModelFile, threads: int) -> FloatArray:
    """Shape (operators,): seconds of each on so many threads of this machine.

    The profiler times operators as they are written. ONNX Runtime fuses many of them, so all are
    scaled by one factor that makes their sum the time of the optimised model.

    Raises `UnsupportedError`: ONNX Runtime does not take the model.
    """
    inputs = dict(file.random_inputs())
    with Scratch() as folder:
        prefix = str(Path(folder) / "profile")
        session = open_session(
            whole_model(file), file.source, threads=threads, optimise=False, profile=prefix
        )
        run_seconds(lambda: session.run(list(file.outputs), inputs))
        times = _by_node(Path(session.end_profiling()))
    alike: dict[str, list[float]] = {}  # one that was disturbed is corrected by those like it
    for op in file.graph.operators:
        alike.setdefault(op.signature, []).extend(times.get(op.name, [])[WARM_UP:])
    alone = np.array([median(alike[op.signature] or [0.0]) for op in file.graph.operators])
    if not alone.any():
        raise RunError(
            "ONNX Runtime's profile names none of its operators",
            where=file.source,
            hint="use --method analytic",
        )
    whole = whole_seconds(file, threads)
    return np.asarray(alone * (whole / alone.sum()), dtype=np.float64)


def whole_seconds(file: ModelFile, threads: int) -> float:
    """Median seconds of the unplaced, optimised model."""
    session = open_session(whole_model(file), file.source, threads=threads)
    inputs = dict(file.random_inputs())
    return median(run_seconds(lambda: session.run(list(file.outputs), inputs)))


def _by_node(path: Path) -> dict[str, list[float]]:
    """Kernel seconds by node, in the order of the runs."""
    found: dict[str, list[float]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith(KERNEL):
            found.setdefault(event["name"].removesuffix(KERNEL), []).append(event["dur"] * 1e-6)
    return found


def handover_seconds(rounds: int = 200) -> float:
    """Median seconds until one thread sees what another has made."""
    there, back, found = threading.Event(), threading.Event(), []

    def answer() -> None:
        for _ in range(rounds):
            there.wait()
            there.clear()
            back.set()

    other = threading.Thread(target=answer)
    other.start()
    for _ in range(rounds):
        began = time.perf_counter()
        there.set()
        back.wait()
        back.clear()
        found.append((time.perf_counter() - began) / 2)
    other.join()
    return median(found)
