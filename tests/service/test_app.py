"""The API as a whole: every request that its description allows, and many that it does not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from placewright.cli.main import every_verb
from placewright.cli.service_operations import operations_of
from placewright.planning.solving import solve
from placewright.service.app import Service, api
from placewright.service.files import UPLOADS_AT_ONCE, FileStore
from placewright.service.jobs import Jobs
from placewright.service.operations import offered
from placewright.service.pages import add_pages
from placewright.service.process import JobFolder
from placewright.service.serving import ServeOperation, add_services
from placewright.service.store import DatabaseError, Job, JobState, Store, new_id, sqlite_url
from placewright.web.access import Access
from tests.report.examples import chain


def made(folder: Path) -> tuple[Service, Access]:
    """A service that accepts jobs and runs none."""
    store = Store(sqlite_url(folder / "x.sqlite"))
    store.migrate()
    files = FileStore(folder, store, most_bytes=1000, total_bytes=100_000)
    every = operations_of(every_verb())
    jobs = Jobs(store, files, offered(every) | ServeOperation.among(every), workflows="")
    service = Service(store, files, jobs)
    application = api(service)
    add_services(application, service, add_pages(application, service))
    return service, Access(application, hosts=["testserver"])


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Access:
    """The application."""
    service, guarded = made(tmp_path_factory.mktemp("api"))
    add_jobs(service.store, 3)
    return guarded


def add_jobs(store: Store, count: int) -> None:
    """Jobs that have ended."""
    with store.session() as session:
        session.add_all(
            Job(
                id=new_id(),
                operation="operators.plan",
                options={"source": "zoo:resnet50"},
                state=JobState.DONE,
                owner="",
                created_s=time.time(),
                attempts=1,
                summary={"value": 1.0, "gap": 0.1},
            )
            for _ in range(count)
        )


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_is_an_error_of_the_service(application: Access, mode: str) -> None:
    """Schemathesis on every path and operation: no 5xx, and errors have their four parts."""
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", application)
    generation = schemathesis.GenerationMode(mode)
    for k, found in enumerate(schema.get_all_operations()):
        operation = found.ok()
        starts = "/operations/" in operation.path and operation.method == "post"
        if starts and k % 4:  # they differ in their options alone
            continue
        if mode == "negative" and not [*operation.iter_parameters(), *operation.body]:
            continue

        @given(case=operation.as_strategy(generation_mode=generation))
        @settings(
            max_examples=2,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def each(case: schemathesis.Case) -> None:
            answer = case.call()
            assert answer.status_code < 500, (case, answer.text)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"what", "where", "by", "next"}, case

        with suppress(Unsatisfiable):  # nothing of the operation can be wrong
            each()


def test_an_option_that_is_not_known_is_refused_with_the_nearest(application: Access) -> None:
    """As the command line and Python do, in four parts."""
    body = {"source": "zoo:resnet50", "on": "edge-duo", "plannr": "heft"}
    answer = TestClient(application).post("/api/v1/operations/operators.plan/jobs", json=body)
    assert answer.status_code == 422
    parts = answer.json()["error"]
    assert parts["what"] == "unknown option 'plannr'"
    assert parts["where"] == "operators.plan: plannr"
    assert parts["next"] == "did you mean 'planner'?"
    wrong = {"source": "zoo:resnet50", "batch": "many"}
    answer = TestClient(application).post("/api/v1/operations/operators.plan/jobs", json=wrong)
    parts = answer.json()["error"]
    assert (parts["where"], parts["by"]) == ("operators.plan: batch", "got 'many'")
    assert "openapi.json" in parts["next"]


def test_a_full_disk_of_the_database_is_said_and_passes(tmp_path: Path) -> None:
    """What was stored before is there, and with space again everything works."""
    service, guarded = made(tmp_path)
    client, names, space = TestClient(guarded), list[str](), 1

    @event.listens_for(service.store.engine, "checkout")
    def limit(connection: Any, *rest: object) -> None:
        connection.execute(f"PRAGMA max_page_count={space}")  # at least what it has

    send = partial(client.put, "/api/v1/files/x.json", content=b"{}")
    answer = send()
    while answer.status_code == 201 and len(names) < 400:
        names.append(answer.json()["name"])
        answer = send()
    assert answer.status_code == 503, answer.text
    parts = answer.json()["error"]
    assert parts["what"] == "the database cannot be used: database or disk is full"
    assert parts["where"] == str(tmp_path / "x.sqlite")
    stored = client.get("/api/v1/files?most=500").json()["files"]
    assert {each["name"] for each in stored} >= set(names)
    assert len(list((tmp_path / "files").iterdir())) == len(stored)
    space = 1 << 20
    assert send().status_code == 201


def test_pages_of_the_list_hold_every_job_once(tmp_path: Path) -> None:
    """In order, by the identifier of the last one."""
    service, guarded = made(tmp_path)
    add_jobs(service.store, 120)
    client, found, before = TestClient(guarded), list[str](), None
    while True:
        answer = client.get("/api/v1/jobs", params={"before": before} if before else {}).json()
        found += [job["id"] for job in answer["jobs"]]
        if (before := answer["next"]) is None:
            break
    assert len(set(found)) == 120
    assert found == sorted(found, reverse=True)
    assert answer["counts"] == {"done": 120}


def test_the_service_starts_without_what_jobs_need(tmp_path: Path) -> None:
    """PyTorch, numba and DBOS take longer to load than a person waits for a page."""
    code = (
        "import sys; from pathlib import Path\n"
        "from placewright.cli.main import every_verb\n"
        "from placewright.cli.service_operations import operations_of\n"
        "from placewright.service.server import ServiceOptions, _server\n"
        f"options = ServiceOptions(folder=Path({str(tmp_path)!r}))\n"
        "from placewright.web.listening import listen\n"
        "_server(options, lambda: operations_of(every_verb()), listen('127.0.0.1', 0))\n"
        "print(*{'torch', 'numba', 'dbos', 'onnx', 'sklearn'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


def test_what_is_not_foreseen_is_an_error_with_four_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the exception's text reaches the client."""
    service, guarded = made(tmp_path)
    monkeypatch.setattr(service.store, "counts", lambda: 1 / 0)
    answer = TestClient(guarded, raise_server_exceptions=False).get("/api/v1/jobs")
    assert answer.status_code == 500
    assert answer.json()["error"]["what"] == "this should not happen: ZeroDivisionError"
    assert "division by" not in answer.text


def test_a_database_of_workflows_that_cannot_be_used_ends_the_service(tmp_path: Path) -> None:
    """With its file and the reason, and no traceback, whatever DBOS logs."""
    (tmp_path / "workflows.sqlite").mkdir()
    words = ["serve", str(tmp_path), "--port", "0", "-q"]
    command = [sys.executable, "-P", "-m", "placewright", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path / 'workflows.sqlite'}: the database cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_wait_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose state it does not take is looked at again; one that is not queued is none."""
    monkeypatch.setattr("placewright.service.jobs.AGAIN_S", 0.0)
    service, guarded = made(tmp_path)
    jobs, store, full = service.jobs, service.store, [True] * 3
    take = store.update_job

    def update(*args: Any, **changes: Any) -> Job | None:
        if full and full.pop():
            raise DatabaseError("full")
        return take(*args, **changes)

    monkeypatch.setattr(store, "update_job", update)
    id = jobs.submit(jobs.operations["schema"], {}, "").id
    assert jobs.execute(id) == "done"
    assert not full
    found = store.job(id)
    assert found is not None
    assert (found.state, found.attempts) == ("done", 1)

    def refuse(job: Job) -> None:
        raise OperationalError("", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(jobs, "_enqueue", refuse)
    answer = TestClient(guarded).post("/api/v1/operations/schema/jobs", json={})
    assert answer.status_code == 503
    assert [job.id for job in store.jobs()] == [id]


def test_a_full_disk_of_the_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored by half; other errors of the system are not foreseen."""
    service, guarded = made(tmp_path)
    client = TestClient(guarded, raise_server_exceptions=False)
    for code, status in ((errno.ENOSPC, 507), (errno.EIO, 500)):

        def refused(*args: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(Path, "rename", refused)
        answer = client.put("/api/v1/files/x.json", content=b"{}")
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"what", "where", "by", "next"}
        assert not list((tmp_path / "files").iterdir())
        assert not service.store.names()


UPLOAD = {
    "type": "http",
    "method": "PUT",
    "path": "/api/v1/files/x.json",
    "headers": [(b"host", b"testserver")],
    "query_string": b"",
}


def test_a_client_that_leaves_its_upload_is_no_error_of_the_service(tmp_path: Path) -> None:
    """Nothing is raised, which the server would print; nothing is stored."""
    service, guarded = made(tmp_path)
    begun = {"type": "http.request", "body": b"{", "more_body": True}
    messages: list[Any] = [begun, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guarded(dict(UPLOAD), receive, send))
    assert sent[0]["status"] == 499
    assert not list((tmp_path / "files").iterdir())
    assert not service.store.names()


def test_only_so_many_files_are_uploaded_at_a_time(tmp_path: Path) -> None:
    """Each has a file open; clients that send nothing would take all that the system gives."""
    service, guarded = made(tmp_path)
    service.files._receiving |= dict.fromkeys(map(str, range(UPLOADS_AT_ONCE)), 0)
    client = TestClient(guarded)
    refused = client.put("/api/v1/files/x.json", content=b"{}")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    service.files._receiving.clear()
    assert client.put("/api/v1/files/x.json", content=b"{}").status_code == 201


def put(client: TestClient, name: str, text: str) -> None:
    """Store a file in place of the one that has the name."""
    client.delete(f"/api/v1/files/{name}")
    assert client.put(f"/api/v1/files/{name}", content=text.encode()).json()["name"] == name


def test_a_job_has_the_files_that_it_was_accepted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was replaced before its turn is refused; one that it has a copy of may go."""
    service, guarded = made(tmp_path)
    client, jobs, store = TestClient(guarded), service.jobs, service.store
    started: list[str] = []

    def start(folder: JobFolder, *_: object) -> None:
        started.append((folder.work / "x.json").read_text())
        raise OSError("no process")

    monkeypatch.setattr(JobFolder, "start", start)
    for replaced_before, ended in ((False, "no process"), (True, "is another file now")):
        put(client, "x.json", "{}")
        job = jobs.submit(jobs.operations["operators.plan"], {"source": "x.json"}, "")
        if replaced_before:
            put(client, "x.json", "[]")
        assert jobs.execute(job.id) == "failed"
        assert ended in str(client.get(f"/api/v1/jobs/{job.id}").json()["error"])
        put(client, "x.json", "[]")
        store.add_job(again := Job(operation=job.operation, options=job.options, attempts=1))
        jobs.folder(job.id).path.rename(jobs.folder(again.id).path)
        assert jobs.execute(again.id) == "failed"
    assert started == ["{}", "{}"]


def test_a_model_has_the_weights_that_it_was_accepted_with(tmp_path: Path) -> None:
    """Those in a file beside it that was replaced since are none."""
    service, guarded = made(tmp_path)
    client, copied = TestClient(guarded), tmp_path / "copied"
    copied.mkdir()
    for name in ("net.onnx", "net.data"):
        put(client, name, "first")
    accepted_s = time.time()
    service.files.copy(["net.onnx"], copied, accepted_s)
    assert sorted(path.name for path in copied.iterdir()) == ["net.data", "net.onnx"]
    (copied / "net.data").unlink()
    put(client, "net.data", "second")
    service.files.copy(["net.onnx"], copied, accepted_s)
    assert not (copied / "net.data").exists()


def keep_result(service: Service, operation: str, options: Any, result: Any) -> Job:
    """A job that has ended with a document."""
    job = Job(operation=operation, options=options, state=JobState.DONE, ended_s=time.time())
    service.store.add_job(job)
    folder = service.jobs.folder(job.id)
    folder.make()
    (folder.out / "result.json").write_text(json.dumps(result))
    return job


def test_a_taken_plan_whose_file_is_gone_stops_no_start(tmp_path: Path) -> None:
    """The service looks for others in its folder all the same."""
    service, _ = made(tmp_path)
    job = keep_result(service, "operators.plan", {"found": "a-plan.json"}, {})
    (service.jobs.folder(job.id).out / "result.json").unlink()
    service.jobs.take_results(tmp_path)
    assert [each.id for each in service.store.jobs()] == [job.id]


def test_a_comparison_of_another_file_of_this_name_is_not_shown(tmp_path: Path) -> None:
    """The page offers to compare the one that is there now."""
    service, guarded = made(tmp_path)
    client = TestClient(guarded)
    put(client, "x.json", "{}")
    found = {"value": 2.0, "lower_bound": 1.0, "status": "OPTIMAL", "planner": "ilp"}
    states = {"none": (1.0, "INFEASIBLE"), "greedy": (3.0, "FEASIBLE"), "ilp": (2.0, "OPTIMAL")}
    every = [
        {"planner": name, "value": value, "status": state, "runtime_s": 0.0}
        for name, (value, state) in states.items()
    ]
    keep_result(service, "samples.compare", {"file": "x.json"}, found | {"candidates": every})
    shown = client.get("/samples?file=x.json").text
    assert "no plan can take less" in shown
    rows = shown.partition('aria-label="Strategies"')[2].split("<tr")[2:5]
    assert all(name in row for name, row in zip(("ilp", "greedy", "none"), rows, strict=True))
    assert [row.count(" %") for row in rows] == [1, 1, 0]  # none above the best does not fit
    put(client, "x.json", "[]")
    assert "no plan can take less" not in client.get("/samples?file=x.json").text


def test_measured_speeds_have_their_intervals_and_losses_may_be_no_numbers(tmp_path: Path) -> None:
    """As the command prints them; a run that diverged has a page all the same."""
    service, guarded = made(tmp_path)
    row = {"predicted_s": 0.1, "measured_s": 0.2}
    interval = {"ratio": 0.71, "low": 0.46, "high": 1.1}
    run = row | {
        "planner": "data",
        "baseline": row,
        "equal_batches": row,
        "speed_up_intervals": {
            "fastest worker": interval,
            "equal batches": interval | {"low": None, "high": None},
        },
        "training": {"losses": [5.25, None], "shares": "a 8"},
    }
    options = {"model": "zoo:rnnlm", "on": "edge-duo", "batch": 8, "exact": True}
    keep_result(service, "layers.run", options, run)
    shown = TestClient(guarded).get("/train?model=zoo:rnnlm&on=edge-duo&batch=8&exact=true")
    assert shown.status_code == 200
    assert "0.71x (0.46 to 1.10)</td>" in shown.text
    assert "0.71x</td>" in shown.text
    assert "5.25 to -" in shown.text


def test_all_that_a_command_has_printed_is_there(tmp_path: Path) -> None:
    """However much that is."""
    service, guarded = made(tmp_path)
    job, text = keep_result(service, "schema", {}, {}), "line\n" * 100_000
    service.jobs.folder(job.id).table.write_text(text)
    client = TestClient(guarded)
    assert client.get(f"/api/v1/jobs/{job.id}/table").text == text
    service.jobs.folder(job.id).table.unlink()
    assert client.get(f"/api/v1/jobs/{job.id}/table").text == ""


def test_a_plan_of_the_folder_is_taken_once(tmp_path: Path) -> None:
    """Though its like was uploaded; and though the stored file, not the job, was deleted since.

    A pipe in the folder is not waited for, and a link does not show what is elsewhere.
    """
    service, guarded = made(tmp_path)
    client, plan = TestClient(guarded), solve(chain(), "heft").save(tmp_path / "chain-plan.json")
    service.files.most_bytes = 1 << 20
    os.mkfifo(tmp_path / "pipe-plan.json")
    (tmp_path / "link-plan.json").symlink_to(solve(chain(), "pbqp").save(tmp_path / "elsewhere"))
    put(client, "same.json", plan.read_text())
    for _ in range(2):
        service.jobs.take_results(tmp_path)
        client.delete("/api/v1/files/chain-plan.json")
        (job,) = client.get("/api/v1/jobs").json()["jobs"]
        assert job["options"] == {"found": "chain-plan.json"}
    solve(chain(), "cpop").save(tmp_path / "-Plan für zwei.json")
    service.jobs.take_results(tmp_path)
    assert "Plan-f-r-zwei.json" in service.files


def test_events_of_a_long_run_come_to_their_end(tmp_path: Path) -> None:
    """However late they are asked for, every step comes, and then how it ended."""
    service, guarded = made(tmp_path)
    job, steps = keep_result(service, "layers.run", {}, {}), range(1, 20_001)
    lines = [json.dumps({"step": step, "step_s": 0.125, "plan": 1}) + "\n" for step in steps]
    service.jobs.folder(job.id).progress.write_text("".join(lines))
    kinds, found = list[str](), list[int]()
    for block in TestClient(guarded).get(f"/api/v1/jobs/{job.id}/events").text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        kinds.append(fields["event"])
        found += [each["step"] for each in json.loads(fields["data"]).get("steps", ())]
    assert found == [*steps]
    assert kinds[-1] == "state"
