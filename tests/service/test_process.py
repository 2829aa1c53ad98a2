"""Jobs on the machines of a real Ray cluster, one of which is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewright.cli.console import ProgressLines
from placewright.errors import InputError, RunError
from placewright.service import process
from placewright.service.process import PROGRESS, JobFolder, RayJobFolder, ray_folders
from placewright.web.client import Client, Job
from tests.other_user import needs_root, run_as_other_user
from tests.planning.test_toy_wing import PackingFiles
from tests.processes import output_of
from tests.ray_machines import ray_machines
from tests.service.serving import Serving
from tests.service.test_jobs import THREE, searching, until

WAIT_S = 240.0
"""Ray takes a minute where others keep the machine busy."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs no job, and one machine that may."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")  # others may keep the machine busy
    pytest.importorskip("ray.job_submission")
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": 0}
    made = ray_machines(head, {"num_cpus": 1}, takes_jobs)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"http://{made.head_node.webui_url}")
    yield made
    made.shutdown()


def takes_jobs(machines: Any) -> None:
    """Raises where the head takes none within half a minute: agents start last."""
    from ray.job_submission import JobSubmissionClient

    end_s = time.monotonic() + 30.0
    while True:
        try:
            JobSubmissionClient(f"http://{machines.head_node.webui_url}").submit_job(
                entrypoint="true", entrypoint_num_cpus=0
            )
        except (RuntimeError, ConnectionError):
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
        else:
            return


def started(client: Client, tmp_path: Path) -> Job:
    """A search that goes on until it is stopped."""
    problem = PackingFiles().write_problem(THREE, tmp_path / "three.json")
    return client.run("packing.plan", file=client.upload(problem), planner="slow")


def test_a_machine_is_lost_in_mid_job(cluster: Any, tmp_path: Path) -> None:
    """The job runs on another one then; cancelled there, it keeps the best plan so far."""
    serving = Serving(tmp_path, "--engine", "ray")
    try:
        lose_a_machine(cluster, serving, tmp_path)
    finally:
        serving.end()


def lose_a_machine(cluster: Any, serving: Serving, tmp_path: Path) -> None:
    """In mid-job, with another one beside it."""
    job = started(serving.start(), tmp_path)
    until(job, searching, WAIT_S)
    (lost,) = cluster.worker_nodes
    cluster.add_node(num_cpus=1)
    cluster.remove_node(lost, allow_graceful=False)
    serving.end()  # the next service finds it
    job = Job(serving.start(), job.id)
    progress = tmp_path / "service" / "jobs" / job.id / "progress.jsonl"
    # A plan of this attempt: before its first one it has nothing to keep.
    until(job, lambda _: '"value"' in progress.read_text().partition('"attempt": 2')[2], WAIT_S)
    job.cancel()
    assert job.wait(time_limit_s=WAIT_S)["value"] == 3.0
    assert job.status()["state"] == "interrupted"


def test_a_lost_attempt_that_still_lives_reports_nothing(tmp_path: Path) -> None:
    """Neither its plans nor its end are those of the attempt that took its place."""
    folder = JobFolder(tmp_path)
    folder.begin_attempt(1)
    lost = ProgressLines(str(folder.progress))
    lost.write(value=3.0)
    with folder.progress.open("a") as file:
        file.write('{"value": 2')  # killed within a line
    folder.begin_attempt(2)
    lost.write(value=1.0)
    lost.end(SystemExit(0))
    assert [line.get("value") for line in folder.lines() if "value" in line] == [3.0]
    assert folder.lines()[-1] == {"attempt": 2}
    assert folder.ending() is None
    ProgressLines(str(folder.progress)).end(SystemExit(3))
    ending = folder.ending()
    assert ending is not None
    assert ending.exit_code == 3


def test_folders_are_packed_and_what_links_name_stays(tmp_path: Path) -> None:
    """A job's own folders become archives; a folder of somebody else does not."""
    folder, other = JobFolder(tmp_path / "job"), tmp_path / "other"
    for made in (folder.out / "exported", other):
        made.mkdir(parents=True)
        (made / "part").touch()
    (folder.out / "linked").symlink_to(other)
    folder.pack()
    assert sorted(each.name for each in folder.out.iterdir()) == ["exported.zip", "linked"]
    assert (other / "part").exists()


def test_a_pipe_that_nobody_reads_is_no_progress_to_wait_for(tmp_path: Path) -> None:
    """Nothing is written, and the command goes on."""
    os.mkfifo(tmp_path / "pipe")
    ProgressLines(str(tmp_path / "pipe")).write(value=1.0)


class BusyHead:
    """Refuses so many submissions, as a head does whose machines have just joined."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def submit_job(self, **_submission: Any) -> None:
        """Take it, or say that there is no machine yet."""
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("Request failed with status code 500: No available agent")

    def get_job_status(self, submission: str) -> None:
        """None was taken."""
        raise RuntimeError(f"Request failed with status code 404: {submission}")

    def get_address(self) -> str:
        """Its own."""
        return "http://head:8265"


def test_a_head_without_a_machine_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For as long as a busy one may take; then the job fails by name."""
    monkeypatch.setattr(RayJobFolder, "poll_s", 0.01)
    head = BusyHead(refusals=3)
    RayJobFolder(head, tmp_path).start(["doctor"], {})
    assert head.refusals == 0
    monkeypatch.setattr(process, "SILENT_S", 0.05)
    with pytest.raises(RunError, match="No available agent") as raised:
        RayJobFolder(BusyHead(refusals=10**6), tmp_path).start(["doctor"], {})
    assert raised.value.where == "http://head:8265"


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        (None, InputError, "is not set"),
        ("auto", InputError, "'auto'"),
        ("http://127.0.0.1:9", RunError, "no Ray cluster answers"),
    ],
)
def test_a_cluster_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, address: str | None, error: type[Exception], words: str
) -> None:
    """None is named, none by its address, none answers."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setitem(os.environ, "RAY_API_SERVER_ADDRESS", address)
    with pytest.raises(error, match=words):
        ray_folders()


@needs_root
def test_a_process_of_another_user_is_not_that_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though he gives it the variable: the job would never end, and its service be his."""
    folder = JobFolder(tmp_path)
    monkeypatch.setenv(PROGRESS, str(folder.progress))
    script = 'print("up", flush=True)\nsys.stdin.read()'
    other = run_as_other_user(script, tmp_path / "executed", [])
    assert other.stdout is not None
    assert other.stdout.readline() == "up\n"
    assert not folder.is_running()
    assert folder.variable(PROGRESS) is None
    assert output_of(other) == ""
