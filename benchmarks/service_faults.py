"""Kill the service or a job's process at random moments, and count jobs that are lost.

    python benchmarks/service_faults.py --moments 30

Every accepted job must end in a state. One that only plans is started at most twice, one that does
more at most once. Run from the root of the repository: the wing is that of the tests.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.planning.test_toy_wing import EIGHT, PackingFiles
from tests.service.serving import Serving

from harness import run
from placewright.errors import PlacewrightError
from placewright.service.process import JobFolder
from placewright.web.client import ENDED, Client, Job

LIMIT_S = 300.0


def main(*, moments: int = 30, seed: int = 0) -> None:
    """Kill, start again, and count."""
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder), "--jobs", "2")
        client = serving.start()
        file = client.upload(PackingFiles().write_problem(EIGHT, Path(folder) / "eight.json"))
        accepted, killed = list[str](), Counter[str]()
        for _ in range(moments):
            accepted += start(client, file)
            time.sleep(chosen.uniform(0.0, 3.0))
            client, what = kill(serving, client, accepted, chosen)
            killed[what] += 1
        end_s = time.monotonic() + LIMIT_S
        states = dict.fromkeys(accepted, "")
        while not all(state in ENDED for state in states.values()):
            states = {id: Job(client, id).status()["state"] for id in accepted}
            if time.monotonic() > end_s:
                break
            time.sleep(0.5)
        attempts = {id: attempts_of(Path(folder), id) for id in accepted}
        serving.end()
    report(states, attempts, killed)


def start(client: Client, file: str) -> list[str]:
    """Two jobs: one that may run twice, and one that may not."""
    planned = client.run("packing.plan", file=file, planner="shuffled")
    executed = client.run("packing.run", steps=20)
    return [planned.id, executed.id]


def kill(
    serving: Serving, client: Client, accepted: list[str], chosen: random.Random
) -> tuple[Client, str]:
    """Kill the service and start it again, or the process of a job that runs."""
    if chosen.random() < 0.6:
        serving.end(signal.SIGKILL)
        return serving.start(), "service"
    for id in accepted[::-1]:
        process = JobFolder(serving.folder / "service" / "jobs" / id).process()
        if process is not None:
            os.kill(process, signal.SIGKILL)
            return client, "job"
    return client, "nothing"


def attempts_of(folder: Path, id: str) -> int:
    """How often a process was started for a job."""
    lines = JobFolder(folder / "service" / "jobs" / id).lines()
    return sum("attempt" in line for line in lines)


def report(states: dict[str, str], attempts: dict[str, int], killed: Counter[str]) -> None:
    """Print the counts; exit with 1 where a job is lost without a word, or ran too often."""
    most = [2, 1] * (len(states) // 2)
    wrong = [id for id, n in zip(states, most, strict=True) if attempts[id] > n]
    wrong += [id for id, state in states.items() if state not in ENDED]
    print(f"killed: {dict(killed)}")
    print(f"{len(states)} jobs accepted: {dict(Counter(states.values()))}")
    print(f"started: {dict(Counter(attempts.values()))} times")
    print(f"wrong: {wrong or 'none'}")
    if wrong:
        raise PlacewrightError("jobs were lost or ran twice", by=str(len(wrong)))


if __name__ == "__main__":
    run(main)
