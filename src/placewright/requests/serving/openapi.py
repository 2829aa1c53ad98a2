"""The OpenAPI description of the served part of the Open Inference Protocol.

Source: the protocol's ``open_inference_rest.yaml`` (Apache-2.0); paths and schemas written anew,
with the answers that this server gives beside 200.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ERROR = {"$ref": "#/components/schemas/error"}
_STRING = {"type": "string"}
_OBJECT = {"type": "object"}
_REFUSALS = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503)


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """The document, as served at ``/openapi.json``.

    `models`: names that clients may use.
    """
    name = _parameter("name", {"type": "string", "enum": list(models)})
    version = _parameter("version", {"type": "string", "enum": ["1"]})
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata", "server"),
        "/v2/health/live": _get("Whether the server runs"),
        "/v2/health/ready": _get("Whether the server takes requests"),
    }
    for prefix, parameters in (
        ("/v2/models/{name}", [name]),
        ("/v2/models/{name}/versions/{version}", [name, version]),
    ):
        paths[prefix] = _get("Metadata of a model", "model") | {"parameters": parameters}
        paths[f"{prefix}/ready"] = _get("Whether a model is ready") | {"parameters": parameters}
        paths[f"{prefix}/infer"] = {"post": _infer(), "parameters": parameters}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Placewright requests (Open Inference Protocol v2)", "version": "2.0"},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _get(summary: str, schema: str = "") -> dict[str, Any]:
    content = {"$ref": f"#/components/schemas/{schema}"} if schema else _OBJECT
    return {"get": {"summary": summary, "responses": _responses(content, 404, 405, 503)}}


def _infer() -> dict[str, Any]:
    wanted = {"$ref": "#/components/schemas/inference_request"}
    answer = {"$ref": "#/components/schemas/inference_response"}
    return {
        "summary": "Inference",
        "requestBody": {"required": True, "content": {"application/json": {"schema": wanted}}},
        "responses": _responses(answer, *_REFUSALS),
    }


def _responses(content: dict[str, Any], *errors: int) -> dict[str, Any]:
    def response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    return {"200": response("OK", content)} | {
        str(status): response("Refused", _ERROR) for status in errors
    }


def _schemas() -> dict[str, Any]:
    integers = {"type": "array", "items": {"type": "integer"}}
    data = {
        "type": "array",
        "items": {
            "anyOf": [
                {"$ref": "#/components/schemas/tensor_data"},
                {"type": "number"},
                {"type": "string"},
                {"type": "boolean"},
            ]
        },
    }
    tensor = {"name": _STRING, "datatype": _STRING, "shape": integers}
    entry = tensor | {"parameters": _OBJECT, "data": {"$ref": "#/components/schemas/tensor_data"}}
    tensors = {"type": "array", "items": _record(tensor, "name", "datatype", "shape")}
    full = _record(entry, "name", "datatype", "shape")
    return {
        "error": _record({"error": _STRING, "code": _STRING}, "error"),
        "server": _record(
            {
                "name": _STRING,
                "version": _STRING,
                "extensions": {"type": "array", "items": _STRING},
            },
            "name",
            "version",
            "extensions",
        ),
        "model": _record(
            {
                "name": _STRING,
                "versions": {"type": "array", "items": _STRING},
                "platform": _STRING,
                "inputs": tensors,
                "outputs": tensors,
                "properties": _OBJECT,
            },
            "name",
            "platform",
        ),
        "tensor_data": data,
        "inference_request": _record(
            {
                "id": _STRING,
                "parameters": _OBJECT,
                "inputs": {"type": "array", "items": full},
                "outputs": {
                    "type": "array",
                    "items": _record({"name": _STRING, "parameters": _OBJECT}, "name"),
                },
            },
            "inputs",
        ),
        "inference_response": _record(
            {
                "model_name": _STRING,
                "model_version": _STRING,
                "id": _STRING,
                "parameters": _OBJECT,
                "outputs": {"type": "array", "items": full},
            },
            "model_name",
            "outputs",
        ),
    }


def _record(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}
