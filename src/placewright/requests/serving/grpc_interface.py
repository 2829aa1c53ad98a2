"""`GrpcInterface`: the Open Inference Protocol over gRPC, as a layer on `Application`.

    gRPC call                          what the application is asked
    ServerLive, ServerReady            GET  /v2/health/live, /v2/health/ready
    ServerMetadata, ModelMetadata      GET  /v2, /v2/models/{name}[/versions/{version}]
    ModelReady                         GET  .../ready
    ModelInfer                         POST .../infer, tensors as binary data
    RepositoryIndex (Triton's)         POST /v2/repository/index
    RepositoryModelLoad, ...Unload     POST /v2/repository/models/{name}/load, .../unload

So tokens (metadata ``authorization``), limits, needs, refusals and the log are those of HTTP. A
client's own timeout is the deadline of a request that gives none; a call that is cancelled is a
client that has left. Every other call of Triton's service is answered with UNIMPLEMENTED.

Source: ``open_inference_grpc.proto`` of the protocol (Apache-2.0), whose names and field numbers
stand in `_MESSAGES`; descriptors are made of them here, so that nothing is generated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from placewright.errors import InputError, MissingDependencyError, PlacewrightError
from placewright.requests.serving.protocol import LENGTH, MOST_DEADLINE_S
from placewright.requests.serving.rows import shutting_down
from placewright.requests.serving.site import Reply, Site, refusal_of
from placewright.requests.serving.tensors import NUMPY, to_bytes
from placewright.web.connections import CONNECTIONS, HEAD_S, connections_beside
from placewright.web.refusals import PRESENCE, Message, Presence, Refusal

SERVICE = "inference.GRPCInferenceService"

HEAD_BYTES = 1 << 20
"""Of a message beside its tensors."""

MOST_PARTS, MOST_AXES = 1 << 12, 64
"""Fields of a message, those of its inputs too, and axes of a tensor: an empty one has 2 bytes."""

_CHOICES = "bool_param:1:bool int64_param:2:int64 string_param:3:string double_param:4:double"
_INFER = "name:1:string datatype:2:string shape:3:int64* parameters:4:InferParameter%"

_CHANGE = "repository_name:1:string model_name:2:string parameters:3:ModelRepositoryParameter%"

_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:1:bool",
    "ModelReadyRequest": "name:1:string version:2:string",
    "ModelReadyResponse": "ready:1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:1:string version:2:string extensions:3:string*",
    "ModelMetadataRequest": "name:1:string version:2:string",
    "TensorMetadata": "name:1:string datatype:2:string shape:3:int64*",
    "ModelMetadataResponse": "name:1:string versions:2:string* platform:3:string "
    "inputs:4:TensorMetadata* outputs:5:TensorMetadata* properties:6:string%",
    "InferParameter": f"{_CHOICES} uint64_param:5:uint64",
    "InferTensorContents": "bool_contents:1:bool* int_contents:2:int32* int64_contents:3:int64* "
    "uint_contents:4:uint32* uint64_contents:5:uint64* fp32_contents:6:float* "
    "fp64_contents:7:double* bytes_contents:8:bytes*",
    "InferInputTensor": f"{_INFER} contents:5:InferTensorContents",
    "InferRequestedOutputTensor": "name:1:string parameters:2:InferParameter%",
    "InferOutputTensor": f"{_INFER} contents:5:InferTensorContents",
    "ModelInferRequest": "model_name:1:string model_version:2:string id:3:string "
    "parameters:4:InferParameter% inputs:5:InferInputTensor* "
    "outputs:6:InferRequestedOutputTensor* raw_input_contents:7:bytes*",
    "ModelInferResponse": "model_name:1:string model_version:2:string id:3:string "
    "parameters:4:InferParameter% outputs:5:InferOutputTensor* raw_output_contents:6:bytes*",
    "RepositoryIndexRequest": "repository_name:1:string ready:2:bool",
    "ModelIndex": "name:1:string version:2:string state:3:string reason:4:string",
    "RepositoryIndexResponse": "models:1:ModelIndex*",
    "ModelRepositoryParameter": "bool_param:1:bool int64_param:2:int64 string_param:3:string "
    "bytes_param:4:bytes",
    "RepositoryModelLoadRequest": _CHANGE,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _CHANGE,
    "RepositoryModelUnloadResponse": "",
}
"""Fields as NAME:NUMBER:TYPE, ``*`` repeated, ``%`` a map from strings. On the wire a message has
no name, so that those that are nested in the published file stand beside the others here."""

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a tensor's values stand that are not raw; FP16 has none."""

_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT",
    422: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
}
"""Of gRPC, by HTTP status; INTERNAL for others."""


class GrpcInterface:
    """Answers gRPC calls in the running loop, from `begin` to `end`.

    `certificate`: PEM of key and of certificates; ``None``: without TLS.
    Raises `MissingDependencyError`: grpcio is not installed.
    """

    connections = 256
    """That there may be; on each, a client has as many calls under way as it likes."""

    def __init__(
        self, application: Site, host: str, port: int, certificate: tuple[bytes, bytes] | None
    ) -> None:
        try:
            import grpc
        except ImportError:
            raise MissingDependencyError("grpcio", extra="grpc", purpose="gRPC") from None
        self._grpc, self._application = grpc, application
        self._host, self._port, self._certificate = host, port, certificate
        self._messages = _message_classes()
        self._server: Any = None
        limits = application.limits
        self._most = limits.body_bytes + HEAD_BYTES
        # How long a message is shows when it is there: one that arrives counts as of the most.
        self._arriving = asyncio.Semaphore(max(1, limits.bodies_bytes // self._most))

    async def begin(self) -> str:
        """Answer clients; ``HOST:PORT``.

        Raises `InputError`: nobody can listen there.
        """
        options = [
            ("grpc.max_receive_message_length", self._most),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # Without these, silent clients would take all files that the process may open.
            ("grpc.max_allowed_incoming_connections", connections_beside(self.connections)),
            ("grpc.server_handshake_timeout_ms", int(1e3 * HEAD_S)),
        ]
        server = self._grpc.aio.server(options=options, maximum_concurrent_rpcs=CONNECTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        host = f"[{self._host}]" if ":" in self._host else self._host
        place = f"{host}:{self._port}"
        try:
            if self._certificate is None:
                port = server.add_insecure_port(place)
            else:
                credentials = self._grpc.ssl_server_credentials([self._certificate])
                port = server.add_secure_port(place, credentials)
        except RuntimeError as error:
            raise InputError(
                "cannot listen there for gRPC",
                where=place,
                by=str(error)[:100],
                hint="give another --grpc-port; 0 takes a free one",
            ) from None
        await server.start()
        self._server = server
        return f"{host}:{port}"

    async def end(self, grace_s: float) -> None:
        """Answer what has come, and no more."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handlers(self) -> Any:
        calls: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "ServerLive": self._health("live"),
            "ServerReady": self._health("ready"),
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._changes_model("load"),
            "RepositoryModelUnload": self._changes_model("unload"),
        }
        made = {
            name: self._grpc.stream_unary_rpc_method_handler(
                self._received(name, call),
                response_serializer=self._messages[f"{name}Response"].SerializeToString,
            )
            for name, call in calls.items()
        }
        return self._grpc.method_handlers_generic_handler(SERVICE, made)

    def _received(
        self, name: str, call: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """A call that is handed its request once that has come, in time and with few parts.

        As a stream: of a call with one message gRPC waits for that message without end.
        """
        from google.protobuf.message import DecodeError

        made, limit_s = self._messages[f"{name}Request"], self._application.limits.body_s
        read = self._as_http if name == "ModelInfer" else _unchanged
        path = ["v2", "health"] if name in ("ServerLive", "ServerReady") else []

        async def answer(stream: Any, context: Any) -> Any:
            try:
                self._application.demand_token(_headers(context), path)
                async with asyncio.timeout(limit_s), self._arriving:
                    data = b"" if path else await _only(stream)
                    _refuse_many_parts(data)
                    request = read(made.FromString(data))
                    del data
            except Refusal as refusal:
                await self._abort(context, refusal)
            except TimeoutError:
                late = f"the message, or its turn to be read, has not come in {limit_s:g} s"
                await self._abort(context, Refusal(408, late))
            except DecodeError:
                await self._abort(context, Refusal(400, f"the message is no {name}Request"))
            return await call(request, context)

        return answer

    def _health(self, word: str) -> Callable[[Any, Any], Awaitable[Any]]:
        name = f"Server{word.title()}Response"

        async def answer(request: Any, context: Any) -> Any:
            try:
                await self._ask("GET", ["v2", "health", word], context)
            except Refusal:
                return self._messages[name](**{word: False})
            return self._messages[name](**{word: True})

        return answer

    async def _model_ready(self, request: Any, context: Any) -> Any:
        path = [*_model(request.name, request.version), "ready"]
        try:
            await self._ask("GET", path, context)
        except Refusal as refusal:
            if refusal.status not in (404, 503):
                await self._abort(context, refusal)
            return self._messages["ModelReadyResponse"](ready=False)
        return self._messages["ModelReadyResponse"](ready=True)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        return await self._document("ServerMetadataResponse", "GET", ["v2"], context)

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        path = _model(request.name, request.version)
        return await self._document("ModelMetadataResponse", "GET", path, context)

    async def _repository_index(self, request: Any, context: Any) -> Any:
        asked = {"ready": request.ready}
        path = ["v2", "repository", "index"]
        reply = await self._answered("POST", path, context, body=json.dumps(asked).encode())
        entry, response = self._messages["ModelIndex"], self._messages["RepositoryIndexResponse"]
        return response(models=[entry(**each) for each in json.loads(reply.body)])

    def _changes_model(self, verb: str) -> Callable[[Any, Any], Awaitable[Any]]:
        name = f"RepositoryModel{verb.title()}Response"

        async def answer(request: Any, context: Any) -> Any:
            path = ["v2", "repository", "models", request.model_name, verb]
            asked = {"parameters": dict.fromkeys(request.parameters)}
            await self._answered("POST", path, context, body=json.dumps(asked).encode())
            return self._messages[name]()

        return answer

    def _as_http(self, request: Any) -> _Inference:
        """A request without its message, which takes as much memory again."""
        path = [*_model(request.model_name, request.model_version), "infer"]
        return _Inference(path, *_http_body(request, self._application.limits.body_bytes))

    async def _model_infer(self, request: _Inference, context: Any) -> Any:
        path, body, length = request
        headers = {LENGTH: str(length), "content-length": str(len(body))}
        left_s = context.time_remaining()
        if left_s is not None and 0 < left_s <= MOST_DEADLINE_S:
            headers["x-request-timeout-seconds"] = str(left_s)
        reply = await self._answered("POST", path, context, headers, body)
        return self._response(reply)

    def _response(self, reply: Reply) -> Any:
        """The protocol's answer of an HTTP answer with binary data."""
        size = int(dict(reply.headers).get(LENGTH.encode(), str(len(reply.body)).encode()))
        head, place, raw, outputs = json.loads(reply.body[:size]), size, [], []
        for output in head["outputs"]:
            end = place + output["parameters"]["binary_data_size"]
            raw.append(reply.body[place:end])
            place = end
            fields = {key: output[key] for key in ("name", "datatype", "shape")}
            outputs.append(self._messages["InferOutputTensor"](**fields))
        return self._messages["ModelInferResponse"](
            model_name=head["model_name"],
            model_version=head["model_version"],
            id=head.get("id", ""),
            parameters={k: self._parameter(v) for k, v in head["parameters"].items()},
            outputs=outputs,
            raw_output_contents=raw,
        )

    def _parameter(self, value: Any) -> Any:
        kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        return self._messages["InferParameter"](**{kinds[type(value)]: value})

    async def _document(self, name: str, method: str, path: list[str], context: Any) -> Any:
        """A message of this kind with what the application says as JSON."""
        from google.protobuf.json_format import ParseDict

        reply = await self._answered(method, path, context)
        return ParseDict(json.loads(reply.body), self._messages[name]())

    async def _answered(
        self,
        method: str,
        path: list[str],
        context: Any,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        """The application's answer; a refusal ends the call."""
        try:
            return await self._ask(method, path, context, headers, body)
        except Refusal as refusal:
            await self._abort(context, refusal)
            raise

    async def _abort(self, context: Any, refusal: Refusal) -> None:
        """End the call with the code of the refusal's status."""
        code = self._grpc.StatusCode[_CODES.get(refusal.status, "INTERNAL")]
        after = refusal.retry_after_s
        trailing = () if after is None else (("retry-after", f"{after:g}"),)
        await context.abort(code, refusal.reason, trailing)

    async def _ask(
        self,
        method: str,
        path: list[str],
        context: Any,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        """What the application answers; raises the `Refusal` where it refuses."""
        presence = Presence()
        scope = {
            "method": method,
            "path": "/" + "/".join(path),
            "raw_path": "/".join(["", *(quote(part, safe="") for part in path)]).encode(),
            "query_string": b"",
            "extensions": {PRESENCE: {"client": presence}},
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        work = asyncio.ensure_future(
            self._application.reply(scope, {**(headers or {}), **_headers(context)}, receive)
        )
        try:
            return await asyncio.shield(work)
        except PlacewrightError as error:
            raise refusal_of(error) from error
        except asyncio.CancelledError:
            if work.cancelled():
                raise shutting_down() from None
            presence.leave()  # the rows wait no more, and are counted as `client-gone`
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        finally:
            del work  # has the refusal, whose traceback has this frame: all would stay for a while


class _Inference(NamedTuple):
    """A request as HTTP has it: its path, its body, and the length of the body's JSON."""

    path: list[str]
    body: bytes
    length: int


async def _only(stream: Any) -> bytes:
    """The message of a call whose stream has ended: else gRPC keeps its memory long after the call.

    Raises `Refusal`: there is another number of messages.
    """
    found: list[bytes] = []
    async for message in stream:
        found.append(message)
        if len(found) > 1:
            break
    if len(found) != 1:
        raise Refusal(400, "a call has one message")
    return found[0]


def _unchanged(request: Any) -> Any:
    return request


def _headers(context: Any) -> dict[str, str]:
    """Metadata of a call that HTTP has as headers."""
    return {
        key: value
        for key, value in context.invocation_metadata() or ()
        if isinstance(value, str) and (key == "authorization" or key.startswith("x-"))
    }


def _model(name: str, version: str) -> list[str]:
    return ["v2", "models", name, *(["versions", version] if version else [])]


def _http_body(request: Any, most_bytes: int) -> tuple[bytes, int]:
    """A request as the HTTP protocol has it, and the length of its JSON.

    Raises `Refusal`: 400: tensors that are raw and others, or a datatype without values.
    """
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise Refusal(400, f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    if large := [each.name for each in request.inputs if len(each.shape) > MOST_AXES]:
        raise Refusal(400, f"input {large[0]!r:.100} has more than {MOST_AXES} axes")
    if both := [each.name for each in request.inputs if raw and each.contents.ListFields()]:
        raise Refusal(400, f"input {both[0]!r} has contents beside raw_input_contents: give one")
    parameters = {key: _value(each) for key, each in request.parameters.items()}
    binary = raw or [_raw(each, most_bytes) for each in request.inputs]
    head: dict[str, Any] = {
        "id": request.id,
        "parameters": parameters | {"binary_data_output": True},
        "inputs": [
            {
                "name": each.name,
                "datatype": each.datatype,
                "shape": list(each.shape),
                "parameters": {key: _value(value) for key, value in each.parameters.items()}
                | {"binary_data_size": len(data)},
            }
            for each, data in zip(request.inputs, binary, strict=True)
        ],
    }
    if request.outputs:
        head["outputs"] = [
            {
                "name": each.name,
                "parameters": {k: _value(v) for k, v in each.parameters.items()}
                | {"binary_data": True},
            }
            for each in request.outputs
        ]
    text = json.dumps(head).encode()
    return b"".join([text, *binary]), len(text)


def _refuse_many_parts(data: bytes) -> None:
    """Raise `Refusal` where a message has so many parts that making them would take long."""
    parts, left = 0, [(0, len(data), True)]
    while left:
        at, end, whole = left.pop()
        while at < end:
            tag, at = _varint(data, at)
            size, after = _varint(data, at) if tag & 7 in (0, 2) else (0, at)
            at = after + {0: 0, 1: 8, 2: size, 5: 4}.get(tag & 7, end)
            parts += 1
            if parts > MOST_PARTS:
                raise Refusal(400, f"the message has more than {MOST_PARTS} parts")
            if whole and tag == INPUT:
                left.append((after, min(at, end), False))


INPUT = 5 << 3 | 2
"""What is before each input of a request."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of protobuf's, and where it ends; where the message is cut off there is none."""
    value = 0
    for k, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    return 0, len(data)


def _value(parameter: Any) -> Any:
    """What a parameter holds."""
    chosen = parameter.ListFields()
    if len(chosen) != 1:
        raise Refusal(400, "a parameter has one value")
    return chosen[0][1]


def _raw(tensor: Any, most_bytes: int) -> bytes:
    """A tensor's typed values as raw data."""
    name = _CONTENTS.get(tensor.datatype)
    if name is None:
        raise Refusal(400, f"input {tensor.name!r}: {tensor.datatype:.20} has raw contents only")
    if others := [field.name for field, _ in tensor.contents.ListFields() if field.name != name]:
        why = f"input {tensor.name!r} has {others[0]}, {tensor.datatype} is in {name}"
        raise Refusal(400, why)
    values = getattr(tensor.contents, name)
    if tensor.datatype == "BYTES":
        if 4 * len(values) > most_bytes:
            raise Refusal(413, f"input {tensor.name!r:.100} has {len(values)} strings")
        return b"".join(len(text).to_bytes(4, "little") + text for text in values)
    try:
        return to_bytes(np.array(list(values), NUMPY[tensor.datatype]))
    except OverflowError:
        raise Refusal(400, f"input {tensor.name!r}: a value is no {tensor.datatype}") from None


def _message_classes() -> dict[str, Any]:
    """The messages by name, in a pool of their own: other libraries may have them, too."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="placewright_open_inference.proto", package="inference", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))
        for name in _MESSAGES
    }


def _describe(message: Any, fields: str) -> None:
    """Add the fields, and for a map the entry that protobuf has for it."""
    choice = "bool_param" in fields
    if choice:
        message.oneof_decl.add(name="parameter_choice")
    for name, number, kind in _fields(fields):
        single = kind.rstrip("*%")
        repeated = kind != single
        if kind.endswith("%"):
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _add_field(entry, "key", 1, "string")
            _add_field(entry, "value", 2, single)
            single = f"{message.name}.{entry.name}"
        field = _add_field(message, name, number, single, repeated=repeated)
        if choice:
            field.oneof_index = 0


def _fields(text: str) -> Iterator[tuple[str, int, str]]:
    for field in text.split():
        name, number, kind = field.split(":")
        yield name, int(number), kind


def _add_field(message: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=number)
    field.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    scalar = getattr(Field, f"TYPE_{kind.upper()}", None)
    field.type = Field.TYPE_MESSAGE if scalar is None else scalar
    if scalar is None:
        field.type_name = f".inference.{kind}"
    return field
