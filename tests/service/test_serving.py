"""Request services: real servers that answer, change, outlive the service, and are drained."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewright.cli.main import every_verb
from placewright.cli.service_operations import operations_of
from placewright.errors import InputError, UnknownNameError
from placewright.service import process
from placewright.service.files import FileStore
from placewright.service.jobs import Jobs, TooManyJobsError
from placewright.service.operations import offered
from placewright.service.process import JobFolder
from placewright.service.serving import ServeOperation, Services, ServiceState
from placewright.service.store import SERVED, Job, JobState, Store, sqlite_url
from placewright.web.client import Client
from tests.service.serving import Serving

WAIT_S = 240.0
"""For what takes a few seconds, or a minute where others keep the machine busy."""


def write_model(path: Path, weight: float) -> Path:
    """An ONNX file of one product: four numbers become two."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    weights = numpy_helper.from_array(np.full((4, 2), weight, np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [given], [found], [weights])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


class Asking:
    """A service of Placewright, and requests to its API."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        """Send a request."""
        data = json.dumps(body).encode() if method == "POST" else None
        return Client(self.serving.url).ask(method, path, data)

    def wait(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a service is in a state."""
        return self.until(lambda: self("GET", f"services/{name}"), lambda f: f["state"] == state)

    def until(
        self, ask: Callable[[], Any], good: Callable[[Any], bool], wait_s: float = WAIT_S
    ) -> Any:
        """Wait until an answer is as it should be."""
        deadline_s = time.monotonic() + wait_s
        while not good(found := ask()):
            assert time.monotonic() < deadline_s, found
            time.sleep(0.1)
        return found


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """A service of its own, which is killed, with two variants of a model."""
    folder = tmp_path_factory.mktemp("services")
    made = Serving(folder)
    client = made.start()
    for name, weight in (("small", 1.0), ("large", 2.0)):
        client.upload(write_model(folder / f"{name}.onnx", weight))
    asking = Asking(made)
    asking("POST", "services", **MODEL)
    asking.wait("model", "running")
    yield asking
    for each in asking("GET", "services"):
        asking("POST", f"services/{each['name']}/drain")
    made.end()


MODEL: dict[str, Any] = {
    "name": "model",
    "family": "sums",
    "variants": [
        {"name": "small", "file": "small.onnx", "accuracy": 0.8},
        {"name": "large", "file": "large.onnx", "accuracy": 0.9},
    ],
    "options": {"server": ["a:1", "b:0.5"], "max_batch": 2},
}

ONES = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]


def infer(ask: Asking, inputs: Any = ONES, **parameters: Any) -> tuple[int, dict[str, Any]]:
    """Status and answer of a request to the service's server, through the service."""
    path = "/api/v1/services/model/v2/models/sums/infer"
    needs = {"deadline_ms": 5000, **parameters}
    body = json.dumps({"inputs": inputs, "parameters": needs}).encode()
    status, answer = ask.serving.request("POST", path, {"content-type": "application/json"}, body)
    return status, json.loads(answer)


def test_a_request_is_answered_as_it_needs(ask: Asking) -> None:
    """By a variant that is accurate enough, which is recorded."""
    status, found = infer(ask, min_accuracy=0.85)
    assert status == 200, found
    assert found["parameters"]["variant"] == "large"
    assert found["outputs"][0]["data"] == [8.0, 8.0]
    seen = ask.until(
        lambda: ask("GET", "services/model/status"), lambda found: found["recent"]["latest"]
    )
    assert seen["numbers"]["outcomes"]["in-time"] >= 1
    assert seen["recent"]["percentiles_s"]["p50"] > 0


def test_a_refusal_is_an_answer_with_a_reason(ask: Asking) -> None:
    """Nothing is so accurate; tensors of another model."""
    status, found = infer(ask, min_accuracy=0.99)
    assert status == 422
    assert "accura" in found["error"]
    assert infer(ask, [{"name": "z"}])[0] == 400


@pytest.mark.parametrize("binary", [False, True])
def test_clients_of_the_protocol_reach_the_server(ask: Asking, binary: bool) -> None:
    """Metadata, readiness, and tensors in JSON or in bytes behind it."""
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(f"{ask.serving.url[7:]}/api/v1/services/model")
    assert client.is_server_ready()
    assert client.get_model_metadata("sums")["inputs"][0]["name"] == "x"
    given = triton.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32), binary_data=binary)
    found = client.infer("sums", [given], headers={"x-request-timeout-seconds": "5"})
    name = found.get_response()["outputs"][0]["name"]
    assert found.as_numpy(name).ravel().tolist() in ([4, 4], [8, 8])


@pytest.mark.parametrize(
    "path",
    ["v2/repository/index", "v2/models/../../admin/servers", "v3/models", "v2/models/%2e%2e"],
)
def test_nothing_else_of_a_server_is_reached(ask: Asking, path: str) -> None:
    """What changes it has routes of its own, which are noted."""
    status, _ = ask.serving.request("GET", f"/api/v1/services/model/{path}")
    assert status in (404, 422)


def test_servers_and_variants_come_and_go(ask: Asking) -> None:
    """While it runs."""
    grown = ask("POST", "services/model/servers", name="c", speed=0.8)["numbers"]
    assert [each["name"] for each in grown["servers"]] == ["a", "b", "c"]
    more = ask("POST", "services/model/variants", name="new", file="large.onnx", accuracy=0.95)
    assert more["numbers"]["models"]["sums"]["new"] == 0.95
    assert infer(ask, min_accuracy=0.94)[1]["parameters"]["variant"] == "new"
    ask("DELETE", "services/model/variants/new")
    left = ask("DELETE", "services/model/servers/c")["numbers"]
    assert left["models"]["sums"] == {"small": 0.8, "large": 0.9}
    with pytest.raises(InputError, match="d"):
        ask("DELETE", "services/model/servers/d")


def test_the_capacity_is_a_job(ask: Asking) -> None:
    """By the latencies that its server has measured."""
    job = ask("POST", "services/model/capacity", target_success=0.9, deadline_ms=100)
    assert job["operation"] == "requests.plan"
    done = ask.until(
        lambda: ask("GET", f"jobs/{job['id']}"),
        lambda found: found["state"] not in ("queued", "running"),
    )
    assert done["state"] == "done", done
    assert ask("GET", f"jobs/{job['id']}/result")


def test_services_are_no_jobs_of_the_list(ask: Asking) -> None:
    """Nor of its counts, nor to be found, cancelled or retried there."""
    (id,) = ids_of(ask.serving.folder)
    listed = ask("GET", "jobs?most=500")
    assert SERVED not in [each["operation"] for each in listed["jobs"]]
    assert sum(listed["counts"].values()) == len(listed["jobs"])
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry"), ("DELETE", "")):
        with pytest.raises(InputError, match="unknown job"):
            ask(method, f"jobs/{id}{path}")
    with pytest.raises(InputError, match="unknown operation"):
        ask("GET", f"operations/{SERVED}")


def ids_of(folder: Path) -> list[str]:
    """Of the jobs that are request services."""
    store = Store(sqlite_url(folder / "service" / "service.sqlite"))
    found = [job.id for job in store.jobs(operation=SERVED)]
    store.close()
    return found


def test_it_outlives_the_service(ask: Asking) -> None:
    """One that is killed finds the same server again, and starts no other."""
    before = ask("GET", "services/model/status")["numbers"]
    ask.serving.end(signal.SIGKILL)
    ask.serving.start()
    after = ask("GET", "services/model/status")
    assert after["state"] == "running"
    pids = [[each["pid"] for each in found["servers"]] for found in (before, after["numbers"])]
    assert pids[0] == pids[1]
    assert infer(ask)[0] == 200
    token = _tokens(ask.serving.folder)
    assert len(token) == 1
    kept = [p for p in ask.serving.folder.rglob("*") if p.is_file()]
    assert all(token[0] not in path.read_bytes() for path in kept)


def _tokens(folder: Path) -> list[bytes]:
    """Of request servers that the service of a folder has started: in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "environ").read_bytes().split(b"\0")
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        ours = any(word.startswith(f"PLACEWRIGHT_PROGRESS={folder}".encode()) for word in words)
        if ours and b"requests\0serve" in line:
            found += [w.partition(b"=")[2] for w in words if w.startswith(b"PLACEWRIGHT_TOKEN=")]
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": "model"},
        {"variants": [{"name": "v", "file": "../../etc/passwd", "accuracy": 0.5}]},
        {"variants": [{"name": "v", "file": "absent.onnx", "accuracy": 0.5}]},
        {"variants": [MODEL["variants"][0], MODEL["variants"][0] | {"accuracy": 0.7}]},
        {"variants": [], "family": "../family.yaml"},
        {"options": {"server": ["a/b:1"]}},
        {"options": {"policy": "@/etc/passwd"}},
        {"options": {"host": "0.0.0.0"}},
        {"options": {"log": True}},
    ],
)
def test_what_is_refused_starts_nothing(ask: Asking, change: dict[str, Any]) -> None:
    """Paths, addresses, names that are taken."""
    with pytest.raises(InputError):
        ask("POST", "services", **({**MODEL, "name": "other"} | change))
    assert [each["name"] for each in ask("GET", "services")] == ["model"]


def test_a_service_that_cannot_start_says_why(ask: Asking) -> None:
    """Variants with other inputs; it can be deleted, and its name given again."""
    wrong = {**MODEL, "name": "wrong", "options": {"server": ["a:1", "a:2"]}}
    ask("POST", "services", **wrong)
    found = ask.wait("wrong", "failed")
    assert "two servers" in found["error"]["what"]
    assert ask("POST", "services/wrong/start")["state"] == "starting"
    with pytest.raises(InputError, match="it runs"):
        ask("DELETE", "services/wrong")
    ask.wait("wrong", "failed")
    assert [each["name"] for each in ask("GET", "services")] == ["wrong", "model"]
    assert len(ids_of(ask.serving.folder)) == 2
    ask("DELETE", "services/wrong")
    assert [each["name"] for each in ask("GET", "services")] == ["model"]


def test_a_killed_server_is_started_again_when_somebody_asks(ask: Asking) -> None:
    """Not before; its new server has a token of its own."""
    (id,) = ids_of(ask.serving.folder)
    (token,) = _tokens(ask.serving.folder)
    pid = JobFolder(ask.serving.folder / "service" / "jobs" / id).process()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    lost = ask.wait("model", "lost")
    assert lost["error"]["what"] == "its process was killed"
    status, found = infer(ask)
    assert (status, found["error"]["what"]) == (422, "no server is there")
    assert ids_of(ask.serving.folder) == [id]
    ask("POST", "services/model/start")
    ask.wait("model", "running")
    assert infer(ask)[0] == 200
    assert ids_of(ask.serving.folder) != [id]
    assert token not in _tokens(ask.serving.folder)


def unlaunched(folder: Path) -> Jobs:
    """Jobs that are accepted, and of which none is started."""
    store = Store(sqlite_url(folder / "x.sqlite"))
    store.migrate()
    files = FileStore(folder, store, most_bytes=1000, total_bytes=100_000)
    every = operations_of(every_verb())
    return Jobs(store, files, offered(every) | ServeOperation.among(every), workflows="")


DIGITS: dict[str, Any] = {"family": "digits", "variants": [], "options": {}}


def test_names_are_those_of_services_that_exist(tmp_path: Path) -> None:
    """Unique, at most four of them live, found by whoever comes later; none counts as a job."""
    jobs = unlaunched(tmp_path)
    services = Services(jobs)
    for name in ("one", "two", "three", "four"):
        assert services.state(services.create({"name": name, **DIGITS}, "me")) == "starting"
    assert (jobs.store.open_jobs("me"), dict(jobs.store.counts()), jobs.store.jobs()) == (0, {}, [])
    for name, error in (("one", InputError), ("five", TooManyJobsError)):
        with pytest.raises(error):
            services.create({"name": name, **DIGITS}, "me")
    with pytest.raises(InputError, match="it runs"):
        services.start_again("two", "me")
    assert services.state(services.drain("two")) is ServiceState.DRAINED
    services.start_again("two", "me")
    services.drain("one")
    services.delete("one")
    assert [*services.all()] == ["two", "four", "three"]
    with pytest.raises(UnknownNameError):
        services.find("one")
    left = Job(id="0" * 25, operation=SERVED, options={"name": "two", **DIGITS}, attempts=1)
    left.created_s, left.state = 0.0, JobState.LOST  # a start again that was cut off
    jobs.store.add_job(left)
    again = Services(jobs)
    assert [*again.all()] == ["two", "four", "three"]
    assert jobs.store.job(left.id) is None
    jobs.store.close()


def test_a_service_may_drain_for_as_long_as_it_was_asked_to() -> None:
    """Its process is asked by SIGTERM; SIGKILL comes after its time to drain, and some more."""
    operation = ServeOperation.among(operations_of(every_verb()))[SERVED]
    assert operation.ending_s(DIGITS) == 10.0
    assert operation.ending_s(DIGITS | {"options": {"drain": 600.0}}) == 600.0
    assert not operation.repeatable


class Stubborn(JobFolder):
    """Ends at the second signal."""

    poll_s = 0.005

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.began_s, self.sent = time.monotonic(), dict[int, float]()

    def is_running(self) -> bool:
        """Whether the second signal has not come."""
        return len(self.sent) < 2

    def end(self, sent: int) -> None:
        """Keep when it came."""
        self.sent[sent] = time.monotonic() - self.began_s


@pytest.mark.parametrize(
    ("ending_s", "signals", "least_s"), [(None, [0, 1], 0.05), (0.2, [1, 2], 0.25)]
)
def test_a_process_has_its_time_to_end(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ending_s: float | None,
    signals: list[int],
    least_s: float,
) -> None:
    """From when it was asked, also by a service that came long after the request."""
    monkeypatch.setattr(process, "GRACE_S", 0.05)
    folder = Stubborn(tmp_path)
    assert folder.wait(lambda: time.time() - 100, lambda: False, ending_s)
    assert list(folder.sent) == signals
    assert folder.sent[signals[1]] >= least_s


def test_from_the_form_to_the_drain(ask: Asking, page: Any) -> None:
    """In the page: state variants, choose servers, start, send, watch, drain."""
    url = ask.serving.url
    ask("POST", "services/model/drain")
    ask.wait("model", "drained")
    page.goto(f"{url}/services")
    page.get_by_role("link", name="Start another").click()
    page.fill("#service-name", "mine")
    page.check("#own-yes")
    page.fill("#service-family", "sums")
    for k, (file, accuracy) in enumerate((("small.onnx", "0.8"), ("large.onnx", "0.9"))):
        page.get_by_label(f"File of variant {k + 1}").select_option(file)
        page.get_by_role("button", name="Start").click()
        page.wait_for_selector(f"text={file}: the accuracy is missing")
        page.get_by_label(f"Accuracy of variant {k + 1}").fill(accuracy)
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("#try", timeout=WAIT_S * 1000)
    page.fill("#deadline", "5000")
    page.fill("#least", "0.85")
    page.get_by_role("button", name="Send", exact=True).click()
    page.wait_for_selector("text=Answered by large")
    page.wait_for_selector("#latest >> text=in time")
    page.wait_for_selector("#servers >> text=up")
    page.get_by_role("button", name="Drain").click()
    page.wait_for_selector("text=Start again", timeout=WAIT_S * 1000)
    assert page.inner_text("#state") == "drained"
    page.goto("about:blank")  # the page asks how its service is, also after its end
    ask("DELETE", "services/mine")
    ask("POST", "services/model/start")  # tests of this file come in any order
    ask.wait("model", "running")
