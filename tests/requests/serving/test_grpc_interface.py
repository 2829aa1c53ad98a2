"""The protocol over gRPC, called by Triton's client; TLS and pages of other origins beside it."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError, RunError
from placewright.requests.serving.grpc_interface import GrpcInterface, _message_classes
from placewright.requests.serving.load import Traffic, load_target, target_at
from placewright.requests.serving.measured import read_status
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.requests.serving.site import HttpLimits
from tests.requests.serving.models import family

client = pytest.importorskip("tritonclient.grpc")
grpc = pytest.importorskip("grpc")
HEADERS = {"authorization": "Bearer a-token-of-clients"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of localhost, for a day."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return cert, key


@pytest.fixture(scope="module")
def running(certificate: tuple[Path, Path]) -> Iterator[Running]:
    """One server with TLS, gRPC, a token, and pages of one origin."""
    cert, key = certificate
    options = ServingOptions(
        port=0,
        grpc_port=0,
        tls_cert=cert,
        tls_key=key,
        token="a-token-of-clients",
        origins=("https://example.org",),
        limits=HttpLimits(body_s=3.0, bodies_bytes=32 << 20),  # one message at a time
    )
    with serve([family()], {"a": 1.0}, options) as found:
        yield found


@pytest.fixture(scope="module")
def triton(running: Running, certificate: tuple[Path, Path]) -> Iterator[Any]:
    """Triton's client."""
    with client.InferenceServerClient(
        running.grpc, ssl=True, root_certificates=str(certificate[0])
    ) as found:
        yield found


def test_messages_are_those_that_are_published() -> None:
    """Names, numbers and types of all fields, against the descriptors of Triton's client."""
    published = client.service_pb2.DESCRIPTOR.message_types_by_name
    nested = {
        "TensorMetadata": "ModelMetadataResponse",
        "InferInputTensor": "ModelInferRequest",
        "InferRequestedOutputTensor": "ModelInferRequest",
        "InferOutputTensor": "ModelInferResponse",
        "ModelIndex": "RepositoryIndexResponse",
    }
    for name, made in _message_classes().items():
        theirs = published[nested.get(name, name)]
        theirs = theirs.nested_types_by_name[name] if name in nested else theirs
        ours = {f.name: (f.number, f.type, f.is_repeated) for f in made.DESCRIPTOR.fields}
        ours.pop("properties", None)  # the protocol's own, which Triton lacks
        assert ours == {f.name: (f.number, f.type, f.is_repeated) for f in theirs.fields}


def asked(rows: Any) -> Any:
    """An input of the family."""
    tensor = client.InferInput("x", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return tensor


def test_a_client_of_triton_is_answered(triton: Any) -> None:
    """Health, metadata, the index, and inference with needs and an output by name."""
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("double", headers=HEADERS)
    assert not triton.is_model_ready("other", headers=HEADERS)
    assert triton.get_server_metadata(headers=HEADERS).name == "placewright"
    metadata = triton.get_model_metadata("double", headers=HEADERS)
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("x", "FP32", [-1, 4])
    ]
    assert triton.get_model_repository_index(headers=HEADERS).models[0].name == "double"
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    answer = triton.infer(
        "double",
        [asked(rows)],
        outputs=[client.InferRequestedOutput("y")],
        request_id="seven",
        parameters={"deadline_ms": 5000, "min_accuracy": 0.8},
        headers=HEADERS,
        client_timeout=20,
    )
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * rows)
    head = answer.get_response()
    assert (head.id, head.model_version) == ("seven", "1")
    assert head.parameters["variant"].string_param == "large"
    assert head.parameters["deadline_ms"].double_param == 5000


def test_the_timeout_of_a_client_is_its_deadline(triton: Any) -> None:
    """Where the request gives none."""
    rows = np.ones((1, 4), np.float32)
    answer = triton.infer("double", [asked(rows)], headers=HEADERS, client_timeout=7.5)
    assert 4000 < answer.get_response().parameters["deadline_ms"].double_param < 8000


def test_values_may_stand_in_typed_lists(triton: Any) -> None:
    """As the protocol has them in place of raw ones, each datatype in its own."""
    pb = client.service_pb2
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
    tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    request = pb.ModelInferRequest(model_name="double", inputs=[tensor])
    metadata = tuple(HEADERS.items())
    answer = triton._client_stub.ModelInfer(request, metadata=metadata)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2, 4, 6, 8]
    request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    with pytest.raises(grpc.RpcError, match="'x' has contents beside raw_input_contents"):
        triton._client_stub.ModelInfer(request, metadata=metadata)
    del request.raw_input_contents[:]
    request.inputs[0].contents.int_contents.extend([5, 6, 7, 8])
    with pytest.raises(grpc.RpcError, match="'x' has int_contents, FP32 is in fp32_contents"):
        triton._client_stub.ModelInfer(request, metadata=metadata)


@pytest.mark.parametrize(
    ("model", "rows", "parameters", "headers", "status", "words"),
    [
        ("double", 1, {}, {}, "UNAUTHENTICATED", "Bearer"),
        ("duble", 1, {}, HEADERS, "NOT_FOUND", "did you mean 'double'|double"),
        ("double", 1, {"deadlin_ms": 5}, HEADERS, "INVALID_ARGUMENT", "did you mean 'deadline_ms'"),
        ("double", 1, {"min_accuracy": 0.99}, HEADERS, "FAILED_PRECONDITION", "accura"),
        ("double", 300, {}, HEADERS, "INVALID_ARGUMENT", "300 rows"),
    ],
)
def test_refusals_have_the_codes_of_grpc(
    triton: Any,
    model: str,
    rows: int,
    parameters: dict[str, Any],
    headers: dict[str, str],
    status: str,
    words: str,
) -> None:
    """And the reasons of HTTP."""
    from tritonclient.utils import InferenceServerException

    inputs = [asked(np.ones((rows, 4), np.float32))]
    with pytest.raises(InferenceServerException, match=words) as found:
        triton.infer(model, inputs, parameters=parameters, headers=headers)
    assert found.value.status() == f"StatusCode.{status}"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x32\x00" * 5_000_000, "more than 4096 parts"),
        (b"\x2a\x00" * 5_000_000, "more than 4096 parts"),
        (b"\x3a\x00" * 5_000_000, "more than 4096 parts"),
        (b"\x2a\x80\x80\x40" + b"\x18\x01" * (1 << 19), "more than 4096 parts"),
        (b"\x2a\x84\x80\x04\x1a\x80\x80\x04" + b"\x01" * (1 << 16), "more than 64 axes"),
        (b"\x2a\x08\x22\x06\x0a\x04", "no ModelInferRequest"),
        (b"\xff" * 100, "no ModelInferRequest"),
        (b"\x2c" * 100, "no ModelInferRequest"),
    ],
    ids=["outputs", "inputs", "raw", "shape", "axes", "cut off", "no message", "groups"],
)
def test_no_message_is_worth_more_than_its_bytes(triton: Any, message: bytes, words: str) -> None:
    """Empty parts of two bytes each would keep all others waiting while they are made."""
    call = triton._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    begun_s = time.process_time()
    with pytest.raises(grpc.RpcError, match=words) as refused:
        call(message, timeout=20, metadata=tuple(HEADERS.items()))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert time.process_time() < begun_s + 5


@pytest.mark.parametrize(
    ("name", "headers", "code"),
    [
        ("ModelInfer", HEADERS, "DEADLINE_EXCEEDED"),
        ("ServerMetadata", {}, "UNAUTHENTICATED"),
        ("ServerLive", {}, "OK"),
    ],
)
def test_no_call_waits_for_its_message_without_end(
    triton: Any, name: str, headers: dict[str, str], code: str
) -> None:
    """Else calls that are begun, and no more, take the places of all others."""
    begun = triton._channel.stream_unary(f"/inference.GRPCInferenceService/{name}")
    never = threading.Event()
    sent = (b"" for _ in range(1) if never.wait(20))
    called = begun.future(sent, timeout=20, metadata=tuple(headers.items()))
    assert called.code() == grpc.StatusCode[code]
    never.set()


def test_messages_that_arrive_share_the_memory_of_bodies(triton: Any) -> None:
    """Nothing says how long one will be: with room for one of the longest, one arrives at once."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    told = {"timeout": 20, "metadata": tuple(HEADERS.items())}
    never = threading.Event()

    def waits() -> bool:
        """For a call that has begun; on a busy machine that may come second."""
        silent = (b"" for _ in range(1) if never.wait(20))
        begun = triton._channel.stream_unary(path).future(silent, **told)
        time.sleep(1.0)
        triton.infer("double", [asked(np.ones((1, 4), np.float32))], headers=HEADERS)
        return bool(begun.done()) and begun.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    assert any(waits() for _ in range(4))
    never.set()
    with pytest.raises(grpc.RpcError, match="one message"):
        triton._channel.stream_unary(path)(iter([b"", b""]), **told)


def test_shared_memory_is_refused_as_over_http(triton: Any) -> None:
    """Where a tensor names it."""
    from tritonclient.utils import InferenceServerException

    tensor = asked(np.ones((1, 4), np.float32))
    tensor.set_shared_memory("region", 16)
    with pytest.raises(InferenceServerException, match="shared memory is not served"):
        triton.infer("double", [tensor], headers=HEADERS)


def test_a_call_that_is_not_served_is_unimplemented(triton: Any) -> None:
    """Shared memory, say."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as found:
        triton.get_system_shared_memory_status(headers=HEADERS)
    assert found.value.status() == "StatusCode.UNIMPLEMENTED"


@dataclass
class Answer:
    """Of a server over TLS."""

    status: int
    headers: Any
    body: bytes


def http(
    running: Running, certificate: tuple[Path, Path], path: str, method: str = "GET", **headers: str
) -> Answer:
    """An answer over TLS; names of headers with underscores."""
    context = ssl.create_default_context(cafile=str(certificate[0]))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(running.url + path, headers=sent, method=method)
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as found:
            return Answer(found.status, found.headers, found.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


def test_clients_are_answered_over_tls_alone(
    running: Running, certificate: tuple[Path, Path]
) -> None:
    """The address says so."""
    assert running.url.startswith("https://")
    assert json.loads(http(running, certificate, "/v2/health/live").body) == {"live": True}
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(running.url.replace("https", "http") + "/v2/health/live", timeout=5)


def test_own_clients_check_the_certificate(
    running: Running, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a file of the operator's; answers of the load client come over TLS, too."""
    monkeypatch.setenv("PLACEWRIGHT_TOKEN", "a-token-of-clients")
    assert list(read_status(running.url, certificate[0])["models"]) == ["double"]
    with pytest.raises(RunError, match=r"(?s)CERTIFICATE_VERIFY_FAILED.*--ca-file"):
        read_status(running.url)
    with pytest.raises(InputError, match="has no certificates"):
        read_status(running.url, certificate[1])
    target = target_at(running.url, None, "a-token-of-clients", certificate[0])
    (result,) = load_target(target, [0.3], Traffic(duration_s=3.0, deadlines=1e3))
    assert result.statuses == {"200": result.requests}
    assert result.success == result.predicted_success == 1.0
    with pytest.raises(RunError, match="no request was answered"):
        load_target(replace(target, certificates=None), [0.3], Traffic(duration_s=3.0))


def test_pages_of_an_allowed_origin_are_answered(
    running: Running, certificate: tuple[Path, Path]
) -> None:
    """Their browser asks first; nobody else's page is, and none administers."""
    ours, other = "https://example.org", "https://example.com"
    asks = {"access_control_request_method": "POST"}
    asks |= {"access_control_request_headers": "authorization,content-type"}
    path = "/v2/models/double/infer"
    answer = http(running, certificate, path, "OPTIONS", origin=ours, **asks)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == ours
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    answer = http(running, certificate, "/v2", origin=ours, sec_fetch_site="cross-site", **HEADERS)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ours)
    assert http(running, certificate, path, "OPTIONS", origin=other, **asks).status == 403
    answer = http(running, certificate, "/admin/servers", origin=ours, **HEADERS)
    assert answer.status == 403


def test_wrong_files_and_origins_are_refused_before_the_start(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """A missing key, no PEM, another key's certificate, and a wildcard."""
    cert, key = certificate
    with pytest.raises(InputError, match="a certificate and its key"):
        ServingOptions(tls_cert=cert)
    with pytest.raises(InputError, match="no such file"):
        ServingOptions(tls_cert=cert, tls_key=tmp_path / "x")
    with pytest.raises(InputError, match="belong together"):
        ServingOptions(tls_cert=key, tls_key=key)
    for origin in ("*", "example.org", "https://example.org/"):
        with pytest.raises(InputError, match="no origin"):
            ServingOptions(origins=(origin,))


def test_silent_clients_take_no_more_than_their_share(
    running: Running, certificate: tuple[Path, Path], triton: Any
) -> None:
    """Of the files that the process may open: one too many is sent away, and HTTP is answered."""
    host, port = running.grpc.split(":")
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, int(port))))
            for _ in range(GrpcInterface.connections + 20)
        ]
        ended: set[socket.socket] = set()
        while len(ended) < 20:
            readable, _, _ = select.select([each for each in silent if each not in ended], [], [])
            assert {each.recv(1) for each in readable} == {b""}
            assert not {*readable} & {*silent[:200]}  # those are silent for too short a time
            ended.update(readable)
        assert json.loads(http(running, certificate, "/v2/health/live").body) == {"live": True}
    assert triton.is_server_live()
