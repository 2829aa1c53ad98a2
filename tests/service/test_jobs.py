"""Jobs end to end, with real processes: done, failed, cancelled, killed, found again."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from dbos._serialization import DefaultSerializer

from placewright.errors import InfeasibleError, InputError, RunError
from placewright.service.jobs import load_only_data
from placewright.service.process import JobFolder
from placewright.service.server import _locked
from placewright.web.client import Client, Job
from tests.other_user import UID, needs_root
from tests.planning.test_toy_wing import Packing, PackingFiles
from tests.service.serving import Serving

LIMIT_S = 60.0

THREE = Packing((6, 6, 6), 10)
"""Three bins, and a bound of two: a search that is stopped has proved nothing."""


@pytest.fixture
def packing(client: Client, tmp_path: Path) -> str:
    """The name of a stored problem."""
    return client.upload(PackingFiles().write_problem(THREE, tmp_path / "three.json"))


def until(
    job: Job, condition: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """The first status for which something holds."""
    end_s = time.monotonic() + limit_s
    while not condition(status := job.status()):
        assert time.monotonic() < end_s, status
        time.sleep(0.05)
    return status


def searching(status: dict[str, Any]) -> bool:
    """Whether a plan was found and the search goes on."""
    return status["progress"] is not None and status["progress"]["value"] is not None


def test_a_wing_of_one_file_is_planned_by_a_job(
    client: Client, packing: str, tmp_path: Path
) -> None:
    """Result, head, page, log and a stored plan that the next job names."""
    job = client.run("packing.plan", file=packing, planner="shuffled")
    assert job.wait(time_limit_s=LIMIT_S)["value"] == 3.0
    status = job.status()
    assert status["state"] == "done"
    assert status["summary"]["planner"] == "shuffled"
    assert "3 bins" in job.report(tmp_path / "page.html").read_text()
    assert "wrote" in job.log()
    plan = f"packing-plan-{job.id[-6:]}.json"
    beside = [tmp_path / "three.json"]
    again = client.run("packing.simulate", file=packing, plan=plan, beside=beside)
    assert again.wait(time_limit_s=LIMIT_S)["value"] == 3.0
    (uploaded,) = again.status()["options"]["beside"]
    assert uploaded.startswith("three")


def test_a_failure_has_the_four_parts_of_its_error(client: Client, packing: str) -> None:
    """As the command prints them."""
    job = client.run("packing.plan", file=packing, planner="shufled")
    with pytest.raises(RunError, match="unknown planner") as raised:
        job.wait(time_limit_s=LIMIT_S)
    assert raised.value.hint == "did you mean 'shuffled'?"
    assert job.status()["state"] == "failed"


def test_no_plan_is_infeasible(client: Client, tmp_path: Path) -> None:
    """Exit code 3 of the command."""
    source = tmp_path / "large.json"
    source.write_text(json.dumps({"items": [5], "capacity": 3}))
    job = client.run("packing.plan", file=source, planner="first-fit")
    with pytest.raises(InfeasibleError):
        job.wait(time_limit_s=LIMIT_S)
    assert job.status()["state"] == "infeasible"


def test_cancel_keeps_the_best_and_retry_starts_again(client: Client, packing: str) -> None:
    """A search that is cancelled is interrupted, and its plan is stored."""
    job = client.run("packing.plan", file=packing, planner="slow")
    until(job, searching)
    job.cancel()
    assert job.wait(time_limit_s=LIMIT_S)["status"] == "INTERRUPTED"
    assert job.status()["state"] == "interrupted"
    again = Job(client, client.ask("POST", f"jobs/{job.id}/retry", b"")["id"])
    assert again.status()["retry_of"] == job.id
    again.cancel()
    until(again, lambda status: status["ended_s"] is not None)
    assert again.status()["state"] in ("cancelled", "interrupted")


def test_a_run_that_is_cancelled_is_not_done(client: Client) -> None:
    """Though it keeps what it has, a folder packed, and ends as if all were well."""
    job = client.run("packing.run", steps=3000, folder=True)
    status = until(job, lambda status: status["progress"] is not None)
    assert status["progress"]["names"][:2] == ["a step takes", "predicted"]
    job.cancel()
    assert job.wait(time_limit_s=LIMIT_S) == {"steps": 3000}
    status = job.status()
    assert (status["state"], status["outputs"]) == ("interrupted", ["exported.zip", "result.json"])
    packed = ZipFile(BytesIO(client.ask("GET", f"jobs/{job.id}/outputs/exported.zip")))
    assert packed.read("parts/first.txt") == b"of two"


def test_events_are_sent_once_and_go_on_where_they_were(
    serving: Serving, client: Client, packing: str
) -> None:
    """State, progress and log; `Last-Event-ID` leaves out what was sent."""
    job = client.run("packing.plan", file=packing, planner="shuffled")
    job.wait(time_limit_s=LIMIT_S)
    path = f"/api/v1/jobs/{job.id}/events"
    events = _events(serving.request("GET", path)[1])
    kinds = [kind for _, kind, _ in events]
    assert kinds[-1] == "state"
    assert {"progress", "log"} <= set(kinds)
    last = events[-1][0]
    again = _events(serving.request("GET", path, {"Last-Event-ID": last})[1])
    assert [kind for _, kind, _ in again] == ["state"]


def _events(body: bytes) -> list[tuple[str, str, Any]]:
    found = []
    for block in body.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_jobs_survive_the_end_of_the_service(tmp_path: Path) -> None:
    """Killed while one job runs and one waits: both end, each started once."""
    serving = Serving(tmp_path)
    client = serving.start()
    packing = client.upload(PackingFiles().write_problem(THREE, tmp_path / "three.json"))
    running = client.run("packing.plan", file=packing, planner="slow")
    waiting = client.run("packing.plan", file=packing, planner="first-fit")
    until(running, searching)
    process = JobFolder(tmp_path / "service" / "jobs" / running.id).process()
    serving.end(signal.SIGKILL)
    client = serving.start()
    try:
        running, waiting = Job(client, running.id), Job(client, waiting.id)
        until(running, lambda status: status["state"] == "running")
        assert JobFolder(tmp_path / "service" / "jobs" / running.id).process() == process
        running.cancel()
        assert running.wait(time_limit_s=LIMIT_S)["status"] == "INTERRUPTED"
        assert waiting.wait(time_limit_s=LIMIT_S)["value"] == 3.0
        assert _attempts(tmp_path, running) == _attempts(tmp_path, waiting) == 1
    finally:
        serving.end()


def test_a_killed_process_is_started_once_more(
    serving: Serving, client: Client, packing: str
) -> None:
    """Planning is repeatable; the second time that it is killed the job is lost."""
    job = client.run("packing.plan", file=packing, planner="slow")
    folder = serving.folder / "service" / "jobs" / job.id
    for attempt in (1, 2):
        # One after the other: a status may be older than the attempt that is counted after it.
        until(job, lambda _, n=attempt: _attempts(serving.folder, job) == n)
        until(job, searching)
        process = JobFolder(folder).process()
        assert process is not None
        os.kill(process, signal.SIGKILL)
    with pytest.raises(RunError, match="killed"):
        job.wait(time_limit_s=LIMIT_S)
    assert job.status()["state"] == "lost"


def test_what_may_not_run_twice_is_lost(serving: Serving, client: Client) -> None:
    """A killed process of a verb that does more than compute is not started again."""
    job = client.run("packing.run", steps=3000)
    until(job, lambda status: status["progress"] is not None)
    process = JobFolder(serving.folder / "service" / "jobs" / job.id).process()
    assert process is not None
    os.kill(process, signal.SIGKILL)
    status = until(job, lambda status: status["ended_s"] is not None)
    assert (status["state"], status["error"]["what"]) == ("lost", "its process was killed")
    assert _attempts(serving.folder, job) == 1


def _attempts(folder: Path, job: Job) -> int:
    lines = JobFolder(folder / "service" / "jobs" / job.id).lines()
    return sum("attempt" in line for line in lines)


def test_what_cannot_be_is_refused_before_it_is_a_job(client: Client) -> None:
    """An unknown file, and a factory that the operator has not allowed."""
    before = len(client.jobs(500))
    for source in ("missing.json", "os:system"):
        with pytest.raises(InputError):
            client.run("packing.plan", file=source)
    assert len(client.jobs(500)) == before


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o777), (0, 0o1777), (UID, 0o755)])
@needs_root
def test_no_folder_is_served_in_which_others_may_write(
    owner: int, mode: int, tmp_path: Path
) -> None:
    """What its databases say is executed; a link in place of its lock is not followed."""
    folder = tmp_path / "service"
    folder.mkdir()
    (theirs := tmp_path / "theirs").write_text("theirs")
    (folder / "lock").symlink_to(theirs)
    with pytest.raises(InputError, match="Too many levels of symbolic links"), _locked(folder):
        pass
    os.chown(folder, owner, owner)
    folder.chmod(mode)
    with pytest.raises(InputError, match="others could start jobs as you"), _locked(folder):
        pass
    assert theirs.read_text() == "theirs"
    with _locked(tmp_path / "own"):
        assert (tmp_path / "own").stat().st_mode & 0o077 == 0


def test_workflows_of_a_database_hold_nothing_but_data(
    serving: Serving, client: Client, packing: str
) -> None:
    """It may be on another machine, or lie in a folder that others could write to."""
    load_only_data()
    kept = DefaultSerializer()
    job = client.run("packing.plan", file=packing, planner="shuffled")
    job.wait(time_limit_s=LIMIT_S)
    with closing(sqlite3.connect(serving.folder / "service" / "workflows.sqlite")) as workflows:
        ask = "select output from operation_outputs where workflow_uuid = ?"
        end_s = time.time() + 60
        while not (own := workflows.execute(ask, (job.id,)).fetchall()) and time.time() < end_s:
            time.sleep(0.05)
    assert [kept.deserialize(output) for (output,) in own] == ["done"]
    given = {"args": ("an identifier",), "kwargs": {}}
    assert kept.deserialize(kept.serialize(given)) == given
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.system, which is no data"):
        kept.deserialize(kept.serialize(os.system))


def test_plans_in_the_folder_are_jobs_from_the_start(
    client: Client, packing: str, tmp_path: Path
) -> None:
    """With their reports, whatever wing they are of; a second start adds nothing."""
    result = client.run("packing.plan", file=packing, planner="first-fit").wait()
    serving = Serving(tmp_path)
    folder = tmp_path / "service"
    folder.mkdir(mode=0o755)
    (folder / "three-plan.json").write_text(json.dumps(result))
    (folder / "three.html").write_text("a report")
    (folder / "notes.json").write_text("[1")
    own = set(folder.iterdir())
    for _ in range(2):
        client = serving.start()
        try:
            end_s = time.monotonic() + LIMIT_S
            while not (jobs := client.jobs()):
                assert time.monotonic() < end_s
                time.sleep(0.05)
            (job,) = jobs
            status = job.status()
            assert (status["operation"], status["state"]) == ("packing.plan", "done")
            assert status["summary"]["value"] == 3.0
            assert b"first-fit" in serving.request("GET", f"/jobs/{job.id}")[1]
            assert job.report(tmp_path / "page.html").read_text() == "a report"
            files = json.loads(serving.request("GET", "/api/v1/files")[1])["files"]
            assert [file["name"] for file in files] == ["three-plan.json"]
            with pytest.raises(InputError, match="is missing"):
                client.ask("POST", f"jobs/{job.id}/retry", b"")
            made = set(folder.iterdir()) - own
            assert {"service.sqlite", "workflows.sqlite"} <= {each.name for each in made}
            assert all(each.stat().st_mode & 0o077 == 0 for each in made)  # the folder is open
        finally:
            serving.end()
