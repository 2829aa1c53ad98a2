"""Models that are loaded and unloaded while the server runs, as Triton's clients do it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.requests.planners import named_policy
from placewright.requests.policy import Decision, Policy
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service
from placewright.requests.serving.families import Family, read_family
from placewright.requests.serving.server import PlannedPolicy, Running, ServingOptions, serve
from tests.requests.serving.models import scaled
from tests.requests.serving.test_server import body, call, infer, until

REPOSITORY = "/v2/repository/models"


def write_model(folder: Path, name: str, factor: float, more: str = "") -> Path:
    """A family's file and its two variants."""
    (folder / f"{name}-small.onnx").write_bytes(scaled(factor))
    (folder / f"{name}-large.onnx").write_bytes(scaled(factor, 1))
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nvariants:\n"
        f"  small: {{file: {name}-small.onnx, accuracy: 0.7}}\n"
        f"  large: {{file: {name}-large.onnx, accuracy: 0.9}}\n{more}"
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    """An only server of two models."""
    options = ServingOptions(port=0, grpc_port=0)
    with serve(two_models(folder), {"a": 1.0}, options) as found:
        yield found


def factors(answer: Any) -> set[float]:
    """By which an answer has multiplied 1, 2, 3, 4."""
    return set((np.array(answer["outputs"][0]["data"]) / [1, 2, 3, 4]).tolist())


def asked_during(running: Running, change: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Factors of answers until a change is over, and afterwards; nobody who asks is refused."""
    ends, seen, failed = threading.Event(), list[float](), Counter[str]()

    def ask() -> None:
        while not ends.is_set():
            status, _, answer = infer(running, body(60_000))
            if status == 200:
                seen.extend(factors(answer))
            else:
                failed[str(answer)] += 1
            time.sleep(0.01)

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for each in clients:
        each.start()
    try:
        until(lambda: len(seen) > 20 or bool(failed))
        change()
        seen.append(0.0)
        at = len(seen)
        until(lambda: len(seen) > at + 10 or bool(failed))
    finally:
        ends.set()
        for each in clients:
            each.join()
    assert not failed
    return seen[: seen.index(0.0)], seen[seen.index(0.0) + 1 :]


def changed_while_workers_die(running: Running, folder: Path) -> int:
    """Replace one model, unload and load another, under requests and kills; how many kills.

    Every request is answered, by the old model or the new one.
    """
    fleet, ends, killed = running.dispatcher.fleet, threading.Event(), list[int]()
    unloaded = threading.Event()

    def kill() -> None:
        while not ends.wait(0.1) and len(killed) < 4:
            if len(killed) == 2 and not unloaded.is_set():
                continue  # a model is refused whose load is lost with a server three times
            slot = fleet.slots[len(killed) % len(fleet.slots)]
            pid = slot.process.pid
            # The others have to be there: a model that no server can load is refused.
            if pid is not None and all(each.up or each.paused for each in fleet.slots):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    def order(verb: str, name: str) -> None:
        status, _, answer = call(running, "POST", f"{REPOSITORY}/{name}/{verb}")
        assert status == 200, answer

    def change() -> None:
        write_model(folder, "double", 5)
        order("load", "double")
        until(lambda: len(killed) > 1)  # however long a new worker takes to come up
        order("unload", "triple")
        unloaded.set()
        write_model(folder, "triple", 7, "whole: true\n")
        order("load", "triple")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        before, after = asked_during(running, change)
    finally:
        ends.set()
        killer.join()
    assert set(before) <= {2.0, 5.0}
    assert after.count(2.0) <= 3  # were computed before, and counted late
    until(lambda: all(slot.up for slot in fleet.slots))
    for slot in fleet.slots:  # each of them has what is served now
        others = [each for each in fleet.slots if each is not slot]
        for each in others:
            each.up = False
        assert factors(infer(running, body())[2]) == {5.0}
        assert factors(call(running, "POST", "/v2/models/triple/infer", body())[2]) == {7.0}
        for each in others:
            each.up = True
    assert len(fleet._models) == 4
    return len(killed)


def two_models(folder: Path) -> list[Family]:
    """As files, of which a server reads them again."""
    models = (("double", 2), ("triple", 3))
    return [read_family(write_model(folder, name, factor)) for name, factor in models]


def test_models_come_and_go_while_workers_are_killed(tmp_path: Path) -> None:
    """The second process of a server takes over from one that is lost meanwhile, or does not."""
    with serve(two_models(tmp_path), {"a": 1.0, "b": 0.5}, ServingOptions(port=0)) as running:
        assert changed_while_workers_die(running, tmp_path) > 1


def test_a_model_is_replaced_under_load(tmp_path: Path) -> None:
    """Nobody is refused, and from some request on all get the new one's answers."""
    triton = pytest.importorskip("tritonclient.http")
    with serve(two_models(tmp_path), {"a": 1.0}, ServingOptions(port=0)) as running:
        headers = {"authorization": f"Bearer {running.application.admin_token}"}

        def change() -> None:
            write_model(tmp_path, "double", 5)
            with triton.InferenceServerClient(running.url[7:], network_timeout=60) as client:
                client.load_model("double", headers=headers)

        before, after = asked_during(running, change)
        fleet, service = running.dispatcher.fleet, running.dispatcher.service
        assert [len(fleet.variants), service.variants] == [4, 4]
    assert {2.0} <= set(before) <= {2.0, 5.0}
    assert 5.0 in after
    assert len(before) > 20
    assert after.count(2.0) <= 3  # were computed before, and counted late
    assert set(fleet._models) == {
        "double/small#1",
        "double/large#1",
        "triple/small",
        "triple/large",
    }


@dataclass(frozen=True)
class LastRowWaits:
    """A policy that starts no last row before it `may`."""

    may: threading.Event

    def start(self, service: Service) -> Policy:
        """A policy object."""
        policy = PlannedPolicy(named_policy("edf-fastest")).start(service)
        decide = policy.decide

        def held(now_s: float, queue: Queue, servers: Servers) -> Decision:
            waits = queue.count == 1 and not self.may.is_set()
            return Decision(wake_s=now_s + 0.01) if waits else decide(now_s, queue, servers)

        policy.decide = held  # type: ignore[method-assign]
        return policy


def test_rows_of_a_request_are_answered_by_one_model(tmp_path: Path) -> None:
    """Also those that were computed before it came, and beside variants of administrators."""
    may = threading.Event()
    options = ServingOptions(policy=LastRowWaits(may), port=0, most_batch=1)
    with (
        serve(two_models(tmp_path), {"a": 1.0}, options) as running,
        ThreadPoolExecutor() as pool,
    ):
        found = pool.submit(infer, running, body(60_000, rows=2))
        until(lambda: running.dispatcher.fleet.slots[0].served == 1)
        write_model(tmp_path, "double", 5)
        assert call(running, "POST", f"{REPOSITORY}/double/load")[0] == 200
        may.set()
        status, _, answer = found.result()
        assert (status, set(np.array(answer["outputs"][0]["data"]) / ([1, 2, 3, 4] * 2))) == (
            200,
            {5},
        )
        assert answer["parameters"]["attempts"] == 2
        path = "/admin/models/double/variants/new?accuracy=0.95"
        assert call(running, "PUT", path, scaled(6))[0] == 200
        assert infer(running, body(60_000, rows=20))[0] == 200


def test_models_go_and_come_back_over_grpc(running: Running, folder: Path) -> None:
    """The index says so; what they take may have changed meanwhile."""
    client = pytest.importorskip("tritonclient.grpc")
    headers = {"authorization": f"Bearer {running.application.admin_token}"}
    triton = client.InferenceServerClient(running.grpc)

    def index() -> list[tuple[str, str]]:
        found = triton.get_model_repository_index(headers=headers).models
        return [(each.name, each.state) for each in found]

    served = factors(infer(running, body())[2])
    with pytest.raises(client.InferenceServerException, match="UNAUTHENTICATED"):
        triton.unload_model("triple")
    triton.unload_model("triple", headers=headers)
    assert index() == [("double", "READY"), ("triple", "UNAVAILABLE")]
    assert not triton.is_model_ready("triple", headers=headers)
    assert call(running, "POST", "/v2/models/triple/infer", body())[0] == 404
    status = call(running, "GET", "/status.json")[2]
    assert list(status["models"]) == ["double"]
    assert list(status["latency_s"]["a"]) == ["double/small", "double/large"]
    ready = call(running, "POST", "/v2/repository/index", json.dumps({"ready": True}).encode())
    assert [each["name"] for each in ready[2]] == ["double"]
    with pytest.raises(client.InferenceServerException, match="the last model"):
        triton.unload_model("double", headers=headers)
    write_model(folder, "triple", 7, "whole: true\n")
    triton.load_model("triple", headers=headers)
    assert index() == [("double", "READY"), ("triple", "READY")]
    answer = call(running, "POST", "/v2/models/triple/infer", body())
    assert factors(answer[2]) == {7.0}
    assert factors(infer(running, body())[2]) == served
    triton.unload_model("triple", headers=headers)
    triton.load_model("triple", headers=headers)
    assert factors(call(running, "POST", "/v2/models/triple/infer", body())[2]) == {7.0}
    triton.close()


def test_what_cannot_be_loaded_leaves_what_is_served(running: Running, folder: Path) -> None:
    """Refused with the reason."""

    def load(name: str, document: Any = None, token: str | None = None) -> tuple[int, str]:
        headers = {} if token is None else {"authorization": token}
        data = None if document is None else json.dumps(document).encode()
        status, _, answer = call(running, "POST", f"{REPOSITORY}/{name}/load", data, **headers)
        return status, str(answer)

    served = factors(infer(running, body())[2])
    assert load("double", token="Bearer nobody")[0] == 401
    assert load("quadruple")[0] == 404
    assert call(running, "POST", f"{REPOSITORY}/double/move")[0] == 404
    assert call(running, "GET", f"{REPOSITORY}/double/load")[0] == 405
    status, why = load("double", {"parameters": {"config": "{}"}})
    assert (status, "load takes no config" in why) == (400, True)
    write_model(folder, "double", 9, "whole: true\n")
    status, why = load("double")
    assert (status, "unload it first" in why) == (400, True)
    (folder / "double.yaml").write_text("name: other\nvariants: {}\n")
    assert load("double")[0] == 400
    write_model(folder, "double", 9)
    (folder / "double-large.onnx").write_bytes(b"none")
    assert load("double")[0] == 400
    assert factors(infer(running, body())[2]) == served


def test_a_model_that_is_unloaded_while_a_body_comes_is_not_found(
    running: Running, folder: Path
) -> None:
    """No server has it any more."""
    write_model(folder, "triple", 3)
    host, port = running.url[7:].split(":")
    data = body()
    head = (
        f"POST /v2/models/triple/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}"
    )
    with socket.create_connection((host, int(port))) as link:
        link.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + data[:10])
        # It has been found once another that came later is answered.
        assert call(running, "POST", "/v2/models/triple/infer", data)[0] == 200
        assert call(running, "POST", f"{REPOSITORY}/triple/unload")[0] == 200
        link.sendall(data[10:])
        answer = link.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"was unloaded meanwhile" in answer
    assert call(running, "POST", f"{REPOSITORY}/triple/load")[0] == 200
    assert factors(call(running, "POST", "/v2/models/triple/infer", data)[2]) == {3.0}
