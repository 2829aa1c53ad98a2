"""The server with clients: worker processes, HTTP, faults, changes while it runs."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewright.errors import InputError
from placewright.requests.service import service_of
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.families import Family, Variant, make_family
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.rows import Row
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.requests.serving.site import HttpLimits
from placewright.web import connections
from tests.requests.serving.models import family, scaled

X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two servers of one family."""
    log = tmp_path_factory.mktemp("serving") / "log.jsonl"
    options = ServingOptions(
        port=0, log=log, most_waiting=40, limits=HttpLimits(body_bytes=20_000, body_s=3.0)
    )
    with serve([family()], {"a": 1.0, "b": 0.5}, options) as found:
        yield found


def body(deadline_ms: float | None = 5000, rows: int = 1, **parameters: Any) -> bytes:
    """A right request."""
    all_parameters = parameters | ({} if deadline_ms is None else {"deadline_ms": deadline_ms})
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [1, 2, 3, 4] * rows}
    return json.dumps({"inputs": [tensor], "parameters": all_parameters}).encode()


def call(
    running: Running, method: str, path: str, data: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one request on a connection of its own; the right token."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    names.setdefault("authorization", f"Bearer {running.application.admin_token}")
    with closing(http.client.HTTPConnection(running.url[7:], timeout=60)) as connection:
        connection.request(method, path, data, names)
        answer = connection.getresponse()
        found = answer.read()
    kind = answer.headers.get_content_type()
    decoded = json.loads(found) if kind == "application/json" else found
    return answer.status, {k.lower(): v for k, v in answer.headers.items()}, decoded


def infer(running: Running, data: bytes) -> tuple[int, dict[str, str], Any]:
    """An inference request."""
    return call(running, "POST", "/v2/models/double/infer", data)


def many(running: Running, count: int, data: bytes) -> list[tuple[int, dict[str, str], Any]]:
    """So many at once, each on a connection of its own."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: infer(running, data), range(count)))


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for something that happens soon."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_tritonclient(running: Running) -> None:
    """NVIDIA's client finds, reads and asks the model, in JSON and in raw data."""
    triton = pytest.importorskip("tritonclient.http")
    with triton.InferenceServerClient(running.url[7:]) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("double")
        assert client.is_model_ready("double", "1")
        assert client.get_server_metadata()["name"] == "placewright"
        assert client.get_model_metadata("double")["inputs"][0]["shape"] == [-1, 4]
        assert client.get_model_config("double")["max_batch_size"] == 16
        assert client.get_model_repository_index()[0]["name"] == "double"
        for raw in (False, True):
            tensor = triton.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(X, binary_data=raw)
            wanted = [triton.InferRequestedOutput("y", binary_data=raw)]
            answer = client.infer(
                "double", [tensor], outputs=wanted, request_id="r1", timeout=5_000_000
            )
            assert np.array_equal(answer.as_numpy("y"), 2 * X)
            assert answer.get_response()["id"] == "r1"
        gone = triton.InferInput("x", [1, 3], "FP32")
        gone.set_data_from_numpy(X[:, :3])
        with pytest.raises(Exception, match="has shape"):
            client.infer("double", [gone])


def test_open_inference_client(running: Running) -> None:
    """The client generated from the protocol's OpenAPI file works unchanged."""
    pytest.importorskip("open_inference.openapi")
    from open_inference.openapi.client import OpenInferenceClient
    from open_inference.openapi.types.inference_request import InferenceRequest

    httpx = pytest.importorskip("httpx")
    with httpx.Client() as connection:
        client = OpenInferenceClient(base_url=running.url, httpx_client=connection)
        client.check_server_liveness()
        client.check_server_readiness()
        client.check_model_readiness("double")
        assert client.read_server_metadata().name == "placewright"
        assert client.read_model_metadata("double").versions == ["1"]
        request = InferenceRequest.parse_raw(body())
        answer = client.model_infer("double", request=request)
    assert answer.outputs[0].data.__root__ == [2, 4, 6, 8]


def test_curl(running: Running) -> None:
    """So does curl, with needs as headers."""
    args = ["curl", "-s", f"{running.url}/v2/models/double/infer", "-d", body(None).decode()]
    args += ["-H", "x-request-timeout-seconds: 3", "-H", "x-slo-min-accuracy: 0.8"]
    answer = json.loads(subprocess.run(args, capture_output=True, check=True).stdout)
    assert answer["parameters"]["deadline_ms"] == 3000
    assert answer["parameters"]["variant"] == "large"


def test_answer_explains_itself(running: Running) -> None:
    """Variant, server, times and slack; they add up."""
    status, _, answer = infer(running, body(3000, rows=3))
    parameters = answer["parameters"]
    assert status == 200
    assert answer["outputs"][0]["data"] == [2, 4, 6, 8] * 3
    assert set(parameters["server"].split(",")) <= {"a", "b"}
    assert parameters["accuracy"] in (0.7, 0.9)
    assert parameters["latency_ms"] + parameters["slack_ms"] == pytest.approx(3000, abs=0.01)
    assert (
        0 < parameters["compute_ms"] <= parameters["latency_ms"] - parameters["waiting_ms"] + 0.01
    )
    assert parameters["in_time"]
    assert parameters["attempts"] == 1
    assert parameters["predicted_ms"] > 0


@pytest.mark.parametrize(
    ("method", "path", "data", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/v2/models/none", None, 404),
        ("POST", "/v2/models/none/infer", b"{}", 404),
        ("GET", "/v2/models/double/versions/9", None, 404),
        ("GET", "/v2/models/double/infer", None, 405),
        ("POST", "/v2/models/double/infer", b"no", 400),
        ("POST", "/v2/models/double/infer", body(1e-4), 422),
        ("POST", "/v2/models/double/infer", body(min_accuracy=0.95), 422),
        ("POST", "/v2/models/double/infer", b" " * 20_001, 413),
        ("DELETE", "/v2", None, 405),
        ("POST", "/admin/servers", b"[]", 400),
        ("DELETE", "/admin/servers/none", None, 404),
        ("PUT", "/admin/models/double/variants/v", b"x", 400),
        ("PUT", "/admin/models/double/variants/v?accuracy=0.5", b"no model", 400),
    ],
)
def test_wrong_requests(
    running: Running, method: str, path: str, data: bytes | None, status: int
) -> None:
    """Each gets its 4xx and a reason; the server goes on."""
    found, _, answer = call(running, method, path, data)
    assert found == status
    assert answer["error"]
    assert "\n" not in answer["error"]
    assert infer(running, body())[0] == 200


def test_values_that_json_cannot_say_are_refused_and_served_as_bytes(running: Running) -> None:
    """Twice 3e38 is infinite in float32, or no number after further sums."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [3e38] * 4}
    request: dict[str, Any] = {"inputs": [tensor], "parameters": {"deadline_ms": 5000}}
    status, _, answer = infer(running, json.dumps(request).encode())
    assert (status, answer["code"]) == (422, "not-finite")
    assert "binary_data" in answer["error"]
    request["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
    status, headers, answer = infer(running, json.dumps(request).encode())
    assert status == 200
    values = np.frombuffer(answer[int(headers["inference-header-content-length"]) :], "<f4")
    assert len(values) == 4
    assert not np.isfinite(values).any()


def test_the_servers_pages(running: Running) -> None:
    """Metrics, numbers, schema and the live page are there."""
    infer(running, body())
    metrics = call(running, "GET", "/metrics")[2].decode()
    assert 'placewright_requests_total{model="double",outcome="in-time"}' in metrics
    assert 'placewright_server_up{server="a"} 1.0' in metrics
    totals = {
        name: float(re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)[1])
        for name in ("placewright_overhead_seconds_count", "placewright_overhead_seconds_sum")
    }
    answered = re.findall(r'_requests_total{.*outcome="(?:in-time|late)"} (\S+)', metrics)
    assert totals["placewright_overhead_seconds_count"] == sum(map(float, answered))
    assert totals["placewright_overhead_seconds_sum"] > 0
    status = call(running, "GET", "/status.json")[2]
    assert {s["name"] for s in status["servers"]} >= {"a", "b"}
    assert "/v2/models/{name}/infer" in call(running, "GET", "/openapi.json")[2]["paths"]
    assert b"status.json" in call(running, "GET", "/")[2]


def test_slow_clients_hold_up_nobody(running: Running) -> None:
    """Clients that send half a body wait for themselves only, and get an error after a while."""
    host, port = running.url[7:].split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(30)]
    for each in slow:
        each.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n")
    for each in slow:
        each.sendall(b"content-length: 100\r\n\r\n{")
    assert infer(running, body())[0] == 200
    for each in slow:
        assert b" 408 " in each.recv(1000).split(b"\r\n")[0]
        each.close()


def test_clients_that_send_no_request_are_sent_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, half a head, an endless head: each is refused; too many connections, too."""
    host, port = running.url[7:].split(":")
    half = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n"
    long = half + b"x: " + b"a" * 70_000
    for data, status in ((b"", 408), (half, 408), (long, 431), (long + b"\r\n\r\n", 431)):
        monkeypatch.setattr(connections, "HEAD_S", 0.3 if status == 408 else 10.0)
        with socket.create_connection((host, int(port))) as link:
            link.sendall(data)
            answer = link.makefile("rb").read()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    monkeypatch.setattr(connections, "CONNECTIONS", 0)
    with socket.create_connection((host, int(port))) as link:
        answer = link.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer


def test_the_last_piece_of_a_body_is_not_a_head(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies in pieces longer than a head may be, several on one connection, are answered."""
    monkeypatch.setattr(connections, "HEAD_BYTES", 1000)
    host, port = running.url[7:].split(":")
    data = body() + b" " * 15_000
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection((host, int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(3):
            for piece in (head % len(data), data[:8000], data[8000:]):
                link.sendall(piece)
                time.sleep(0.05)
            answer = http.client.HTTPResponse(link)
            answer.begin()
            assert answer.status == 200, answer.read()
            answer.read()


def test_a_client_that_does_not_read_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that nobody reads end with their connection; others are answered meanwhile."""
    monkeypatch.setattr(connections, "READ_S", 0.3)
    host, port = running.url[7:].split(":")
    with socket.create_connection((host, int(port))) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(60)
        request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
            while True:
                link.sendall(50 * request)
                assert infer(running, body())[0] == 200


def test_workers_compute_behind_the_server(running: Running) -> None:
    """Their processes are nicer than the one that takes requests."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    pids = [slot.process.pid for slot in running.dispatcher.fleet.slots]
    assert all(os.getpriority(os.PRIO_PROCESS, pid) > own for pid in pids if pid is not None)
    assert any(pids)  # another test may have ended one for good


def test_bounded_queue(running: Running) -> None:
    """More rows than may wait are refused at once with 429 and Retry-After."""
    status, headers, answer = infer(running, body(rows=41))
    assert status == 429
    assert int(headers["retry-after"]) >= 1
    assert answer["code"] == "queue-full"


def test_no_row_is_lost_when_workers_die(running: Running) -> None:
    """One worker is killed and one is stopped under load: every request is answered once."""
    fleet = running.dispatcher.fleet
    before = running.observer.totals.total()
    pids = [slot.process.pid for slot in fleet.slots if slot.active]
    restarts = sum(slot.restarts for slot in fleet.slots)
    with ThreadPoolExecutor(1) as pool:
        for pid in pids[:2]:
            os.kill(pid, signal.SIGSTOP)  # type: ignore[arg-type]
        answers = pool.submit(lambda: [many(running, 20, body(30_000)) for _ in range(4)])
        until(lambda: running.dispatcher.under_way > 0 or answers.done())
        with suppress(ProcessLookupError):  # replaced by now
            os.kill(pids[0], signal.SIGKILL)  # type: ignore[arg-type]
        found = [each for group in answers.result() for each in group]
    assert [status for status, _, _ in found] == [200] * 80
    assert all(answer["outputs"][0]["data"] == [2, 4, 6, 8] for _, _, answer in found)
    assert running.observer.totals.total() == before + 80
    until(lambda: sum(slot.restarts for slot in fleet.slots) >= restarts + 2)
    until(lambda: all(slot.up for slot in fleet.slots if slot.active))


def test_a_worker_that_is_continued_answers_once(running: Running) -> None:
    """Stopped for a moment, workers go on; stopped for long, they are replaced and silent."""
    fleet = running.dispatcher.fleet
    slots = [slot for slot in fleet.slots if slot.active]
    for long in (False, True):
        before, restarts = running.observer.totals.total(), sum(slot.restarts for slot in slots)
        pids = [slot.process.pid for slot in slots]
        with ThreadPoolExecutor(1) as pool:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)  # type: ignore[arg-type]
            answers = pool.submit(lambda: [many(running, 10, body(30_000)) for _ in range(4)])
            until(lambda: running.dispatcher.under_way > 0)
            while long and sum(slot.restarts for slot in slots) == restarts:
                time.sleep(0.02)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)  # type: ignore[arg-type]
            found = [each for group in answers.result() for each in group]
        assert [status for status, _, _ in found] == [200] * 40
        assert running.observer.totals.total() == before + 40
        until(lambda: all(slot.up for slot in slots))
    assert sum(slot.restarts for slot in slots) > restarts


def test_a_worker_that_dies_while_it_starts_is_started_once_more(running: Running) -> None:
    """Lost twice in a row, a server has one process in the end, and one task that starts it."""
    slot = running.dispatcher.fleet.slots[0]
    tasks = running.dispatcher.fleet._tasks
    restarts, lost = slot.restarts, slot.process.pid
    os.kill(lost, signal.SIGKILL)  # type: ignore[arg-type]
    until(lambda: slot.process.pid not in (lost, None) and not slot.up)
    with suppress(ProcessLookupError):
        os.kill(slot.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    while not slot.up:
        assert len(tasks) <= 1
        time.sleep(0.01)
    assert slot.restarts >= restarts + 1
    assert not slot.restarting
    assert infer(running, body(30_000))[0] == 200


def test_servers_come_and_go(running: Running) -> None:
    """A server is added and another removed under load, and nobody notices."""
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(lambda: [many(running, 10, body(30_000)) for _ in range(5)])
        data = json.dumps({"name": "c", "speed": 0.8}).encode()
        assert call(running, "POST", "/admin/servers", data)[0] == 200
        assert call(running, "DELETE", "/admin/servers/c")[0] == 200
        found = [status for group in answers.result() for status, _, _ in group]
    assert found == [200] * 50
    status = call(running, "GET", "/status.json")[2]
    assert {s["name"]: s["active"] for s in status["servers"]}["c"] is False
    assert (
        [*status["latency_s"]] == [*status["batch_latency_s"]] == ["a", "b"]
    )  # what profile reads
    assert call(running, "POST", "/admin/servers", data)[0] == 200  # the name is free again
    assert call(running, "POST", "/admin/servers", data)[0] == 400  # and taken
    slots = running.dispatcher.fleet.slots
    assert [slot.process.name for slot in slots] == ["a", "b", "c"]
    served = slots[2].served
    slots[0].up = slots[1].up = False
    assert infer(running, body(30_000))[0] == 200
    slots[0].up = slots[1].up = True
    assert slots[2].served == served + 1
    assert call(running, "DELETE", "/admin/servers/c")[0] == 200


def test_variants_come_and_go(running: Running) -> None:
    """A better variant answers as soon as it is added; removed, the old ones do."""
    path = "/admin/models/double/variants/best"
    assert call(running, "PUT", f"{path}?accuracy=0.99", scaled(2.0))[0] == 200
    answer = infer(running, body(min_accuracy=0.95))[2]
    assert answer["parameters"]["variant"] == "best"
    assert call(running, "DELETE", path)[0] == 200
    assert infer(running, body(min_accuracy=0.95))[0] == 422
    assert infer(running, body())[0] == 200
    assert call(running, "DELETE", path, origin="http://evil.example")[0] == 403


def test_log_has_every_request_once(running: Running) -> None:
    """Numbers without gaps, and of what was served, everything to check it again."""
    assert running.observer.path is not None
    path, totals = Path(running.observer.path), running.observer.totals
    until(lambda: path.read_text().count("\n") == totals.total())  # it is written twice a second
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["request"] for line in lines] == list(range(len(lines)))
    served = [line for line in lines if line["status"] == 200]
    assert all(line["arrival_s"] <= line["start_s"] < line["end_s"] for line in served)
    assert all(line["reason"] for line in lines if line["server"] is None)


def test_drain_token_and_overload(tmp_path: Path) -> None:
    """Without a token nobody gets in; at the end what is here is answered, and nothing new."""
    options = ServingOptions(port=0, token="0123456789abcdef", most_batch=1, drain_s=120.0)
    slow = family(matmuls=(10, 20))
    with serve([slow], {"a": 1.0}, options) as running:
        assert call(running, "GET", "/v2/health/live")[0] == 200
        path = "/v2/models/double/infer"
        assert call(running, "POST", path, body(), authorization="Bearer other")[0] == 401
        found: list[int] = []

        def post(deadline_ms: float) -> None:
            found.append(infer(running, body(deadline_ms))[0])

        threads = [threading.Thread(target=post, args=(60_000,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: running.dispatcher._count == 8)  # all were taken, most still wait
    for thread in threads:
        thread.join()
    assert found == [200] * 8


def test_an_error_in_the_fleet_check_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody would enforce deadlines: it is raised, and clients are refused."""

    def failing() -> None:
        with serve([family()], {"a": 1.0}, ServingOptions(port=0)) as own:
            assert infer(own, body())[0] == 200
            monkeypatch.setattr(own.dispatcher.fleet, "check", lambda: 1 / 0)
            with pytest.raises(ConnectionError):
                until(lambda: infer(own, body())[0] == 0)

    with pytest.raises(ZeroDivisionError):
        failing()


def test_serving_other_hosts_needs_a_token() -> None:
    """Listening to other machines without a token is refused before anything starts."""
    with pytest.raises(InputError, match="need a token"):
        ServingOptions(host="0.0.0.0")


@pytest.mark.parametrize(("reply_s", "reserved_s"), [(0.0, 0.0), (0.05, 0.1), (10.0, 0.2)])
def test_time_for_the_answer_is_reserved(reply_s: float, reserved_s: float) -> None:
    """What answering takes is kept free, at most a quarter of what computation leaves."""
    dispatcher = Dispatcher([family()], ServingOptions(port=0).policy.start)
    dispatcher._service = service_of(("a",), ("small",), np.array([0.9]), [[[0.0, 0.2]]])
    for _ in range(400):
        dispatcher.replied(reply_s)
    never: Any = None  # nobody waits for this row
    dispatcher._enqueue(Row(0, 0, (X,), Needs(1.0), 5.0, 6.0, never))
    queue = dispatcher.queue
    assert queue.deadline_s[queue.by_deadline] == pytest.approx([6.0 - reserved_s])


def test_strangers_read_and_change_nothing(running: Running) -> None:
    """Another host's name, another page, no token, and a model that names a file of the server."""
    infer_path, model = "/v2/models/double/infer", "/admin/models/double/variants/v?accuracy=0.5"
    before = running.observer.totals.total()
    assert call(running, "GET", "/status.json", host="evil.example")[0] == 403
    assert call(running, "POST", infer_path, body(), host="evil.example")[0] == 403
    assert call(running, "POST", infer_path, body(), origin="http://evil.example")[0] == 403
    assert call(running, "POST", infer_path, body(), sec_fetch_site="cross-site")[0] == 403
    assert call(running, "POST", infer_path, body(), content_type="text/plain")[0] == 415
    assert call(running, "DELETE", "/admin/servers/a", authorization="")[0] == 401
    loaded = onnx.ModelProto.FromString(scaled(2.0))
    tensor = loaded.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    status, _, answer = call(running, "PUT", model, loaded.SerializeToString())
    assert (status, "is in another file" in answer["error"]) == (400, True)
    assert running.observer.totals.total() == before
    assert [slot.active for slot in running.dispatcher.fleet.slots][:2] == [True, True]


def test_bodies_have_a_common_budget() -> None:
    """Many large bodies at once: some are refused, whatever their number, and room comes back."""
    limits = HttpLimits(body_bytes=100_000, bodies_bytes=250_000, body_s=60)
    with serve([family()], {"a": 1.0}, ServingOptions(port=0, limits=limits)) as own:
        host, port = own.url[7:].split(":")
        head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n"
        head += b"content-length: 100000\r\n\r\n"
        with ExitStack() as stack:
            links = []
            for _ in range(4):
                link = stack.enter_context(socket.create_connection((host, int(port))))
                link.sendall(head + b" " * 90_000)
                links.append(link)
            ready, _, _ = select.select(links, [], [], 60)
            answer = ready[0].recv(1000)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer
            assert infer(own, body())[0] == 200  # a small one still fits
        until(lambda: own.application._bodies.held_bytes == 0)
        assert own.observer.totals["bodies-full"] == 2


def test_health_is_answered_when_there_are_too_many_connections(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle clients beyond the limit give way to one that asks for health; others are refused."""
    monkeypatch.setattr(connections, "CONNECTIONS", 0)
    host, port = running.url[7:].split(":")
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection((host, int(port))))
            for _ in range(2 * connections.RESERVED)
        ]
        for path in ("live", "ready"):
            assert call(running, "GET", f"/v2/health/{path}")[0] == 200
        assert call(running, "GET", "/status.json")[0] == 503
        assert infer(running, body())[0] == 503
        for each in idle:
            assert each.makefile("rb").readline().startswith(b"HTTP/1.1 503 ")
    monkeypatch.undo()
    assert infer(running, body())[0] == 200


def test_idle_connections_give_way_to_requests(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest that has asked for nothing yet; one that has been answered stays."""
    host, port = running.url[7:].split(":")
    with ExitStack() as stack:
        used = stack.enter_context(closing(http.client.HTTPConnection(host, int(port))))
        used.request("GET", "/v2")
        assert used.getresponse().read()
        idle = [
            stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(2)
        ]
        time.sleep(0.1)
        monkeypatch.setattr(connections, "CONNECTIONS", 3)
        for first in idle:
            assert infer(running, body())[0] == 200
            assert first.makefile("rb").readline().startswith(b"HTTP/1.1 503 ")
            monkeypatch.setattr(connections, "CONNECTIONS", connections.CONNECTIONS - 1)
        assert infer(running, body())[0] == 503
        used.request("GET", "/v2")
        assert used.getresponse().status == 200


def lookup(most: int) -> Family:
    """A table that is looked up: a number that is not in it is an error of the model."""
    table = numpy_helper.from_array(np.arange(4 * most, dtype=np.float32).reshape(most, 4), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return make_family("double", [Variant("v", 0.9, model.SerializeToString())])


def test_one_bad_row_of_a_batch_fails_alone() -> None:
    """All others, of the same batch, are answered."""
    words = [1, 2, 99, 3, 4, 99, 5, 6] * 4

    def ask(word: int) -> tuple[int, Any]:
        tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [word]}
        status, _, answer = infer(own, json.dumps({"inputs": [tensor]}).encode())
        return status, answer["outputs"][0]["data"] if status == 200 else answer["code"]

    with serve([lookup(8)], {"a": 1.0}, ServingOptions(port=0)) as own:
        pid = own.dispatcher.fleet.slots[0].process.pid
        with ThreadPoolExecutor(len(words)) as pool:
            os.kill(pid, signal.SIGSTOP)  # type: ignore[arg-type]
            answers = [pool.submit(ask, word) for word in words]
            until(lambda: own.dispatcher._count == len(words))  # all wait: batches follow
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # type: ignore[arg-type]
        found = [each.result() for each in answers]
        assert own.dispatcher.under_way == 0
    for word, (status, data) in zip(words, found, strict=True):
        right = [float(4 * word + k) for k in range(4)]
        assert (status, data) == ((200, right) if word < 8 else (400, "malformed"))


def test_requests_of_clients_that_left_are_not_computed(tmp_path: Path) -> None:
    """They are dropped from the queue and counted as such; the log says so."""
    log = tmp_path / "log.jsonl"
    data = body(60_000)
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    with serve([family()], {"a": 1.0}, ServingOptions(port=0, log=log)) as own:
        slot = own.dispatcher.fleet.slots[0]
        slot.up = False  # so that all wait
        slot.restarting = True
        host, port = own.url[7:].split(":")
        links = [socket.create_connection((host, int(port))) for _ in range(6)]
        for link in links:
            link.sendall(head % len(data) + data)
        until(lambda: own.dispatcher.queue.count == 6)
        for link in links[:4]:
            link.close()
        until(lambda: own.dispatcher.queue.count == 2)
        slot.up, slot.restarting = True, False
        for link in links[4:]:
            infer(own, data)
            assert link.recv(1000).startswith(b"HTTP/1.1 200 ")
            link.close()
        assert slot.served == 4
        assert own.observer.totals == {"client-gone": 4, "in-time": 4}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines].count(499) == 4


def test_every_request_that_was_read_is_answered_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that ask again and again read answers, and then find nobody: no reset in between."""
    monkeypatch.setattr(connections, "LAST_S", 3.0)  # a busy machine's clients are slow to ask
    outcomes: Counter[str] = Counter()
    ended = threading.Event()

    def ask_again() -> None:
        while not ended.is_set():
            with closing(http.client.HTTPConnection(address, timeout=60)) as link:
                try:
                    link.connect()
                except OSError:
                    return  # nobody listens any more
                try:
                    while not ended.is_set():
                        link.request("POST", "/v2/models/double/infer", data)
                        answer = link.getresponse()
                        answer.read()
                        outcomes[str(answer.status)] += 1
                        if answer.headers.get("connection") == "close":
                            break
                except (OSError, http.client.HTTPException) as error:
                    outcomes[type(error).__name__] += 1

    data = body(60_000)
    options = ServingOptions(port=0, most_batch=1)
    with serve([family(matmuls=(4, 4))], {"a": 1.0}, options) as own:
        address = own.url[7:]
        threads = [threading.Thread(target=ask_again) for _ in range(16)]
        for thread in threads:
            thread.start()
        until(lambda: outcomes["200"] > 50)
    ended.set()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"200", "503"}


def test_the_log_of_an_earlier_server_is_kept(tmp_path: Path) -> None:
    """A server appends to its whole lines, which name their start."""
    log = tmp_path / "log.jsonl"
    for _ in range(2):
        with serve([family()], {"a": 1.0}, ServingOptions(port=0, log=log)) as own:
            assert infer(own, body())[0] == 200
        log.write_text(log.read_text() + '{"request": 1, "fam')
    lines = log.read_text().splitlines()
    assert len(lines) == 3  # the last one is cut off
    first, second = json.loads(lines[0]), json.loads(lines[1])
    assert first["request"] == second["request"] == 0
    assert first["started_s"] < second["started_s"]
