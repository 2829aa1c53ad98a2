"""Compare moving samples with rsync, on the four nodes of `samples_run`, a testbed.

    sudo python benchmarks/samples_rsync.py [--rounds 3] [--bytes 3000 30000 120000]

Both move the files of the same plan, in turns: ours from the first transfer to the last; rsync,
without encryption, by a daemon on every node and one process for each pair of nodes, those of a
sender one after another (``--remove-source-files --files-from``), until the last has ended.
Afterwards every file is looked for: on exactly one node, checksum equal. The links alone would
take the seconds of the last column.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from harness import run
from placewright.planning.contract import Context, proposal_of
from placewright.report.text import plain_table
from placewright.samples.data import Shard, audit, deal
from placewright.samples.judge import judge
from placewright.samples.move import move, transfers_of
from placewright.samples.mover import SampleTransfer
from placewright.samples.nodes import Nodes, nodes_up
from placewright.samples.plan import SamplePlan
from placewright.samples.planners import planners
from placewright.samples.problem import SampleProblem
from samples_run import nodes

PORT = 8730
READY_S = 0.5
"""Until the daemons listen."""


class Labelled:
    """As many samples of each class as any node could ask for; files are filled up anyhow."""

    def __init__(self, problem: SampleProblem) -> None:
        self.classes, self.count = problem.k, problem.k * int(problem.samples.sum(axis=0).max())

    def __len__(self) -> int:
        return self.count

    def arrays(self, k: int) -> Sequence[np.ndarray[Any, Any]]:
        """One number."""
        return [np.array([k])]

    def label(self, k: int) -> int:
        """Its class."""
        return k % self.classes


@contextmanager
def daemons(problem: SampleProblem, up: Nodes, shards: list[Shard]) -> Iterator[None]:
    """One on each node, which writes to the node's samples."""
    with ExitStack() as stack:
        for name, shard in zip(problem.node_names, shards, strict=True):
            config = shard.folder / "rsyncd.conf"
            config.write_text(
                f"use chroot = no\n[samples]\npath = {shard.folder / 'samples'}\n"
                "read only = no\nuid = 0\ngid = 0\n"
            )
            command = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={PORT}"]
            process = subprocess.Popen(command, preexec_fn=up.bed.handle(name).enter)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        time.sleep(READY_S)
        yield


def by_rsync(
    problem: SampleProblem, up: Nodes, shards: list[Shard], transfers: list[SampleTransfer]
) -> float:
    """Seconds until everything has moved."""

    def send(source: int, lists: dict[int, Path]) -> None:
        for target, names in lists.items():
            address = up.bed.address(problem.node_names[target])
            folder = shards[source].folder / "samples"
            command = ["rsync", "-a", "--remove-source-files", f"--files-from={names}"]
            command += [f"{folder}/", f"rsync://{address}:{PORT}/samples/"]
            handle = up.bed.handle(problem.node_names[source])
            subprocess.run(command, check=True, preexec_fn=handle.enter)

    threads = []
    for source, shard in enumerate(shards):
        lists = {}
        for target in range(problem.n):
            pairs = [t for t in transfers if (t.source, t.target) == (source, target)]
            if samples := [s for t in pairs for s in t.samples]:
                lists[target] = shard.folder / f"to-{target}"
                lists[target].write_text("".join(f"{s}.npz\n" for s in samples))
        threads.append(Thread(target=send, args=(source, lists)))
    with daemons(problem, up, shards):
        begun_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begun_s


def one(
    problem: SampleProblem, plan: SamplePlan, up: Nodes, sample_bytes: int, *, rsync: bool
) -> float:
    """Deal the files, move them, look for each of them; seconds of the move."""
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        dealt = deal(problem, Labelled(problem), Path(folder), file_bytes=sample_bytes)
        shards, digests = dealt
        if not rsync:
            return move(problem, plan, shards, digests, workers=up.workers).move_s
        took_s = by_rsync(problem, up, shards, transfers_of(problem, plan))
        audit(shards, digests)
        return took_s


def main(*, rounds: int = 3, bytes_: tuple[int, ...] = (3000, 30_000, 120_000)) -> None:
    """Print the table, medians with the single runs."""
    if shutil.which("rsync") is None:
        raise SystemExit("install rsync")
    rows = []
    for sample_bytes in bytes_:
        problem = nodes(sample_bytes)
        plan = proposal_of(planners(problem)["lp"](problem, Context())).plan
        link_s = float(judge(problem, plan).moved_s.max())
        with nodes_up(problem) as up:
            one(problem, plan, up, sample_bytes, rsync=False)  # processes start
            found = [
                [one(problem, plan, up, sample_bytes, rsync=rsync) for rsync in (False, True)]
                for _ in range(rounds)
            ]
        for name, taken in zip(("move", "rsync"), zip(*found, strict=True), strict=True):
            runs = " ".join(f"{each:.2f}" for each in taken)
            count = str(int(plan.count.sum()))
            cells = f"{median(taken):.2f}", runs, f"{link_s:.2f}"
            rows.append((f"{sample_bytes:,}", count, name, *cells))
    print(plain_table(("bytes", "files", "by", "s", "runs", "links alone"), rows, "rr rlr"))


if __name__ == "__main__":
    run(main)
