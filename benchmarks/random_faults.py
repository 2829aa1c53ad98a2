"""Check that every command ends by itself when random signals hit its processes.

    python benchmarks/random_faults.py [--schedules 200] [--seed 0] [--only NAME] [--patience 1]
    python benchmarks/random_faults.py --check     # every command undisturbed, nothing else

Each schedule starts one command of `VARIANTS`, in an order that has each of them once before any of
them again: on local workers, a testbed, torchrun and Ray ``operators run`` (training with and
without ``--adapt``, inference, a stream), ``layers run`` and a Python script that calls ``place``;
``samples run`` and ``requests serve`` where they run. It waits for a random
moment of one phase and sends one signal, or two, to one of its processes:

    begin     before the first worker: imports, capture, profile, planning
    start     within a second after the target's process has come up: joining, loading, first steps
    steady    any later moment
    ending    around the moment at which an undisturbed run ends

    KILL, TERM, INT (Ctrl-C: to the whole process group, as a terminal does), STOP; INT2: Ctrl-C
    twice; KILL2: two processes of that kind, one after another

A server is asked to end (TERM) where the signal has left it running.
A launcher (or torchrun's agent) that is stopped is continued, or killed, after some seconds:
nothing else could end it. Every other process stays stopped.

A schedule is fine where, within 60 s after the signal (or after it was continued),
- the command has ended,
- it exited with 0 and its numbers are right, or with another code and words, and there is neither a
  traceback nor an unexpected error on stderr: the parameters of ``operators run --adapt`` are
  compared with eager PyTorch, ``--check`` compares those of the others; losses of ``samples run``
  with those of an undisturbed run,
- nothing is left 10 s later: processes, network namespaces, control groups, devices, folders. Only
  what a launcher that was killed outright had in the temporary folder may wait for the next start.

On a busy machine ``--patience 4`` multiplies these limits, and those of the commands, by four. The
exit code is 1 where a schedule is not fine. Root is needed for testbeds; without it they are left
out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness import Table, run

MARK = "PLACEWRIGHT_FAULTS"
"""In the environment of every process of a schedule."""

STEPS = 100
"""A run that nothing disturbs has to end well within the limit."""

PHASES = ("begin", "start", "steady", "ending")
SIGNALS = ("KILL", "KILL", "KILL2", "STOP", "STOP", "INT", "INT2", "TERM")
CTRL_C = ("INT", "INT2")
RESUMED_AFTER_S = 8.0
TRACEBACK = "Traceback (most recent call last)"
UNEXPECTED = "this should not happen"
CHAINED = "During handling of the above exception, another exception occurred:"
PYTHON_S = 1.0
"""Before the first line of the command Python itself prints a traceback at Ctrl-C."""

COMMANDS = ("launcher", "agent", "lead")

LIMIT_S, SETTLE_S = 60.0, 10.0
"""A command has to end after its fault, and its processes after it."""

UNDISTURBED_S = 300.0
"""No command takes longer, nor has one that has no worker by then."""

OTHERS_FOLDERS = ("torchelastic_", "ray", "torchinductor_", "nccl-")
"""Of torchrun, Ray and PyTorch: what their own killed processes leave is not ours to remove."""


def small() -> Any:
    """Linear layers with batch norms (buffers) and dropout (random numbers): a user's factory."""
    import torch

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(*layers), torch.randn(16, 64)


def plain() -> Any:
    """Linear layers whose batch can be split, and whose samples can be streamed: a factory."""
    import torch

    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), torch.randn(16, 64)


SCRIPT = """
import json
import sys

if __name__ == "__main__":
    try:
        import placewright
        import random_faults
        from placewright.operators.run import as_json

        model, x = random_faults.small()
        with placewright.place(
            model, x, "{cluster}", training=True, planner="round-robin", engine="{engine}"
        ) as placed:
            measured = placed.run({steps}, adapt=True, check=True, snapshots="{snapshots}")
        print(json.dumps(as_json(measured, placed.result)))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except placewright.PlacewrightError as error:
        sys.exit(f"error: {{error}}")
"""

CLUSTER = """
name: {name}
devices:
  - {{name: a, kind: cpu, cores: 1, speed: 0.5, node: a}}
  - {{name: b, kind: cpu, cores: 1, speed: 0.5, node: b}}
  - {{name: c, kind: cpu, cores: 1, speed: 0.5, node: c}}
links:
  - {{from: a, to: b, bandwidth: 1Gbps, latency: 200us}}
  - {{from: b, to: c, bandwidth: 1Gbps, latency: 200us}}
  - {{from: a, to: c, bandwidth: 1Gbps, latency: 200us}}
"""


@dataclass(frozen=True)
class Variant:
    """One command."""

    name: str
    targets: tuple[str, ...]
    engine: str = "local"
    adapt: bool = False
    what: str = "training"
    """``training``, ``inference``, ``stream``, ``layers``, ``samples``, ``serve``, ``script``"""

    @property
    def samples(self) -> bool:
        """Whether it trains by samples."""
        return self.what == "samples"

    @property
    def snapshots(self) -> bool:
        """Whether it leaves parameters to compare with eager ones."""
        return self.adapt and self.what in ("training", "script")

    def command(self, folder: Path) -> list[str]:
        """What is started; files are in `folder`."""
        program = ["-m", "placewright", *self._verb(folder)]
        if self.what == "script":
            text = SCRIPT.format(
                cluster=folder / "cluster.yaml",
                steps=STEPS,
                snapshots=folder / "snapshots",
                engine=self.engine,
            )
            (folder / "script.py").write_text(text)
            program = [str(folder / "script.py")]
        if self.engine == "torchrun":
            launch = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port"]
            return [sys.executable, *launch, str(_free_port()), *program]
        return [sys.executable, *program]

    def _verb(self, folder: Path) -> list[str]:
        on = str(folder / "cluster.yaml")
        if self.what == "serve":
            servers = ["--server", "a:1", "--server", "b:0.5"]
            return ["requests", "serve", "--port", "0", *servers, "--engine", self.engine]
        if self.what == "layers":
            verb = ["layers", "run", "random_faults:plain", "--on", on, "--train", str(STEPS)]
            verb += ["--check", "-f", "json", "--time-limit", "2", "--engine", self.engine]
            return verb
        if self.samples:
            verb = ["samples", "run", str(folder / "nodes.yaml"), "--epochs", "4", "-f", "json"]
            verb += ["--engine", "testbed"] if self.engine == "testbed" else ["--speed", "20"]
            verb += ["--adapt"] if self.adapt else ["--baseline", "none"]
            verb += ["--time-limit", "3", "--planner", "lp"]
            return verb
        model = "random_faults:small" if self.what == "training" else "random_faults:plain"
        verb = ["operators", "run", model, "-f", "json", "--check", "--on", on]
        verb += ["--steps", str(STEPS), "--planner", "round-robin", "--engine", self.engine]
        verb += ["--training"] if self.what == "training" else []
        verb += ["--objective", "throughput"] if self.what == "stream" else []
        verb += ["--adapt", "--snapshots", str(folder / "snapshots")] if self.adapt else []
        return verb


_OWN = ("launcher", "fork server", "tracker", "worker", "worker")
_RUN = ("agent", "lead", "keeper", "fork server", "tracker", "worker", "worker")
_RAY = ("launcher", "worker", "worker", "raylet", "gcs")
_TARGETS = {"local": _OWN, "testbed": (*_OWN, "emulator"), "torchrun": _RUN, "ray": _RAY}
VARIANTS = (
    Variant("local", _OWN),
    Variant("local-adapt", _OWN, adapt=True),
    Variant("testbed", _TARGETS["testbed"], "testbed"),
    Variant("testbed-adapt", _TARGETS["testbed"], "testbed", adapt=True),
    Variant("torchrun", _RUN, "torchrun"),
    Variant("torchrun-adapt", _RUN, "torchrun", adapt=True),
    Variant("ray", _RAY, "ray"),
    Variant("ray-adapt", _RAY, "ray", adapt=True),
    Variant("samples", _OWN, what="samples"),
    Variant("samples-adapt", _OWN, adapt=True, what="samples"),
    Variant("samples-testbed", _TARGETS["testbed"], "testbed", what="samples"),
    Variant("samples-testbed-adapt", _TARGETS["testbed"], "testbed", adapt=True, what="samples"),
    *(
        Variant(what if engine == "local" else f"{what}-{engine}", targets, engine, adapt, what)
        for what, adapt in (
            ("inference", False),
            ("stream", False),
            ("layers", True),
            ("script", True),
        )
        for engine, targets in _TARGETS.items()
    ),
    Variant("serve", _OWN, what="serve"),
    Variant("serve-testbed", _TARGETS["testbed"], "testbed", what="serve"),
    Variant("serve-ray", _RAY, "ray", what="serve"),
)


@dataclass(frozen=True)
class Shot:
    """One schedule."""

    variant: Variant
    target: str
    signal: str
    phase: str
    when: float
    """Share of the phase."""
    resumed: bool

    @classmethod
    def drawn(cls, variants: Sequence[Variant], seed: int) -> Shot:
        """The schedule of a seed."""
        chance = random.Random(seed)
        # Every command once, in random order, before any of them again.
        round_of_all, place_in_it = divmod(seed, len(variants))
        order = random.Random(round_of_all).sample(list(variants), len(variants))
        variant = order[place_in_it]
        target, name = chance.choice(variant.targets), chance.choice(SIGNALS)
        phase = chance.choice(PHASES)
        if phase == "begin":
            target = "agent" if variant.engine == "torchrun" else "launcher"
        return cls(variant, target, name, phase, chance.random(), chance.random() < 0.5)


@dataclass
class Outcome:
    """What came of a schedule."""

    hit: str = ""
    code: int | None = None
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    error_text: str = ""


# -- processes -------------------------------------------------------------------------------------


def members(mark: str) -> dict[int, list[str]]:
    """Command lines of all processes of a schedule, zombies aside."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found[int(entry.name)] = words
    return found


def parent(pid: int) -> int:
    """Its parent's number, 0 where it is gone."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat[stat.rindex(")") + 2 :].split()[1])
    return 0


def role(pid: int, words: list[str], all_words: dict[int, list[str]], main: int) -> str:
    """What the process is to the run."""
    line = " ".join(words)
    if "placewright.testbed.emulator" in line:
        return "emulator"
    if "multiprocessing.resource_tracker" in line:
        return "tracker"
    if "multiprocessing.forkserver" in line:
        above = " ".join(all_words.get(parent(pid), []))
        return "worker" if "multiprocessing.forkserver" in above else "fork server"
    if "ray::" in line:
        return "worker" if "RayWorker" in line else "idle"
    if "raylet/raylet" in line:
        return "raylet"
    if "gcs_server" in line:
        return "gcs"
    if pid == main:
        return "agent" if "torch.distributed.run" in line else "launcher"
    if ("placewright" in line or "script.py" in line) and parent(pid) == main:
        rank = _environment(pid).get("RANK")
        return {None: "other", "0": "lead"}.get(rank, "keeper")
    return "other"


def find(what: str, mark: str, main: int, chance: random.Random) -> int | None:
    """A process of that role."""
    all_words = members(mark)
    fitting = [p for p, words in all_words.items() if role(p, words, all_words, main) == what]
    return chance.choice(sorted(fitting)) if fitting else None


def _environment(pid: int) -> dict[str, str]:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(line.split("=", 1) for line in lines if "=" in line)
    return {}


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- what is there besides processes ---------------------------------------------------------------


def things(name: str) -> set[str]:
    """Namespaces, control groups and records of the testbeds called `name`."""
    found: set[str] = set()
    for record in Path("/run/placewright").glob("*/testbed.json"):
        with suppress(OSError, ValueError):
            data = json.loads(record.read_text())
            if name in data["cluster"]:
                found.add(str(record.parent))
                spaces = [f"/run/netns/{space}" for space in data["namespaces"]]
                found |= {path for path in (*spaces, *data["groups"]) if Path(path).exists()}
    return found


def folders(where: Path) -> list[str]:
    """What is left in the temporary folder, and is not somebody else's."""
    return sorted(p.name for p in where.iterdir() if not p.name.startswith(OTHERS_FOLDERS))


# -- one schedule ----------------------------------------------------------------------------------


@contextmanager
def started(variant: Variant, folder: Path, mark: str) -> Iterator[subprocess.Popen[str]]:
    """The command, as the leader of a process group; what is left of it is killed at the end."""
    (folder / "tmp").mkdir()
    (folder / "cluster.yaml").write_text(CLUSTER.format(name=mark))
    if variant.samples:
        (folder / "nodes.yaml").write_text(_nodes(mark))
    here = Path(__file__).resolve().parent
    environment = os.environ | {
        MARK: mark,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "PLACEWRIGHT_PATIENCE": f"{PATIENCE:g}",
    }
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            variant.command(folder),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in members(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@cache
def _nodes(mark: str) -> str:
    import yaml

    words = ["-m", "placewright", "samples", "generate", "moderate", "--nodes", "3", "-q"]
    made = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)

    data = yaml.safe_load(made.stdout)
    return yaml.safe_dump(data | {"name": mark})


def run_schedule(shot: Shot, mark: str, usual_s: float) -> Outcome:
    """Start, wait, shoot, wait, look."""
    limit_s = PATIENCE * LIMIT_S
    outcome, chance = Outcome(), random.Random(shot.when)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        with started(shot.variant, folder, mark) as process:
            shoot(shot, mark, process, usual_s, outcome, chance)
            shot_at = time.monotonic()
            if shot.variant.what == "serve":
                _sleep(process, RESUMED_AFTER_S)
                end_server(mark, process)
            try:
                process.wait(limit_s if outcome.hit else max(limit_s, 3 * usual_s))
            except subprocess.TimeoutExpired:
                outcome.faults.append(f"has not ended after {limit_s:g} s: {_stuck(mark, process)}")
            outcome.code, outcome.seconds = process.poll(), time.monotonic() - shot_at
            if outcome.code is not None:
                find_leftovers(shot, mark, folder, outcome)
            outcome.faults += judge(shot, folder, outcome)
            outcome.error_text = _last_words((folder / "err").read_text(errors="replace"))
            if outcome.faults and KEEP is not None:
                kept = KEEP / mark
                kept.mkdir(parents=True, exist_ok=True)
                for each in ("out", "err"):
                    shutil.copy(folder / each, kept / each)
    _clear(mark)
    return outcome


KEEP: Path | None = None
PATIENCE = 1.0
"""Factor of all limits."""


def shoot(
    shot: Shot,
    mark: str,
    process: subprocess.Popen[str],
    usual_s: float,
    outcome: Outcome,
    chance: random.Random,
) -> None:
    """Wait for the moment, then send the signal."""
    first = "worker" if shot.target in COMMANDS else shot.target
    if shot.phase == "begin":
        _sleep(process, PYTHON_S + shot.when * 0.5 * usual_s)
    elif shot.phase == "start":
        _until(process, lambda: find(first, mark, process.pid, chance) is not None)
        _sleep(process, 1.5 * shot.when)
    elif shot.phase == "steady":
        _until(process, lambda: find(first, mark, process.pid, chance) is not None)
        _sleep(process, shot.when * 0.5 * usual_s)
    else:
        _sleep(process, (0.8 + 0.25 * shot.when) * usual_s)
    pid = find(shot.target, mark, process.pid, chance)
    if pid is None or process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        send(shot, pid, process)
        outcome.hit = f"{pid}"
    if shot.signal == "KILL2":
        _sleep(process, PATIENCE * shot.when)
        if (other := find(shot.target, mark, process.pid, chance)) is not None:
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)


def send(shot: Shot, pid: int, process: subprocess.Popen[str]) -> None:
    """The signal; a stopped launcher is continued or killed later."""
    if shot.signal in CTRL_C:
        os.killpg(process.pid, signal.SIGINT)
        if shot.signal == "INT2":
            time.sleep(0.1 + 0.9 * shot.when)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        return
    os.kill(pid, getattr(signal, f"SIG{shot.signal.removesuffix('2')}"))
    if shot.signal == "STOP" and shot.target in COMMANDS:
        time.sleep(RESUMED_AFTER_S)
        os.kill(pid, signal.SIGCONT if shot.resumed else signal.SIGKILL)


def end_server(mark: str, process: subprocess.Popen[str]) -> None:
    """Ask a server to end that does not end by itself."""
    _until(process, lambda: find("worker", mark, process.pid, random.Random(0)) is not None)
    with suppress(ProcessLookupError):
        process.terminate()


def _sleep(process: subprocess.Popen[str], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _until(process: subprocess.Popen[str], so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE * UNDISTURBED_S
    while process.poll() is None and not so() and time.monotonic() < deadline:
        time.sleep(0.02)


def _stuck(mark: str, process: subprocess.Popen[str]) -> str:
    """Who is still there, and how."""
    all_words = members(mark)
    states = []
    for pid, words in all_words.items():
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            state = stat[stat.rindex(")") + 2]
            states.append(f"{role(pid, words, all_words, process.pid)} {pid} {state}")
    return ", ".join(states)


def find_leftovers(shot: Shot, mark: str, folder: Path, outcome: Outcome) -> None:
    """Whether anything is left, some seconds later."""
    deadline = time.monotonic() + PATIENCE * SETTLE_S
    while (members(mark) or things(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    all_words = members(mark)
    if all_words:
        roles = sorted(role(p, w, all_words, 0) for p, w in all_words.items())
        outcome.faults.append(f"processes left: {', '.join(roles)}")
    if left := things(mark):
        outcome.faults.append(f"left: {', '.join(sorted(left))}")
    left_folders = folders(folder / "tmp")
    outright = ("KILL", "KILL2", "STOP", *(["TERM"] if shot.variant.what == "script" else []))
    killed = shot.signal in outright and shot.target in (*COMMANDS, "keeper")
    if left_folders and killed:
        _next_start(folder / "tmp")
        left_folders = folders(folder / "tmp")
    if left_folders:
        outcome.faults.append(f"folders left: {', '.join(left_folders)}")


def _next_start(temporary: Path) -> None:
    code = "from placewright.runtime.scratch import Scratch; Scratch().cleanup()"
    environment = os.environ | {"TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def judge(shot: Shot, folder: Path, outcome: Outcome) -> list[str]:
    """What is wrong with how it ended."""
    faults = []
    err = (folder / "err").read_text(errors="replace")
    if TRACEBACK in _without_torchrun(err):
        faults.append("traceback")
    if UNEXPECTED in err:
        faults.append(UNEXPECTED)
    if outcome.code == 0:
        with suppress(ImportError):
            faults += numbers(shot, folder)
    elif outcome.code is not None and not err.strip() and outcome.code > 0:
        faults.append(f"exit code {outcome.code} without a word")
    return faults


def _without_torchrun(err: str) -> str:
    """Without what torchrun's agent itself prints when it is interrupted or a rank has failed."""
    kept, skipping = [], False
    for line in err.splitlines():
        if line.startswith(("Traceback", "[rank")) or not line.startswith((" ", "\t")):
            skipping = False
        kept.append("" if skipping else line)
    text = "\n".join(kept)
    chains: list[str] = []
    for piece in text.split(TRACEBACK)[1:]:
        if chains and chains[-1].rstrip().endswith(CHAINED):
            chains[-1] += TRACEBACK + piece
        else:
            chains.append(piece)
    outside = [chain for chain in chains if "torch/distributed/run.py" not in chain]
    return TRACEBACK.join(["", *outside]) if outside else ""


def numbers(shot: Shot, folder: Path) -> list[str]:
    """What is wrong with the results of a command that says that all is well."""
    text = (folder / "out").read_text()
    if shot.variant.what == "serve":
        return []
    if not text.strip():
        return ["exit code 0 and no result"]
    data = json.loads(text)
    if shot.variant.samples:
        return _samples_numbers(shot, data)
    if shot.variant.what == "layers":  # its own check has compared the losses
        return [] if data["training"] is not None else ["nothing was trained"]
    faults = []
    unchecked = shot.variant.adapt and shot.signal in CTRL_C  # no check after Ctrl-C
    if data.get("max_abs_error") != 0.0 and not (unchecked and data["check"] is None):
        faults.append(f"--check: {data.get('max_abs_error')}")
    if shot.variant.snapshots:
        done, error = _of_snapshot(folder / "snapshots")
        if done != STEPS and shot.signal not in CTRL_C:
            faults.append(f"the last snapshot is of step {done}")
        if error != 0.0:
            faults.append(f"parameters after {done} steps are off by {error:g}")
    return faults


def _samples_numbers(shot: Shot, data: Any) -> list[str]:
    runs = data.get("runs")
    if runs is None:
        epochs = data["epochs"]
        enough = len(epochs) == 4 or shot.signal in CTRL_C
        finite = all(e["loss"] is not None for e in epochs)
        return [] if enough and finite else [f"epochs: {json.dumps(epochs)[:200]}"]
    if len(runs) < 2 and shot.signal not in CTRL_C:
        return [f"{len(runs)} runs"]
    expected = REFERENCES.get(shot.variant.name, {})
    found = {r["name"]: [e["loss"] for e in r["epochs"]] for r in runs}
    if shot.variant.engine == "testbed":
        return []
    return [f"losses of {n} differ" for n in found if n in expected and found[n] != expected[n]]


REFERENCES: dict[str, dict[str, list[float]]] = {}
"""Losses of undisturbed runs of samples, by command."""


def _of_snapshot(folder: Path) -> tuple[int, float]:
    """Step of the last whole snapshot, and how far its parameters and buffers are from eager's."""
    from safetensors.torch import load_file

    whole = sorted(folder.glob("step-*"))
    if not whole:
        return 0, 0.0
    state: dict[str, Any] = {}
    for file in whole[-1].glob("*.safetensors"):
        state.update(load_file(file))
    step = int(whole[-1].name.rpartition("-")[2])
    expected = _eager(step)
    return step, max(
        (float((state[n] - e).abs().max()) for n, e in expected.items() if n in state), default=9.9
    )


@cache
def _captured() -> Any:
    from placewright.capturing.model import capture_source
    from placewright.capturing.source import load_model

    source = load_model("random_faults:small", None, True, weights=True)
    return source, capture_source(source, training=True)


@cache
def _eager(step: int) -> dict[str, Any]:
    from placewright.operators.check import run_eager

    source, graph = _captured()
    found = run_eager(source, training=True, steps=step).state
    inputs = [i for i in graph.program.inputs if i.role in ("parameter", "buffer")]
    return {i.name: found[i.key] for i in inputs if i.mutated}


def _last_words(err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error:", "interrupted", "terminated"))]
    return (errors or lines or [""])[-1][:150]


def _clear(mark: str) -> None:
    """Take down what a testbed has left, so that the next schedule begins on clean ground."""
    if things(mark):
        from placewright.testbed.record import end, records

        for record in records():
            if mark in record.cluster:
                end(record)


# -- all of them -----------------------------------------------------------------------------------


class Undisturbed:
    """How long each command takes and what it computes, kept in a file from run to run."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.seconds = file, dict[str, float]()
        if file is not None and file.exists():
            data = json.loads(file.read_text())
            self.seconds = data["seconds"]
            REFERENCES.update(data["losses"])

    def of(self, variant: Variant) -> float:
        """Seconds of one; it is started where they are not known yet."""
        if variant.name not in self.seconds:
            self.seconds[variant.name] = usual_seconds(variant, f"{os.getpid()}-u")
            if self.file is not None:
                self.file.write_text(json.dumps({"seconds": self.seconds, "losses": REFERENCES}))
        return self.seconds[variant.name]


def usual_seconds(variant: Variant, number: str) -> float:
    """How long the undisturbed command takes; it must be fine, or nothing else means anything."""
    shot = Shot(variant, "nobody", "KILL", "begin", 0.0, False)
    begun = time.monotonic()
    mark = f"faults-{number}-{variant.name}"
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        with started(variant, folder, mark) as process:
            if variant.what == "serve":
                end_server(mark, process)
            code = process.wait(PATIENCE * UNDISTURBED_S)
            took_s = time.monotonic() - begun
            outcome = Outcome(code=code)
            find_leftovers(shot, mark, folder, outcome)
            faults = outcome.faults + judge(shot, folder, outcome)
            if code not in (0, 143 if variant.what == "serve" else 0) or faults:
                raise RuntimeError(
                    f"{variant.name} undisturbed: exit code {code}, {faults}\n"
                    + (folder / "err").read_text()
                )
            if variant.samples and not variant.adapt:
                data = json.loads((folder / "out").read_text())
                REFERENCES[variant.name] = {
                    r["name"]: [e["loss"] for e in r["epochs"]] for r in data["runs"]
                }
    return took_s


def check(variants: Sequence[Variant], undisturbed: Undisturbed) -> int:
    """Run each command undisturbed; how many fail."""
    bad = 0
    for variant in variants:
        try:
            print(f"{variant.name}: {undisturbed.of(variant):.1f} s", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            bad += 1
            print(error, flush=True)
    return bad


KINDS = ("right numbers", "interrupted or terminated", "clear error", "killed", "not fine")


def _kind(outcome: Outcome) -> str:
    """Which of `KINDS` an outcome is."""
    if outcome.faults or outcome.code is None:
        return KINDS[4]
    if outcome.code < 0:
        return KINDS[3]
    return KINDS[{0: 0, 130: 1, 129: 1, 143: 1}.get(outcome.code, 2)]


def _then(shot: Shot) -> str:
    if shot.signal != "STOP" or shot.target not in COMMANDS:
        return ""
    return ", CONT" if shot.resumed else ", KILL"


def main(  # noqa: PLR0913 - the options of the command line
    *,
    schedules: int = 200,
    seed: int = 0,
    only: tuple[str, ...] = (),
    target: str = "",
    signal_: str = "",
    phase: str = "",
    patience: float = 1.0,
    undisturbed: Path | None = None,
    check_: bool = False,
    minutes: float = 1e9,
    keep: Path | None = None,
) -> int:
    """Print one row per schedule and a summary.

    `target`, `signal_`, `phase`: these only; `patience`: factor of all limits; `undisturbed`: a
    file that keeps what undisturbed runs took and computed; `check_`: these runs only; `minutes`:
    after which no schedule begins; `keep`: a folder for what bad schedules printed.
    """
    global KEEP, PATIENCE
    KEEP, PATIENCE = keep, patience
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    until = time.monotonic() + 60 * minutes
    counts: dict[str, Counter[tuple[str, str]]] = {"signal": Counter(), "command": Counter()}
    variants = [v for v in VARIANTS if not only or v.name in only]
    variants = [v for v in variants if os.geteuid() == 0 or v.engine != "testbed"]
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    usual = Undisturbed(undisturbed)
    if check_:
        return check(variants, usual)
    head = ("target", "signal", "phase", "ended", "after", "verdict", "last words")
    table, fine, missed = Table("schedule", "command", *head, left=9), 0, 0
    changes: dict[str, Any] = {"target": target, "signal": signal_, "phase": phase}
    for number in range(seed, seed + schedules):
        if time.monotonic() > until:
            break
        shot = replace(Shot.drawn(variants, number), **{k: v for k, v in changes.items() if v})
        name = shot.variant.name
        outcome = run_schedule(shot, f"faults-{os.getpid()}-{number}", usual.of(shot.variant))
        counts["signal"][shot.signal, _kind(outcome)] += 1
        counts["command"][name, _kind(outcome)] += 1
        fine += not outcome.faults
        missed += not outcome.hit
        hit = shot.target + ("" if outcome.hit else " (missed)")
        verdict = "; ".join(outcome.faults) or "fine"
        ended = shot.phase, outcome.code, f"{outcome.seconds:.1f} s", verdict
        table.row(number, name, hit, shot.signal + _then(shot), *ended, outcome.error_text)
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in usual.seconds.items())
    done = counts["signal"].total()
    print(f"\n{fine} of {done} fine ({missed} ended before their signal). Undisturbed: {took}\n")
    for what, found in counts.items():
        table = Table(what, "all", *KINDS)
        for name in sorted({each for each, _ in found}):
            row = [found[name, kind] for kind in KINDS]
            table.row(name, sum(row), *row)
        print()
    return int(fine < done)


if __name__ == "__main__":
    run(main)
