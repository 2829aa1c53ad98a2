"""Models that are loaded and unloaded while the server runs, as Triton's clients do it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.requests.serving.families import read_family
from placewright.requests.serving.server import Running, ServingOptions, serve
from tests.requests.serving.models import scaled
from tests.requests.serving.test_server import body, call, infer

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
    files = [write_model(folder, name, factor) for name, factor in (("double", 2), ("triple", 3))]
    options = ServingOptions(port=0, grpc_port=0)
    with serve([read_family(file) for file in files], {"a": 1.0}, options) as found:
        yield found


def factors(answer: Any) -> set[float]:
    """By which an answer has multiplied 1, 2, 3, 4."""
    return set((np.array(answer["outputs"][0]["data"]) / [1, 2, 3, 4]).tolist())


def test_a_model_is_replaced_under_load(running: Running, folder: Path) -> None:
    """Nobody is refused, and from some request on all get the new one's answers."""
    triton = pytest.importorskip("tritonclient.http")
    ends, seen, failed = threading.Event(), list[float](), Counter[str]()

    def ask() -> None:
        while not ends.is_set():
            status, _, answer = infer(running, body(1000))
            if status == 200:
                seen.extend(factors(answer))
            else:
                failed[str(answer)] += 1
            time.sleep(0.01)

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for each in clients:
        each.start()
    try:
        time.sleep(0.2)
        write_model(folder, "double", 5)
        headers = {"authorization": f"Bearer {running.application.admin_token}"}
        with triton.InferenceServerClient(running.url[7:], network_timeout=60) as client:
            client.load_model("double", headers=headers)
        seen.append(0.0)
        time.sleep(0.2)
    finally:
        ends.set()
        for each in clients:
            each.join()
    assert not failed
    assert set(seen) == {0.0, 2.0, 5.0}
    before, after = seen[: seen.index(0.0)], seen[seen.index(0.0) :]
    assert len(before) > 20
    assert after.count(2.0) <= len(clients)  # were computed before, and counted late
    dispatcher = running.dispatcher
    assert [len(dispatcher.fleet.variants), dispatcher.service.variants] == [4, 4]
    assert set(dispatcher.fleet._models) == {
        "double/small#1",
        "double/large#1",
        "triple/small",
        "triple/large",
    }


def test_models_go_and_come_back_over_grpc(running: Running, folder: Path) -> None:
    """The index says so; what they take may have changed meanwhile."""
    client = pytest.importorskip("tritonclient.grpc")
    headers = {"authorization": f"Bearer {running.application.admin_token}"}
    triton = client.InferenceServerClient(running.grpc)

    def index() -> list[tuple[str, str]]:
        found = triton.get_model_repository_index(headers=headers).models
        return [(each.name, each.state) for each in found]

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
    assert factors(infer(running, body())[2]) == {5.0}
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
    assert factors(infer(running, body())[2]) == {5.0}
