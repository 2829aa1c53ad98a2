"""Check that every command ends by itself, and whole, when faults hit it at random moments.

    python benchmarks/random_faults.py [--schedules 200] [--seed 0] [--only NAME] [--patience 1]
    python benchmarks/random_faults.py --check     # every command undisturbed, nothing else

Each schedule starts one command of `fault_commands.VARIANTS`, in an order that has each of them
once before any of them again: on local workers, a testbed, torchrun and Ray ``operators run``
(training with and without ``--adapt``, inference, a stream), ``layers run`` and a Python script
that calls ``place``; ``samples run``, ``requests serve`` and others where they run. It waits for a
random moment of one phase and does one thing, or two, to one of its processes or files:

    begin     before the first worker: imports, capture, profile, planning
    start     within a second after the target's process has come up: joining, loading, first steps
    steady    any later moment
    ending    around the moment at which an undisturbed run ends

    KILL, TERM, INT (Ctrl-C: to the whole process group, as a terminal does), STOP; INT2: Ctrl-C
    twice; KILL2: two processes of that kind, one after another
    FULL: the disk of the results, or of temporary files; LOCK: nothing may be made or removed in
    the folder of the results; HEAD: the reader of stdout leaves (``| head``); CUT: connections of a
    process are aborted

A server is asked to end (TERM) where the fault has left it running.
A launcher (or torchrun's agent) that is stopped is continued, or killed, after some seconds:
nothing else could end it. Every other process stays stopped. Half of the disks are given space
again after some seconds, the others when the command has ended.

A schedule is fine where, within 60 s after the fault (or after it was continued),
- the command has ended,
- it exited with 0 and its numbers are right, or with another documented code and words, and there
  is neither a traceback nor an unexpected error on stderr: the parameters of ``operators run
  --adapt`` are compared with eager PyTorch, ``--check`` compares those of the others; losses of
  ``samples run`` with those of an undisturbed run,
- every file of the results is that of before, or whole,
- nothing is left 10 s later: processes, network namespaces, control groups, devices, folders,
  shared memory. Only what a launcher that was killed outright had in the temporary folder may wait
  for the next start,
- the same command again ends with 0, and goes on from what was left where there is something.

On a busy machine ``--patience 4`` multiplies these limits, and those of the commands, by four; what
goes on there after its fault may take half as much again as undisturbed. The
exit code is 1 where a schedule is not fine. Root is needed for testbeds, and for all that happens
to files and connections; without it they are left out.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from fault_commands import REFERENCES, SERVERS, VARIANTS, Users, Variant, half_written, numbers
from harness import Table, run
from placewright.web.client import ENDED

MARK = "PLACEWRIGHT_FAULTS"
"""In the environment of every process of a schedule."""

PHASES = ("begin", "start", "steady", "ending")
SIGNALS = ("KILL", "KILL", "KILL2", "STOP", "STOP", "INT", "INT2", "TERM")
FILE_FAULTS = ("FULL", "FULL", "LOCK", "HEAD", "CUT")
DISK_BYTES = 48 << 20
"""Of the results of a command, and of its temporary files."""

CODES = (0, 1, 2, 3, 129, 130, 143)
"""That are documented; a negative one is that of a signal that nothing can answer."""
CTRL_C = ("INT", "INT2")
RESUMED_AFTER_S = 8.0
TRACEBACK = "Traceback (most recent call last)"
UNEXPECTED = "this should not happen"
CHAINED = "During handling of the above exception, another exception occurred:"
PYTHON_S = 1.0
"""Before the first line of the command Python itself prints a traceback at Ctrl-C."""

COMMANDS = ("launcher", "agent", "lead")
"""Processes that somebody has started: who stops one of them lets it go on or kills it."""
ROOT = os.geteuid() == 0

FILLER = "filler"
"""File that fills a disk."""

LIMIT_S, SETTLE_S = 60.0, 10.0
"""A command has to end after its fault, and its processes after it."""

UNDISTURBED_S = 300.0
"""No command takes longer, nor has one that has no worker by then."""

RAY_ACTORS = ("RayWorker", "ServerActor")
"""Classes of Ray actors that are workers, as their command lines name them."""

OTHERS_FOLDERS = ("torchelastic_", "ray", "torchinductor_", "nccl-")
"""Of torchrun, Ray and PyTorch: what their own killed processes leave is not ours to remove."""


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

    @property
    def of_process(self) -> bool:
        """Whether it hits a process."""
        return self.signal not in ("FULL", "LOCK", "HEAD")

    @property
    def stays(self) -> bool:
        """Whether a disk stays full until the command has ended."""
        return not self.resumed

    @property
    def outright(self) -> bool:
        """Whether a command is ended without being able to do anything."""
        deadly = ("KILL", "KILL2", "STOP")
        scripts = ["TERM"] if self.variant.what in ("script", "train-samples") else []
        return self.signal in (*deadly, *scripts) and self.target in (*COMMANDS, "keeper", "job")

    @classmethod
    def drawn(cls, variants: Sequence[Variant], seed: int, signals: Sequence[str] = ()) -> Shot:
        """The schedule of a seed. `signals`: these only, where the command can have them."""
        chance = random.Random(seed)
        # Every command once, in random order, before any of them again.
        round_of_all, place_in_it = divmod(seed, len(variants))
        order = random.Random(round_of_all).sample(list(variants), len(variants))
        variant = order[place_in_it]
        faults = SIGNALS + (FILE_FAULTS if variant.engine == "local" and ROOT else ())
        faults = tuple(each for each in faults if each in signals) or faults
        target, name = chance.choice(variant.targets), chance.choice(faults)
        phase = chance.choice(PHASES)
        if phase == "begin":
            target = "agent" if variant.engine == "torchrun" else "launcher"
        if name in ("FULL", "LOCK", "HEAD"):
            disks = ("results", "tmp") if variant.what != "service" else ("results",)
            target = {"FULL": chance.choice(disks), "LOCK": "results"}.get(name, "stdout")
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
        return "worker" if any(kind in line for kind in RAY_ACTORS) else "idle"
    if "raylet/raylet" in line:
        return "raylet"
    if "gcs_server" in line:
        return "gcs"
    if "placewright.service.process" in line or (parent(pid) == main and "operators plan" in line):
        return "job"
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
def disks(folder: Path, variant: Variant) -> Iterator[None]:
    """Folders of results and of temporary files, each a disk of its own where it may be filled."""
    made = [folder / "results", folder / "tmp"]
    small = ROOT and variant.engine == "local"
    for each in made:
        each.mkdir()
        if small:
            size = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs"]
            subprocess.run(["mount", *size, str(each)], check=True)
    try:
        yield
    finally:
        end_faults_of_files(folder)
        for each in made if small else ():
            subprocess.run(["umount", "-l", str(each)], check=True)


@contextmanager
def started(variant: Variant, folder: Path, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, as the leader of a process group; what is left of it is killed at the end.

    Its stdout goes through a pipe to the file ``out``, until the reader leaves (`READERS`).
    """
    here = Path(__file__).resolve().parent
    environment = os.environ | {
        MARK: mark,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "PLACEWRIGHT_PATIENCE": f"{PATIENCE:g}",
    }
    (folder / "out").write_bytes(b"")
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            variant.command(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
    assert process.stdout is not None
    reader = READERS[mark] = Reader(process.stdout, folder / "out")
    try:
        yield process
    finally:
        for pid in members(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        reader.leave()
        del READERS[mark]


class Reader(threading.Thread):
    """Copies what a command prints to a file, until it ends or the reader leaves."""

    def __init__(self, pipe: IO[bytes], file: Path) -> None:
        super().__init__(daemon=True)
        self.pipe, self.file, self.left = pipe, file, False
        self.start()

    def run(self) -> None:
        """Copy."""
        with self.file.open("ab", buffering=0) as out:
            while not self.left:
                ready, _, _ = select.select([self.pipe], [], [], 0.05)
                if ready:
                    data = os.read(self.pipe.fileno(), 1 << 16)
                    if not data:
                        return
                    out.write(data)

    def finish(self) -> None:
        """Wait for what is still on its way."""
        self.join(1.0)

    def leave(self) -> None:
        """Close the pipe."""
        self.left = True
        self.join()
        self.pipe.close()


READERS: dict[str, Reader] = {}
"""Of commands that run, by mark."""


def run_schedule(shot: Shot, mark: str, usual_s: float) -> Outcome:
    """Start, wait, shoot, wait, look, and start again."""
    outcome, chance, variant = Outcome(), random.Random(shot.when), shot.variant
    with tempfile.TemporaryDirectory(prefix="faults-") as name, disks(Path(name), shot.variant):
        folder = Path(name)
        variant.prepare(folder, mark)
        shared, users = shared_memory(), Users(variant, folder)
        with started(variant, folder, mark) as process:
            with users.working():
                shoot(shot, mark, folder, process, usual_s, outcome, chance)
                shot_at = time.monotonic()
                if variant.what in SERVERS:
                    _sleep(process, RESUMED_AFTER_S)
                    if not shot.stays:
                        end_faults_of_files(folder)
                    end_server(variant, mark, process)
            # On a busy machine a run that goes on may take longer than any limit for one that ends.
            goes_on_s = 1.5 * usual_s if PATIENCE > 1 else 0.0
            limit_s = max(PATIENCE * LIMIT_S, goes_on_s if outcome.hit else 3 * usual_s)
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                outcome.faults.append(f"has not ended after {limit_s:g} s: {_stuck(mark, process)}")
            outcome.code, outcome.seconds = process.poll(), time.monotonic() - shot_at
            if outcome.code is not None:
                find_leftovers(shot, mark, folder, outcome, shared)
            READERS[mark].finish()
            outcome.faults += judge(shot, folder, outcome)
            outcome.faults += users.faults(killed=shot.outright or outcome.code != 0)
        end_faults_of_files(folder)
        outcome.faults += half_written(folder / "results", killed=shot.outright)
        outcome.error_text = _last_words((folder / "err").read_text(errors="replace"))
        if outcome.faults and KEEP is not None:
            shutil.copytree(folder, KEEP / mark, ignore=_no_files, dirs_exist_ok=True)
        if variant.repeated and outcome.code is not None and outcome.hit:
            outcome.faults += again(variant, f"{mark}-again", folder, users, usual_s)
    _clear(mark)
    return outcome


def again(variant: Variant, mark: str, folder: Path, users: Users, usual_s: float) -> list[str]:
    """What is wrong with the same command once more, on what the first one has left."""
    faults = []
    with started(variant, folder, mark) as process:
        if variant.what == "service":
            faults += jobs_lost(users)
            process.terminate()
        try:
            code = process.wait(PATIENCE * LIMIT_S + 3 * usual_s)
            if code not in (0, 143 if variant.what == "service" else 0):
                faults.append(f"again: exit code {code}")
        except subprocess.TimeoutExpired:
            faults.append(f"again: has not ended: {_stuck(mark, process)}")
    words = (folder / "err").read_text(errors="replace")
    faults += ["again: traceback"] if TRACEBACK in words else []
    faults += [f"again: {each}" for each in half_written(folder / "results", killed=False)]
    if faults and KEEP is not None:
        shutil.copytree(folder, KEEP / mark, ignore=_no_files, dirs_exist_ok=True)
    return [f"{each} ({_last_words(words)})" for each in faults]


def jobs_lost(users: Users) -> list[str]:
    """Jobs that the service had accepted, and that do not end in a state, or are unknown."""
    import placewright

    users.ends.clear()
    url = users.url()
    if not url:
        return []
    service, faults = placewright.connect(url), []
    for id in users.jobs:
        deadline = time.monotonic() + PATIENCE * 30
        state = ""
        while state not in ENDED and time.monotonic() < deadline:
            with suppress(placewright.PlacewrightError):
                state = str(service.ask("GET", f"jobs/{id}")["state"])
            time.sleep(0.2)
        if state not in ENDED:
            faults.append(f"job {id} is {state or 'unknown'}")
    return faults


KEEP: Path | None = None
PATIENCE = 1.0
"""Factor of all limits."""


def shoot(
    shot: Shot,
    mark: str,
    folder: Path,
    process: subprocess.Popen[bytes],
    usual_s: float,
    outcome: Outcome,
    chance: random.Random,
) -> None:
    """Wait for the moment, then do it."""
    first = shot.target if shot.of_process and shot.target not in COMMANDS else "worker"
    there = lambda: find(first, mark, process.pid, chance) is not None  # noqa: E731
    never = first not in shot.variant.targets  # no such process: the moment is one of time
    if shot.phase == "begin":
        _sleep(process, PYTHON_S + shot.when * 0.5 * usual_s)
    elif shot.phase in ("start", "steady") and not never:
        _until(process, there)
        _sleep(process, 1.5 * shot.when if shot.phase == "start" else shot.when * 0.5 * usual_s)
    elif shot.phase in ("start", "steady"):
        _sleep(process, PYTHON_S + shot.when * usual_s)
    else:
        _sleep(process, (0.8 + 0.25 * shot.when) * usual_s)
    if process.poll() is not None:
        return
    if not shot.of_process:
        outcome.hit = fault_of_files(shot, mark, folder)
        return
    pid = find(shot.target, mark, process.pid, chance)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        send(shot, pid, process)
        outcome.hit = f"{pid}"
    if shot.signal == "KILL2":
        _sleep(process, PATIENCE * shot.when)
        if (other := find(shot.target, mark, process.pid, chance)) is not None:
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)


def send(shot: Shot, pid: int, process: subprocess.Popen[bytes]) -> None:
    """The signal; a stopped command, or job of a service, is continued or killed later."""
    if shot.signal == "CUT":
        abort_connections(pid)
        return
    if shot.signal in CTRL_C:
        os.killpg(process.pid, signal.SIGINT)
        if shot.signal == "INT2":
            time.sleep(0.1 + 0.9 * shot.when)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        return
    os.kill(pid, getattr(signal, f"SIG{shot.signal.removesuffix('2')}"))
    if shot.signal == "STOP" and shot.target in (*COMMANDS, "job"):
        time.sleep(RESUMED_AFTER_S)
        os.kill(pid, signal.SIGCONT if shot.resumed else signal.SIGKILL)


def abort_connections(pid: int) -> None:
    """Abort every TCP connection of a process, as a link that is gone does in the end."""
    words = subprocess.run(["ss", "-Htnp"], capture_output=True, text=True, check=True).stdout
    for line in words.splitlines():
        if f"pid={pid}," in line:
            source, target = (end.rpartition(":")[2] for end in line.split()[3:5])
            ends = ["sport", "=", f":{source}", "and", "dport", "=", f":{target}"]
            subprocess.run(["ss", "-HKtn", *ends], capture_output=True, check=False)


def fault_of_files(shot: Shot, mark: str, folder: Path) -> str:
    """Fill a disk, lock a folder, or leave stdout; what was hit."""
    where = folder / shot.target
    if shot.signal == "HEAD":
        READERS[mark].leave()
    elif shot.signal == "LOCK":
        subprocess.run(["chattr", "+i", str(where)], check=True)
    else:
        with suppress(OSError), (where / FILLER).open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    if not shot.stays and shot.variant.what not in SERVERS:
        threading.Timer(RESUMED_AFTER_S, end_faults_of_files, (folder,)).start()
    return str(where)


def end_faults_of_files(folder: Path) -> None:
    """Give disks space again, and let folders be written."""
    for where in (folder / "results", folder / "tmp"):
        if where.exists() and ROOT:
            subprocess.run(["chattr", "-i", str(where)], capture_output=True, check=False)
            (where / FILLER).unlink(missing_ok=True)


def shared_memory() -> set[str]:
    """Names of segments that are not mapped by any process that lives."""
    names = {each.name for each in Path("/dev/shm").iterdir()}
    if names:
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                names = {name for name in names if f"/dev/shm/{name}" not in text}
    return names


def end_server(variant: Variant, mark: str, process: subprocess.Popen[bytes]) -> None:
    """Ask a server to end that does not end by itself."""
    if "worker" in variant.targets:
        _until(process, lambda: find("worker", mark, process.pid, random.Random(0)) is not None)
    with suppress(ProcessLookupError):
        process.terminate()


def _sleep(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _until(process: subprocess.Popen[bytes], so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE * UNDISTURBED_S
    while process.poll() is None and not so() and time.monotonic() < deadline:
        time.sleep(0.02)


def _stuck(mark: str, process: subprocess.Popen[bytes]) -> str:
    """Who is still there, and how."""
    all_words = members(mark)
    states = []
    for pid, words in all_words.items():
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            state = stat[stat.rindex(")") + 2]
            states.append(f"{role(pid, words, all_words, process.pid)} {pid} {state}")
    return ", ".join(states)


def find_leftovers(shot: Shot, mark: str, folder: Path, outcome: Outcome, shared: set[str]) -> None:
    """Whether anything is left, some seconds later."""
    # Jobs go on when their service has ended.
    settle_s = LIMIT_S if shot.variant.what == "service" else SETTLE_S
    deadline = time.monotonic() + PATIENCE * settle_s
    while (members(mark) or things(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    all_words = members(mark)
    if all_words:
        roles = sorted(role(p, w, all_words, 0) for p, w in all_words.items())
        outcome.faults.append(f"processes left: {', '.join(roles)}")
    if left := things(mark):
        outcome.faults.append(f"left: {', '.join(sorted(left))}")
    left_folders = folders(folder / "tmp")
    left_folders = [each for each in left_folders if each != FILLER]
    if more := shared_memory() - shared:
        time.sleep(1.0)  # of another program, which has only made it then
        more &= shared_memory()
    if more:
        outcome.faults.append(f"shared memory left: {', '.join(sorted(more))}")
    if left_folders and shot.outright:
        _next_start(folder / "tmp")
        left_folders = folders(folder / "tmp")
    if left_folders:
        outcome.faults.append(f"folders left: {', '.join(left_folders)}")


def _next_start(temporary: Path) -> None:
    code = "from placewright.io.scratch import Scratch; Scratch().cleanup()"
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
    if outcome.code is not None and outcome.code > 0 and outcome.code not in CODES:
        faults.append(f"exit code {outcome.code}")
    if outcome.code == 0 and shot.signal != "HEAD":
        with suppress(ImportError):
            faults += numbers(shot.variant, folder, interrupted=shot.signal in CTRL_C)
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
    outside = [chain for chain in chains if not _of_torchrun(chain)]
    return TRACEBACK.join(["", *outside]) if outside else ""


def _of_torchrun(chain: str) -> bool:
    """Whether a traceback is torchrun's own; before it executes a line it imports PyTorch."""
    importing = "_get_module_details" in chain and "/torch/__init__.py" in chain
    return "torch/distributed/run.py" in chain or (importing and "/placewright/" not in chain)


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
            if data.get("processor") == processor():
                self.seconds = data["seconds"]
                REFERENCES.update(data["losses"])

    def of(self, variant: Variant) -> float:
        """Seconds of one; it is started where they are not known yet."""
        if variant.name not in self.seconds:
            self.seconds[variant.name] = usual_seconds(variant, f"{os.getpid()}-u")
            if self.file is not None:
                kept = {"seconds": self.seconds, "losses": REFERENCES, "processor": processor()}
                self.file.write_text(json.dumps(kept))
        return self.seconds[variant.name]


def processor() -> str:
    """The processor's model and flags: others round otherwise."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return " ".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


def usual_seconds(variant: Variant, number: str) -> float:
    """How long the undisturbed command takes; it must be fine, or nothing else means anything."""
    shot = Shot(variant, "nobody", "KILL", "begin", 0.0, False)
    mark = f"faults-{number}-{variant.name}"
    with tempfile.TemporaryDirectory(prefix="faults-") as name, disks(Path(name), variant):
        folder = Path(name)
        variant.prepare(folder, mark)
        shared, users = shared_memory(), Users(variant, folder)
        begun = time.monotonic()
        with started(variant, folder, mark) as process:
            with users.working():
                if variant.what in SERVERS:
                    _sleep(process, RESUMED_AFTER_S)
                    end_server(variant, mark, process)
            code = process.wait(PATIENCE * UNDISTURBED_S)
            took_s = time.monotonic() - begun
            outcome = Outcome(code=code)
            find_leftovers(shot, mark, folder, outcome, shared)
            READERS[mark].finish()
            faults = outcome.faults + judge(shot, folder, outcome)
            faults += half_written(folder / "results", killed=False) + users.faults(killed=False)
            if code not in (0, 143 if variant.what in SERVERS else 0) or faults:
                raise RuntimeError(
                    f"{variant.name} undisturbed: exit code {code}, {faults}\n"
                    + (folder / "err").read_text()
                )
            if variant.what == "samples" and not variant.adapt:
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


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Sockets and pipes, which cannot be copied."""
    found = [(name, Path(folder, name)) for name in names]
    return [name for name, path in found if not (path.is_file() or path.is_dir())]


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
    signal_: tuple[str, ...] = (),
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
    changes: dict[str, Any] = {"target": target, "phase": phase}
    for number in range(seed, seed + schedules):
        if time.monotonic() > until:
            break
        shot = replace(
            Shot.drawn(variants, number, signal_), **{k: v for k, v in changes.items() if v}
        )
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
